"""Queries, and what they give back."""

from datetime import UTC, datetime
from typing import Any, assert_type

from shop import Customer, Product, Subscription

from ontologia import Session, count, count_where, left, right
from ontologia.query.expressions import Filter


def filters() -> None:
    adult = Customer.age >= 18
    assert_type(adult & (Customer.name != "Bo"), Filter[Customer])
    assert_type(adult | Customer.nick.is_null(), Filter[Customer])
    assert_type(~adult, Filter[Customer])
    assert_type(Customer.age.in_([1, 2]), Filter[Customer])
    assert_type(Customer.name.startswith("A"), Filter[Customer])
    assert_type(Customer.nick.endswith("a"), Filter[Customer])
    assert_type(Customer.nick.is_not_null(), Filter[Customer])
    assert_type(Customer.active.is_true(), Filter[Customer])


def results(session: Session) -> None:
    customers = session.query().entities(Customer)
    found = customers.where(Customer.age > 30, Customer.name == "Ada")
    assert_type(found.collect(), list[Customer])
    assert_type(found.first(), Customer | None)
    assert_type(found.get("c1"), Customer | None)
    assert_type(found.count(), int)
    assert_type(found.count_where(Customer.age > 40), int)
    assert_type(found.to_dicts(), list[dict[str, Any]])
    for customer in found.order_by(Customer.age.desc(), Customer.name).limit(5).offset(2):
        assert_type(customer, Customer)
    assert_type(found.as_of(3).collect(), list[Customer])
    assert_type(found.as_of(datetime.now(UTC)).first(), Customer | None)
    assert_type(found.with_history().collect(), list[Customer])
    assert_type(found.history_since(3).collect(), list[Customer])


def relations(session: Session) -> None:
    subscriptions = session.query().relations(Subscription)
    pro = subscriptions.where(Subscription.plan == "pro")
    assert_type(pro.collect(), list[Subscription])
    assert_type(pro.first(), Subscription | None)
    assert_type(pro.get("c1", 1, "s1"), Subscription | None)
    pro.where(left(Subscription).age > 30, right(Subscription).price < 5.0)
    pro.where((Subscription.plan == "pro") & (left(Subscription).name == "Ada"))


def groups(session: Session) -> None:
    rows = (
        session.query()
        .entities(Customer)
        .group_by(Customer.name)
        .having(count() > 2)
        .agg(n=count(), age=Customer.age.avg(), old=count_where(Customer.age > 60))
    )
    assert_type(rows, list[dict[str, Any]])


def traversal(session: Session) -> None:
    products = session.query().entities(Product).where(Product.price > 3.0)
    for path in products.via(Subscription, reverse=True).collect():
        assert_type(path.source, Product)
