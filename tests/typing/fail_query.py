"""Mistakes in filters and queries: every line marked ``error`` must be one."""

from typing import assert_type

from shop import Customer, OrderPlaced, Product, Subscription

from ontologia import Session

print(Customer.agee)  # error
print(Customer.age > "thirty")  # error
print(Customer.name < 5)  # error
print(Customer.age.in_(["thirty"]))  # error
print(Customer.age.startswith("3"))  # error
print(Customer.name.startswith(3))  # error
print((Customer.age > 3) & True)  # error


def queries(session: Session) -> None:
    customers = session.query().entities(Customer)
    customers.where(Product.price > 3.0)  # error
    customers.where(Customer.age > 3, Product.price > 3.0)  # error
    customers.where((Customer.age > 3) | (Product.price > 3.0))  # error
    customers.where(~(Product.price > 3.0))  # error
    customers.where(True)  # error
    # A comparison that the field refuses falls back to object's, which gives a bool.
    customers.where(Customer.age == "thirty")  # error
    customers.where(Customer.age != None)  # error  # noqa: E711
    customers.count_where(Product.price > 3.0)  # error
    customers.order_by(Product.price)  # error
    customers.group_by(Product.price)  # error
    customers.limit("5")  # error
    customers.as_of("yesterday")  # error
    assert_type(customers.first(), Customer)  # error
    assert_type(customers.collect(), list[Product])  # error


def kinds(session: Session) -> None:
    session.query().entities(OrderPlaced)  # error
    session.query().relations(Customer)  # error
    session.query().relations(Subscription).where(Customer.age > 3)  # error
