"""Relations: their own fields, and the fields of both ends."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ontologia import (
    EndpointMissingError,
    Entity,
    Field,
    ModelDefinitionError,
    QueryError,
    Relation,
    Session,
    left,
    right,
)


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)
    age: Field[int] = Field(default=0)
    credit: Field[Decimal | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)


class Product(Entity, name="Article"):
    sku: Field[int] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)
    price: Field[float] = Field(default=0.0)


class Buys(Relation[Customer, Product]):
    tier: Field[str | None] = Field(default=None)
    n: Field[int] = Field(default=1)


class Follows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


class Seat(Relation[Customer, Product]):
    seat: Field[str] = Field(instance_key=True)


@pytest.fixture
def shop(session: Session) -> Session:
    """A session with customers a, b, c, products 1, 2, and what they buy; some ends dangle."""
    session.ensure(
        [
            Customer(id="a", tier="gold", age=30, credit=Decimal("1.50"), tags=["vip"]),
            Customer(id="b", tier="iron", age=20),
            Customer(id="c", age=40),
            Product(sku=1, tier="gold", price=1.5),
            Product(sku=2, price=20.0),
            Buys(left_key="a", right_key=1, tier="x", n=1),
            Buys(left_key="a", right_key=2, n=2),
            Buys(left_key="b", right_key=1, tier="gold", n=3),
            Buys(left_key="c", right_key=2, tier="x", n=4),
            Buys(left_key="gone", right_key=1, n=5),
            Buys(left_key="b", right_key=99, n=6),
        ]
    )
    session.commit()
    return session


def found(session: Session, *filters: Any, order: tuple[Any, ...] = ()) -> list[int]:
    """The numbers of the purchases found, which all temporal modes must agree about."""
    query = session.query().relations(Buys).where(*filters).order_by(*order)
    numbers = [r.n for r in query.collect()]
    assert [r.n for r in query.as_of(1).collect()] == numbers
    assert [r.n for r in query.with_history().collect()] == numbers
    assert query.count() == query.as_of(1).count() == len(numbers)
    return numbers


def test_relations_come_with_both_ends(shop: Session) -> None:
    query = shop.query().relations(Buys).where(Buys.n < 3)
    for windowed in (query, query.as_of(1), query.with_history()):
        for relation in windowed.collect():
            assert relation.left == Customer(
                id="a", tier="gold", age=30, credit=Decimal("1.50"), tags=["vip"]
            )
            assert relation.right.sku == relation.right_key
            assert type(relation.right) is Product
        assert windowed.first().left.id == "a"
        assert windowed.get("a", 2).right.price == 20.0


def test_own_fields_and_keys(shop: Session) -> None:
    assert found(shop, Buys.n > 4) == [6, 5]
    assert found(shop, Buys.tier == "x") == [1, 4]
    assert found(shop, Buys.left_key == "a") == [1, 2]
    assert found(shop, Buys.right_key == 1) == [1, 3, 5]
    assert found(shop, Buys.right_key > 2) == [6]
    assert found(shop, Buys.left_key.in_(["b", "c"])) == [3, 6, 4]


def test_filters_on_each_end(shop: Session) -> None:
    assert found(shop, left(Buys).tier == "gold") == [1, 2]
    assert found(shop, right(Buys).tier == "gold") == [1, 3, 5]
    assert found(shop, left(Buys).age >= 30) == [1, 2, 4]
    assert found(shop, right(Buys).price > 10) == [2, 4]
    assert found(shop, left(Buys).credit == Decimal("1.5")) == [1, 2]
    assert found(shop, left(Buys).id == "a") == [1, 2]
    assert found(shop, right(Buys).sku == 2) == [2, 4]
    assert found(shop, left(Buys).tier.startswith("i")) == [3, 6]
    assert found(shop, left(Buys).tier.in_(["iron", "gold"])) == [1, 2, 3, 6]
    assert found(shop, left(Buys).tags.any_path() == "vip") == [1, 2]


def test_the_same_name_on_both_ends_and_the_relation(shop: Session) -> None:
    assert found(shop, left(Buys).tier == "gold", right(Buys).tier == "gold") == [1]
    assert found(shop, Buys.tier == "gold", right(Buys).tier == "gold") == [3]
    any_gold = (Buys.tier == "gold") | (left(Buys).tier == "gold") | (right(Buys).tier == "gold")
    assert found(shop, any_gold) == [1, 2, 3, 5]


def test_fields_of_a_missing_end_are_null(shop: Session) -> None:
    assert found(shop, left(Buys).id.is_null()) == [5]
    assert found(shop, right(Buys).sku.is_null()) == [6]
    assert found(shop, left(Buys).tier.is_null()) == [4, 5]
    assert found(shop, left(Buys).id.is_not_null() & right(Buys).sku.is_not_null()) == [1, 2, 3, 4]
    assert found(shop, left(Buys).age != 30) == [3, 6, 4]
    assert found(shop, ~(left(Buys).age == 30)) == [3, 6, 4]
    assert found(shop, ~(left(Buys).tags.any_path() == "vip")) == [3, 6, 4, 5]


def test_mixes_of_own_and_endpoint_fields(shop: Session) -> None:
    rich, cheap, many = left(Buys).age >= 30, right(Buys).price < 10, Buys.n >= 4
    assert found(shop, rich & cheap) == [1]
    assert found(shop, rich | cheap) == [1, 2, 3, 4, 5]
    assert found(shop, (rich & ~cheap) | many) == [2, 6, 4, 5]
    assert found(shop, ~(rich & cheap)) == [2, 3, 6, 4]
    assert found(shop, ~(rich | many)) == [3]
    assert found(shop, ~(rich | cheap) | ~many) == [1, 2, 3]


def test_order_by_endpoint_fields(shop: Session) -> None:
    assert found(shop, order=(left(Buys).age, Buys.n)) == [5, 3, 6, 1, 2, 4]
    assert found(shop, order=(right(Buys).price.desc(), left(Buys).age.desc())) == [
        4,
        2,
        1,
        3,
        5,
        6,
    ]
    assert found(shop, order=(left(Buys).credit.desc(), Buys.n.desc())) == [2, 1, 6, 5, 4, 3]


def test_a_missing_end_raises_when_it_is_asked_for(shop: Session) -> None:
    query = shop.query().relations(Buys)
    for windowed in (query, query.as_of(1), query.with_history()):
        dangling = windowed.where(Buys.n == 5).first()
        assert dangling.right.sku == 1
        with pytest.raises(EndpointMissingError, match="'gone'"):
            dangling.left
        with pytest.raises(EndpointMissingError, match="99"):
            windowed.get("b", 99).right


def test_an_end_that_arrives_later_is_found(shop: Session) -> None:
    shop.ensure(Product(sku=99, tier="late"))
    shop.commit()
    query = shop.query().relations(Buys).where(right(Buys).tier == "late")
    assert [r.n for r in query] == [6]
    assert query.as_of(1).count() == 0
    assert query.with_history().count() == 0, "the end was not there when the version was written"
    assert query.as_of(2).first().right.tier == "late"


def test_both_ends_of_the_same_type(session: Session) -> None:
    session.ensure(Customer(id=i, age=a) for i, a in (("a", 1), ("b", 2), ("c", 3)))
    for pair in ("ab", "ba", "bc", "aa"):
        session.ensure(Follows(left_key=pair[0], right_key=pair[1]))
    session.commit()
    base = session.query().relations(Follows)
    for query in (base, base.as_of(1), base.with_history()):

        def pairs(*filters: Any, query: Any = query) -> list[str]:
            return [r.left.id + r.right.id for r in query.where(*filters)]

        assert pairs() == ["aa", "ab", "ba", "bc"]
        assert pairs(left(Follows).age == 1) == ["aa", "ab"]
        assert pairs(right(Follows).age == 1) == ["aa", "ba"]
        assert pairs(left(Follows).age < 2, right(Follows).age > 1) == ["ab"]
        assert pairs((left(Follows).age == 2) & ~(right(Follows).age == 1)) == ["bc"]


def test_an_endpoint_type_that_was_never_committed(session: Session) -> None:
    session.ensure(Buys(left_key="a", right_key=1, n=7))
    session.commit()
    assert found(session, left(Buys).tier == "gold") == []
    assert found(session, left(Buys).tier.is_null()) == [7]
    assert found(session, (left(Buys).age > 1) | (Buys.n == 7)) == [7]
    assert found(session, order=(right(Buys).price,)) == [7]
    with pytest.raises(EndpointMissingError):
        session.query().relations(Buys).first().left


def test_instance_keys_tell_relations_of_a_pair_apart(session: Session) -> None:
    session.ensure([Customer(id="a", age=5), Product(sku=1)])
    session.ensure(Seat(left_key="a", right_key=1, seat=s) for s in ("s2", "s1"))
    session.commit()
    base = session.query().relations(Seat)
    for query in (base, base.as_of(1), base.with_history()):
        assert [r.seat for r in query.where(left(Seat).age == 5)] == ["s1", "s2"]
        assert [r.seat for r in query.where(Seat.seat > "s1")] == ["s2"]


def test_relations_of_many_batches_all_have_their_ends(session: Session) -> None:
    session.ensure(Customer(id=f"{i:05}", age=i) for i in range(5_500))
    session.ensure(Product(sku=1))
    session.commit()
    session.ensure(Buys(left_key=f"{i:05}", right_key=1, n=i) for i in range(5_500))
    session.commit()
    query = session.query().relations(Buys)
    assert all(r.left.age == r.n and r.right.sku == 1 for r in query)
    assert all(r.left.age == r.n for r in query.as_of(2).collect())


def test_ends_of_another_relation_are_refused(session: Session) -> None:
    query = session.query().relations(Buys)
    with pytest.raises(QueryError, match="belongs to Follows"):
        query.where(left(Follows).age == 1)
    with pytest.raises(QueryError, match="belongs to Customer"):
        query.where(Customer.age == 1)
    with pytest.raises(QueryError):
        session.query().entities(Customer).where(left(Buys).age == 1)
    with pytest.raises(QueryError):
        session.query().entities(Customer).where(left(Customer).age == 1)


def test_ends_of_what_is_no_relation_are_refused(session: Session) -> None:
    query = session.query().relations(Buys)
    for bad in (Customer, "Buys", 5, None, Buys(left_key="a", right_key=1)):
        with pytest.raises((QueryError, ModelDefinitionError)):
            query.where(left(bad).tier == "gold")
        with pytest.raises((QueryError, ModelDefinitionError)):
            query.order_by(right(bad).tier)


def test_unknown_fields_of_an_end_are_refused(session: Session) -> None:
    query = session.query().relations(Buys)
    with pytest.raises(QueryError, match="Article has no field 'age'"):
        query.where(right(Buys).age == 1)
    with pytest.raises(QueryError, match="Customer has no field 'nope'"):
        query.order_by(left(Buys).nope)


@pytest.mark.parametrize("mode", ["latest", "as_of", "history"])
def test_ends_never_come_from_another_namespace(open_session: Any, mode: str) -> None:
    own, other = open_session("own"), open_session("other")
    other.ensure([Customer(id="a", tier="theirs"), Product(sku=1, tier="theirs")])
    other.commit()
    own.ensure([Buys(left_key="a", right_key=1, n=1)])
    own.commit()
    base = own.query().relations(Buys)
    query = {"latest": base, "as_of": base.as_of(2), "history": base.with_history()}[mode]
    assert query.where(left(Buys).tier == "theirs").count() == 0
    assert query.where(left(Buys).tier.is_null()).count() == 1
    assert query.group_by(right(Buys).tier).agg() == [{"right.tier": None}]
    with pytest.raises(EndpointMissingError):
        query.first().left
    assert other.query().relations(Buys).count() == 0
    assert own.query().entities(Customer).with_history().count() == 0
