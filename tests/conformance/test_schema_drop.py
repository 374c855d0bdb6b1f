"""Dropping a type: previewed, with a token, and never under the feet of relations."""

from typing import Any

import pytest
from support.backends import OpenSession
from support.models import Customer, Product, Subscription

from ontologia import Entity, Field, MigrationTokenError, SchemaError, Session, TypeInUseError


@pytest.fixture
def stored(session: Session) -> Session:
    session.ensure([Customer(id="1"), Product(sku=1), Subscription(left_key="1", right_key=1)])
    session.commit()
    session.ensure(Customer(id="1", age=2))
    session.commit()
    return session


def drop(session: Session, target: Any) -> None:
    session.drop(target, dry_run=False, token=session.drop(target).token)


@pytest.mark.parametrize("target", [Subscription, "Subscription"])
def test_a_preview_removes_nothing(stored: Session, target: Any):
    preview = stored.drop(target)
    assert (preview.kind, preview.type_name, preview.applied) == ("relation", "Subscription", False)
    assert stored.query().relations(Subscription).count() == 1


@pytest.mark.parametrize("target", [Subscription, "Subscription"])
def test_a_dropped_type_is_gone_with_its_history(stored: Session, target: Any):
    token = stored.drop(target).token
    assert stored.drop(target, dry_run=False, token=token).applied
    query = stored.query().relations(Subscription)
    assert (query.collect(), query.with_history().collect(), query.as_of(1).count()) == ([], [], 0)
    with pytest.raises(SchemaError):
        stored.drop(target)


def test_other_types_and_the_log_stay(stored: Session):
    drop(stored, Subscription)
    assert stored.query().entities(Customer).with_history().count() == 2
    assert len(stored.list_commits()) == 2
    assert {c["type"] for c in stored.list_commit_changes(1)} == {"Customer", "Product"}
    assert {c.type for c in stored.diff(0, 2).added} == {"Customer", "Product"}
    assert stored.verify().ok


@pytest.mark.parametrize("token", [None, "", "0" * 16])
def test_without_the_right_token_nothing_is_removed(stored: Session, token: Any):
    with pytest.raises(MigrationTokenError) as caught:
        stored.drop(Subscription, dry_run=False, token=token)
    assert caught.value.given == token
    assert stored.query().relations(Subscription).count() == 1


def test_a_token_is_void_after_another_commit(stored: Session):
    token = stored.drop(Subscription).token
    stored.ensure(Subscription(left_key="1", right_key=2))
    stored.commit()
    with pytest.raises(MigrationTokenError):
        stored.drop(Subscription, dry_run=False, token=token)


@pytest.mark.parametrize("target", [Customer, Product])
def test_a_type_that_relations_depend_on_stays(stored: Session, target: Any):
    for attempt in ({}, {"dry_run": False, "token": "x"}):
        with pytest.raises(TypeInUseError) as caught:
            stored.drop(target, **attempt)
        assert caught.value.relations == ["Subscription"]
    drop(stored, Subscription)
    drop(stored, target)
    assert stored.query().entities(target).count() == 0


class Other(Entity, name="Subscription"):
    id: Field[str] = Field(primary_key=True)


def test_a_dropped_name_is_free_for_another_declaration(stored: Session):
    drop(stored, Subscription)
    drop(stored, Customer)

    class Person(Entity, name="Customer"):
        number: Field[int] = Field(primary_key=True)

    stored.ensure(Person(number=1))
    assert stored.commit() == 3
    assert stored.query().entities(Person).with_history().collect() == [Person(number=1)]
    assert stored.query().entities(Person).as_of(2).collect() == []
    assert stored.verify().ok


@pytest.mark.parametrize("target", ["Nothing", "", 5, None, Other])
def test_what_is_not_stored_cannot_be_dropped(stored: Session, target: Any):
    with pytest.raises(SchemaError):
        stored.drop(target)


def test_a_drop_reaches_every_namespace(open_session: OpenSession):
    red, blue = open_session("red"), open_session("blue")
    for session in (red, blue):
        session.ensure(Product(sku=1))
        session.commit()
    drop(red, Product)
    assert blue.query().entities(Product).count() == 0
    blue.ensure(Product(sku=1))
    assert blue.commit() == 3


def test_the_code_may_outlive_the_type(open_session: OpenSession):
    one, two = open_session(), open_session()
    one.ensure(Product(sku=1))
    one.commit()
    two.ensure(Product(sku=2))
    drop(one, Product)
    assert two.commit() == 2
    assert one.query().entities(Product).collect() == [Product(sku=2)]
