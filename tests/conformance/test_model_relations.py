"""Relations: identity, endpoints after a query, and last wins."""

import pytest
from support.models import Customer, Product, Seat, Subscription

from ontologia import EndpointMissingError, QueryError, Relation, Session, ValidationError


@pytest.fixture
def shop(session: Session) -> Session:
    session.ensure([Customer(id="ada", age=36), Customer(id="bob"), Product(sku=1), Product(sku=2)])
    session.commit()
    return session


def test_two_ends_identify_a_relation(shop: Session):
    shop.ensure(Subscription(left_key="ada", right_key=1, plan="free"))
    shop.commit()
    shop.ensure(Subscription(left_key="ada", right_key=1, plan="pro"))
    shop.ensure(Subscription(left_key="ada", right_key=2))
    shop.commit()
    query = shop.query().relations(Subscription)
    assert query.count() == 2
    assert query.get("ada", 1).plan == "pro"
    assert query.get("bob", 1) is None


def test_an_instance_key_tells_relations_of_a_pair_apart(shop: Session):
    shop.ensure([Seat(left_key="ada", right_key=1, number=n) for n in (1, 2)])
    shop.commit()
    shop.ensure(Seat(left_key="ada", right_key=1, number=2, note="window"))
    shop.commit()
    query = shop.query().relations(Seat)
    assert query.count() == 2
    assert query.get("ada", 1, 2).note == "window"
    with pytest.raises(QueryError):
        query.get("ada", 1)


def test_an_instance_key_of_zero_is_a_key(shop: Session):
    shop.ensure(Seat(left_key="ada", right_key=1, number=0))
    shop.commit()
    assert shop.query().relations(Seat).get("ada", 1, 0).number == 0


def test_the_last_of_an_identity_wins_and_one_version_is_written(shop: Session):
    for plan in ("a", "b", "c"):
        shop.ensure(Subscription(left_key="ada", right_key=1, plan=plan))
    commit_id = shop.commit()
    versions = shop.query().relations(Subscription).with_history().collect()
    assert [r.plan for r in versions] == ["c"]
    assert len(shop.list_commit_changes(commit_id)) == 1


def test_a_query_fills_in_both_ends(shop: Session):
    shop.ensure(Subscription(left_key="ada", right_key=1))
    shop.commit()
    query = shop.query().relations(Subscription)
    for found in (query.first(), query.get("ada", 1), query.collect()[0], next(iter(query))):
        assert found.left == Customer(id="ada", age=36)
        assert found.right == Product(sku=1)


def test_ends_are_those_of_the_time_that_was_asked_for(shop: Session):
    shop.ensure(Subscription(left_key="ada", right_key=1))
    then = shop.commit()
    shop.ensure(Customer(id="ada", age=37))
    shop.commit()
    query = shop.query().relations(Subscription)
    assert query.as_of(then).first().left.age == 36
    assert query.first().left.age == 37


def test_a_relation_made_by_hand_has_no_ends_yet():
    relation = Subscription(left_key="ada", right_key=1)
    for side in ("left", "right"):
        with pytest.raises(EndpointMissingError, match="made by hand"):
            getattr(relation, side)


def test_a_dangling_end_is_named_when_it_is_asked_for(shop: Session):
    shop.ensure(Subscription(left_key="ada", right_key=99))
    shop.commit()
    found = shop.query().relations(Subscription).first()
    assert found.left.id == "ada"
    with pytest.raises(EndpointMissingError, match="99"):
        found.right


def test_ends_have_the_types_of_the_keys_they_point_at():
    with pytest.raises(ValidationError) as caught:
        Subscription(left_key="ada", right_key="one")
    assert caught.value.field == "right_key"
    with pytest.raises(ValidationError):
        Subscription(left_key="", right_key=1)
    with pytest.raises(ValidationError):
        Subscription(left_key="ada")


def test_ends_cannot_be_assigned(shop: Session):
    relation = Subscription(left_key="ada", right_key=1)
    with pytest.raises((AttributeError, ValidationError)):
        relation.left = Customer(id="bob")


class Manages(Relation[Customer, Customer]):
    pass


def test_a_type_may_relate_to_itself(shop: Session):
    shop.ensure(
        [Manages(left_key="ada", right_key="bob"), Manages(left_key="bob", right_key="bob")]
    )
    shop.commit()
    found = shop.query().relations(Manages).get("ada", "bob")
    assert (found.left.id, found.right.id) == ("ada", "bob")


class PaidSubscription(Subscription):
    pass


def test_a_relation_class_may_be_derived_from_another(shop: Session):
    shop.ensure(PaidSubscription(left_key="ada", right_key=1, plan="gold"))
    shop.commit()
    assert shop.query().relations(PaidSubscription).first().left.id == "ada"
    assert shop.query().relations(Subscription).count() == 0
