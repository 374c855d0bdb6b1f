"""Constructors, attributes and class access, as users write them."""

from datetime import datetime
from typing import assert_type

from shop import Customer, OrderPlaced, OrderShipped, Product, Subscription

from ontologia import Session, commit_of
from ontologia.query.expressions import FieldRef, Filter

customer = Customer(id="c1", name="Ada")
Customer(id="c2", name="Bo", age=30, nick="b", tags=["new"], since=None, active=False)
product = Product(sku=1, price=9.5)

assert_type(customer.id, str)
assert_type(customer.age, int)
assert_type(customer.nick, str | None)
assert_type(customer.tags, list[str])
assert_type(customer.since, datetime | None)
assert_type(product.price, float)

customer.age = 31
customer.nick = None

assert_type(Customer.name, FieldRef[Customer, str])
assert_type(Customer.age, FieldRef[Customer, int])
assert_type(Customer.nick, FieldRef[Customer, str | None])
assert_type(Customer.age > 30, Filter[Customer])
assert_type(Customer.age == 30, Filter[Customer])
assert_type(Product.price <= 2.5, Filter[Product])

subscription = Subscription(left_key="c1", right_key=1, seat="s1")
Subscription(left_key="c1", right_key=1, seat="s1", plan="pro")
assert_type(subscription.seat, str)
assert_type(subscription.plan, str)
assert_type(Subscription.plan == "pro", Filter[Subscription])

placed = OrderPlaced(order_id="o1")
OrderPlaced(order_id="o1", priority=7)
OrderShipped(order_id="o1", priority=200)
assert_type(placed.order_id, str)
assert_type(placed.priority, int)
assert_type(placed.chain_depth, int)
assert_type(placed.created_at, str | None)


def endpoints(found: Subscription) -> None:
    assert_type(found.left, Customer)
    assert_type(found.right, Product)


def unit_of_work(session: Session) -> None:
    session.ensure(customer)
    session.ensure([customer, product, subscription])
    assert_type(session.commit(event=placed), int | None)
    session.commit(event=[placed, OrderShipped(order_id="o1")])
    assert_type(commit_of(customer), int | None)
