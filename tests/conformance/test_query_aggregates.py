"""Aggregates over all results, and per group."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest

from ontologia import Entity, Field, QueryError, Relation, Session, count, count_where, left, right


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Sale(Entity):
    id: Field[int] = Field(primary_key=True)
    shop: Field[str | None] = Field(default=None)
    n: Field[int | None] = Field(default=None)
    weight: Field[float | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    ref: Field[UUID | None] = Field(default=None)
    raw: Field[bytes | None] = Field(default=None)
    paid: Field[bool | None] = Field(default=None)
    color: Field[Color | None] = Field(default=None)
    rate: Field[Literal[1, 2, 3] | None] = Field(default=None)
    tags: Field[list[str] | None] = Field(default=None)
    data: Field[dict[str, Any]] = Field(default_factory=dict)


def query(session: Session, *sales: Sale) -> list[Any]:
    """Queries over these sales now, in the past and in history: all must agree."""
    session.ensure(sales)
    session.commit()
    found = session.query().entities(Sale)
    return [found, found.as_of(1), found.with_history()]


def sales(field: str, *values: Any) -> list[Sale]:
    return [Sale(id=i, **{field: v}) for i, v in enumerate(values)]


def test_count_counts_results(session: Session) -> None:
    for q in query(session, *sales("n", 1, 2, None)):
        assert q.count() == 3
        assert q.where(Sale.n > 1).count() == 1
        assert q.where(Sale.n > 5).count() == 0
        assert type(q.count()) is int


def test_count_where_counts_what_also_matches(session: Session) -> None:
    for q in query(session, *sales("n", 1, 2, 3, None)):
        assert q.count_where(Sale.n > 1) == 2
        assert q.count_where(~(Sale.n > 1)) == 1
        assert q.where(Sale.n < 3).count_where(Sale.n > 1) == 1
        assert q.count_where(Sale.n.is_null() | (Sale.n == 1)) == 2
        assert q.where(Sale.n > 9).count_where(Sale.n > 1) == 0


def test_sums_and_means_leave_nulls_out(session: Session) -> None:
    for q in query(session, *sales("n", 1, 2, None, 6)):
        assert (q.sum(Sale.n), q.avg(Sale.n), q.min(Sale.n), q.max(Sale.n)) == (9, 3.0, 1, 6)
        assert type(q.sum(Sale.n)) is int
        assert type(q.avg(Sale.n)) is float


def test_aggregates_over_nothing_are_none(session: Session) -> None:
    for q in query(session, Sale(id=1)):
        for empty in (q, q.where(Sale.id == 99)):
            for field in (Sale.n, Sale.weight, Sale.price):
                assert empty.sum(field) is None
                assert empty.avg(field) is None
                assert empty.min(field) is None
                assert empty.max(field) is None
            assert empty.avg_len(Sale.tags) is None
            assert empty.max(Sale.at) is None
            assert empty.count_where(Sale.n > 0) == 0


def test_sums_of_floats(session: Session) -> None:
    for q in query(session, *sales("weight", 0.5, 0.25, None, -4.0)):
        assert q.sum(Sale.weight) == -3.25
        assert q.avg(Sale.weight) == -3.25 / 3
        assert (q.min(Sale.weight), q.max(Sale.weight)) == (-4.0, 0.5)
        assert type(q.sum(Sale.weight)) is float


def test_sums_of_whole_floats_stay_floats(session: Session) -> None:
    for q in query(session, *sales("weight", 1.0, 2.0)):
        assert type(q.sum(Sale.weight)) is float
        assert type(q.max(Sale.weight)) is float


def test_sums_of_integers_may_exceed_64_bits(session: Session) -> None:
    big = 2**63 - 1
    for q in query(session, *sales("n", big, big, 7)):
        assert q.sum(Sale.n) == 2 * big + 7
        assert q.avg(Sale.n) == pytest.approx((2 * big + 7) / 3)
        (row,) = q.group_by(Sale.shop).agg(total=Sale.n.sum(), n=count())
        assert row == {"shop": None, "total": 2 * big + 7, "n": 3}
        assert q.group_by(Sale.shop).having(Sale.n.sum() > big).agg(n=count()) != []
        assert q.group_by(Sale.shop).having(Sale.n.sum() < big).agg(n=count()) == []


def test_sums_that_pass_64_bits_on_the_way_are_exact(session: Session) -> None:
    big = 2**63 - 1
    for q in query(session, *sales("n", big, big, -big, -big, 5)):
        assert q.sum(Sale.n) == 5


def test_means_of_large_integers_keep_the_small_ones(session: Session) -> None:
    big = 2**63 - 1
    for q in query(session, *sales("n", big, 1, -big)):
        assert q.avg(Sale.n) == pytest.approx(1 / 3)
        assert q.group_by(Sale.shop).having(Sale.n.avg() > 0).agg(n=count()) != []


def test_decimals_are_summed_exactly(session: Session) -> None:
    prices = [Decimal(t) for t in ("0.1", "0.2", "1E+20", "-0.30", "0.0000000000000000000001")]
    for q in query(session, *sales("price", *prices, None)):
        assert q.sum(Sale.price) == Decimal("100000000000000000000.0000000000000000000001")
        assert q.min(Sale.price) == Decimal("-0.3")
        assert q.max(Sale.price) == Decimal("1E20")
        assert type(q.max(Sale.price)) is Decimal
    assert session.query().entities(Sale).where(Sale.id < 2).avg(Sale.price) == Decimal("0.15")


def test_mean_of_decimals_has_28_digits(session: Session) -> None:
    for q in query(session, *sales("price", Decimal(1), Decimal(1), Decimal(0))):
        assert q.avg(Sale.price) == Decimal("0.6666666666666666666666666667")


EXTREMES: dict[str, tuple[str, list[Any]]] = {
    "text": ("shop", ["a", "Z", "é", "\U0001f600", "\uffff"]),
    "datetime": ("at", [datetime(2024, 1, d, tzinfo=UTC) for d in (2, 1, 3)]),
    "date": ("day", [date(2024, 1, 2), date(1, 1, 1)]),
    "uuid": ("ref", [UUID(int=5), UUID(int=2**100), UUID(int=1)]),
    "bytes": ("raw", [b"b", b"", b"\xff\x00"]),
    "decimal": ("price", [Decimal("-9"), Decimal("-10"), Decimal("9"), Decimal("10.0")]),
    "literal": ("rate", [2, 1, 3]),
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_min_and_max_of_every_type_with_an_order(session: Session, kind: str) -> None:
    field, values = EXTREMES[kind]
    ref = getattr(Sale, field)
    for q in query(session, *sales(field, *values, None)):
        assert (q.min(ref), q.max(ref)) == (min(values), max(values))
        assert type(q.min(ref)) is type(values[0])


def test_avg_len_is_the_mean_length_of_lists(session: Session) -> None:
    rows = [Sale(id=1, tags=["a", "b", "c"]), Sale(id=2, tags=[]), Sale(id=3)]
    rows.append(Sale(id=4, data={"list": [1], "text": "abc"}))
    for q in query(session, *rows):
        assert q.avg_len(Sale.tags) == 1.5
        assert q.avg_len(Sale.data["list"]) == 1.0
        assert q.avg_len(Sale.data["text"]) is None
        assert q.where(Sale.id == 2).avg_len(Sale.tags) == 0.0


def test_aggregates_of_literals_and_nested_numbers(session: Session) -> None:
    for q in query(session, *sales("rate", 1, 3, None)):
        assert (q.sum(Sale.rate), q.avg(Sale.rate)) == (4, 2.0)


@pytest.fixture
def shops(session: Session) -> list[Any]:
    """Queries over six sales in shops a, b and none."""
    return query(
        session,
        Sale(id=1, shop="b", n=1, price=Decimal("1.10"), paid=True, tags=["x"]),
        Sale(id=2, shop="a", n=2, price=Decimal("2.20"), paid=True),
        Sale(id=3, shop="b", n=3, paid=False, tags=["x", "y", "z"]),
        Sale(id=4, shop="a", n=4, price=Decimal("-1"), paid=False),
        Sale(id=5, shop="b", paid=True),
        Sale(id=6, n=100),
    )


def test_groups_come_in_the_order_of_their_keys(shops: list[Any]) -> None:
    for q in shops:
        assert q.group_by(Sale.shop).agg(n=count(), total=Sale.n.sum()) == [
            {"shop": None, "n": 1, "total": 100},
            {"shop": "a", "n": 2, "total": 6},
            {"shop": "b", "n": 3, "total": 4},
        ]


def test_every_aggregate_works_per_group(shops: list[Any]) -> None:
    for q in shops:
        rows = (
            q.where(Sale.shop.is_not_null())
            .group_by(Sale.shop)
            .agg(
                total=Sale.price.sum(),
                mean=Sale.n.avg(),
                least=Sale.price.min(),
                most=Sale.n.max(),
                length=Sale.tags.avg_len(),
                paid=count_where(Sale.paid.is_true()),
            )
        )
        assert rows == [
            {
                "shop": "a",
                "total": Decimal("1.20"),
                "mean": 3.0,
                "least": Decimal("-1"),
                "most": 4,
                "length": None,
                "paid": 1,
            },
            {
                "shop": "b",
                "total": Decimal("1.10"),
                "mean": 2.0,
                "least": Decimal("1.1"),
                "most": 3,
                "length": 2.0,
                "paid": 2,
            },
        ]


def test_several_keys_make_one_group_per_combination(shops: list[Any]) -> None:
    for q in shops:
        assert q.group_by(Sale.shop, Sale.paid).agg(n=count()) == [
            {"shop": None, "paid": None, "n": 1},
            {"shop": "a", "paid": False, "n": 1},
            {"shop": "a", "paid": True, "n": 1},
            {"shop": "b", "paid": False, "n": 1},
            {"shop": "b", "paid": True, "n": 2},
        ]
        first = q.group_by(Sale.paid, Sale.shop).agg()
        assert first[0] == {"paid": None, "shop": None}
        assert [row["paid"] for row in first] == [None, False, False, True, True]


def test_groups_without_aggregates_are_the_distinct_keys(shops: list[Any]) -> None:
    for q in shops:
        assert q.group_by(Sale.shop).agg() == [{"shop": None}, {"shop": "a"}, {"shop": "b"}]


def test_where_comes_before_groups(shops: list[Any]) -> None:
    for q in shops:
        assert q.where(Sale.n > 3).group_by(Sale.shop).agg(n=count()) == [
            {"shop": None, "n": 1},
            {"shop": "a", "n": 1},
        ]
        assert q.where(Sale.n > 1_000).group_by(Sale.shop).agg(n=count()) == []


HAVING: dict[str, tuple[Any, list[str | None]]] = {
    "count": (count() > 1, ["a", "b"]),
    "count equal": (count() == 1, [None]),
    "count not equal": (count() != 2, [None, "b"]),
    "count in": (count().in_([1, 3]), [None, "b"]),
    "count not in": (~count().in_([1, 3]), ["a"]),
    "in nothing": (count().in_([]), []),
    "not in nothing": (~count().in_([]), [None, "a", "b"]),
    "count and fraction": (count() > 2.5, ["b"]),
    "sum": (Sale.n.sum() >= 6, [None, "a"]),
    "decimal sum": (Sale.price.sum() > Decimal("1.1"), ["a"]),
    "decimal sum with an integer": (Sale.price.sum() > 1, ["a", "b"]),
    "decimal sum equal": (Sale.price.sum() == Decimal("1.1000"), ["b"]),
    "decimal mean": (Sale.price.avg() < Decimal("1"), ["a"]),
    "decimal minimum": (Sale.price.min() < 0, ["a"]),
    "mean": (Sale.n.avg() == 2.0, ["b"]),
    "maximum": (Sale.n.max() < 4, ["b"]),
    "null": (Sale.price.sum().is_null(), [None]),
    "not null": (Sale.price.sum().is_not_null(), ["a", "b"]),
    "negated null": (~Sale.price.sum().is_null(), ["a", "b"]),
    "nothing compares with null": (~(Sale.price.sum() > 1), []),
    "count_where": (count_where(Sale.paid.is_true()) == 2, ["b"]),
    "length": (Sale.tags.avg_len() >= 2, ["b"]),
    "no length": (Sale.tags.avg_len().is_null(), [None, "a"]),
    "text": (Sale.shop.min() == "a", ["a"]),
    "and": ((count() > 1) & (Sale.n.sum() > 5), ["a"]),
    "or": ((count() == 1) | (Sale.n.sum() == 4), [None, "b"]),
    "not and": (~((count() > 1) & (Sale.n.sum() > 5)), [None, "b"]),
    "not or": (~((count() == 1) | (Sale.n.sum() == 4)), ["a"]),
}


@pytest.mark.parametrize("case", HAVING)
def test_having_keeps_groups_by_their_aggregates(shops: list[Any], case: str) -> None:
    condition, expected = HAVING[case]
    for q in shops:
        found = q.group_by(Sale.shop).having(condition).agg(n=count())
        assert [row["shop"] for row in found] == expected


def test_several_conditions_on_groups_must_all_hold(shops: list[Any]) -> None:
    for q in shops:
        grouped = q.group_by(Sale.shop)
        both = grouped.having(count() > 1, Sale.n.sum() > 5)
        assert both.agg(n=count()) == [{"shop": "a", "n": 2}]
        chained = grouped.having(count() > 1).having(Sale.n.sum() > 5)
        assert chained.agg(n=count()) == both.agg(n=count())
        assert len(grouped.agg()) == 3, "a builder never changes"


GROUP_KEYS: dict[str, tuple[str, list[Any]]] = {
    "int": ("n", [2, 10, -1]),
    "float": ("weight", [0.5, -1.5]),
    "bool": ("paid", [True, False]),
    "decimal": ("price", [Decimal("10"), Decimal("9.5"), Decimal("-10.5"), Decimal(0)]),
    "aware": ("at", [datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
    "naive": ("at", [datetime(2024, 1, 2), datetime(2024, 1, 1)]),
    "date": ("day", [date(2024, 1, 2), date(2024, 1, 1)]),
    "uuid": ("ref", [UUID(int=5), UUID(int=1)]),
    "bytes": ("raw", [b"b", b"\x00"]),
    "enum": ("color", [Color.RED, Color.BLUE]),
    "literal": ("rate", [3, 1]),
}


@pytest.mark.parametrize("kind", GROUP_KEYS)
def test_every_scalar_can_be_a_group_key(session: Session, kind: str) -> None:
    field, values = GROUP_KEYS[kind]
    ordered = sorted(values, key=lambda v: v.value if isinstance(v, Color) else v)
    for q in query(session, *sales(field, *values, *values, None)):
        found = q.group_by(getattr(Sale, field)).agg(size=count())
        assert found == [{field: None, "size": 1}, *({field: v, "size": 2} for v in ordered)]
        assert [type(row[field]) for row in found[1:]] == [type(v) for v in ordered]


def test_decimals_that_are_equal_numbers_are_one_group(session: Session) -> None:
    prices = [Decimal(t) for t in ("1.0", "1.00", "1", "10", "1E+1", "-0", "0.00")]
    for q in query(session, *sales("price", *prices)):
        found = q.group_by(Sale.price).agg(n=count())
        assert found == [
            {"price": Decimal(0), "n": 2},
            {"price": Decimal(1), "n": 3},
            {"price": Decimal(10), "n": 2},
        ]


def test_group_keys_at_a_path_are_named_by_it(session: Session) -> None:
    class Parcel(Entity):
        id: Field[int] = Field(primary_key=True)
        by_name: Field[dict[str, int]] = Field(default_factory=dict)

    session.ensure(Parcel(id=i, by_name={"kg": i % 2}) for i in range(3))
    session.commit()
    q = session.query().entities(Parcel)
    expected = [{"by_name.kg": 0, "n": 2}, {"by_name.kg": 1, "n": 1}]
    assert q.group_by(Parcel.by_name["kg"]).agg(n=count()) == expected
    assert q.as_of(1).group_by(Parcel.by_name["kg"]).agg(n=count()) == expected


class Buyer(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)
    credit: Field[Decimal] = Field(default=Decimal(0))


class Buys(Relation[Buyer, Sale]):
    n: Field[int] = Field(default=1)


def test_aggregates_and_groups_over_endpoint_fields(session: Session) -> None:
    session.ensure([Buyer(id="x", tier="gold", credit=Decimal("1.5")), Buyer(id="y")])
    session.ensure([Sale(id=1, shop="a", n=10), Sale(id=2, shop="b", n=20)])
    for who, sale, n in (("x", 1, 1), ("x", 2, 2), ("y", 1, 3), ("gone", 2, 4), ("y", 99, 5)):
        session.ensure(Buys(left_key=who, right_key=sale, n=n))
    session.commit()
    base = session.query().relations(Buys)
    for q in (base, base.as_of(1), base.with_history()):
        assert q.group_by(left(Buys).tier).agg(n=count(), total=Buys.n.sum()) == [
            {"left.tier": None, "n": 3, "total": 12},
            {"left.tier": "gold", "n": 2, "total": 3},
        ]
        assert q.group_by(right(Buys).shop, left(Buys).id).agg(n=right(Buys).n.sum()) == [
            {"right.shop": None, "left.id": "y", "n": None},
            {"right.shop": "a", "left.id": "x", "n": 10},
            {"right.shop": "a", "left.id": "y", "n": 10},
            {"right.shop": "b", "left.id": None, "n": 20},
            {"right.shop": "b", "left.id": "x", "n": 20},
        ]
        assert q.group_by(Buys.n, right(Buys).n).having(right(Buys).n.max() > 10).agg() == [
            {"n": 2, "right.n": 20},
            {"n": 4, "right.n": 20},
        ]
        assert q.sum(left(Buys).credit) == Decimal("3.0")
        assert q.max(right(Buys).shop) == "b"
        assert q.avg(right(Buys).n) == 15.0
        assert q.count_where((left(Buys).tier == "gold") | (Buys.n > 4)) == 3
        gold = q.group_by(right(Buys).shop).agg(n=count_where(left(Buys).tier == "gold"))
        assert [row["n"] for row in gold] == [0, 1, 1]
        assert q.group_by(Buys.left_key).agg(n=count())[0] == {"left_key": "gone", "n": 1}


def test_aggregates_refuse_limit_and_offset(shops: list[Any]) -> None:
    for q in shops:
        for cut in (q.limit(1), q.offset(1)):
            for aggregate in (
                cut.count,
                lambda cut=cut: cut.sum(Sale.n),
                lambda cut=cut: cut.group_by(Sale.shop).agg(n=count()),
            ):
                with pytest.raises(QueryError, match="aggregate runs over all results"):
                    aggregate()


def test_aggregates_ignore_the_order(shops: list[Any]) -> None:
    for q in shops:
        assert q.order_by(Sale.n.desc()).sum(Sale.n) == 110
        assert [r["shop"] for r in q.order_by(Sale.n).group_by(Sale.shop).agg()] == [None, "a", "b"]
