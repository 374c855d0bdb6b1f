"""Mistakes in declarations and constructors: every line marked ``error`` must be one."""

from typing import assert_type

from shop import Customer, OrderPlaced, Product, Subscription

from ontologia import Entity, Field, Session

Customer(id="c1")  # error
Customer("c1", "Ada")  # error
Customer(id="c1", name="Ada", nme="typo")  # error
Customer(id=1, name="Ada")  # error
Customer(id="c1", name=None)  # error
Customer(id="c1", name="Ada", tags=[1])  # error
Product(sku=1, price="9.5")  # error

customer = Customer(id="c1", name="Ada")
customer.age = "31"  # error
customer.agee = 31  # error
assert_type(customer.age, str)  # error

Subscription(left_key="c1", right_key=1)  # error
Subscription(left_key="c1", right_key=1, seat=7)  # error
Subscription(left_key="c1", right_key=1, seat="s1", plann="pro")  # error

OrderPlaced()  # error
OrderPlaced(order_id=1)  # error
OrderPlaced(order_id="o1", priority="high")  # error
OrderPlaced(order_id="o1", urgency=1)  # error


class Bare(Entity):
    id: Field[str] = Field(primary_key=True)
    # Works at run time; the checkers want Field(default=5).
    five: Field[int] = 5  # error


def unit_of_work(session: Session) -> None:
    session.ensure("c1")  # error
    session.commit(customer)  # error
    session.commit(event=customer)  # error
