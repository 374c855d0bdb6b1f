"""Order, limit and offset; get, first, and iteration that streams."""

from __future__ import annotations

import enum
import gc
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from threading import Thread
from typing import Any, Literal
from uuid import UUID

import pytest
from support.clock import FakeClock

from ontologia import Entity, Field, OntologiaConfig, QueryError, Relation, Session, ValidationError


class Color(enum.Enum):
    RED = "b-red"
    BLUE = "a-blue"


class Item(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str | None] = Field(default=None)
    whole: Field[int | None] = Field(default=None)
    real: Field[float | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    amount: Field[Decimal | None] = Field(default=None)
    ref: Field[UUID | None] = Field(default=None)
    raw: Field[bytes | None] = Field(default=None)
    color: Field[Color | None] = Field(default=None)
    size: Field[Literal["l", "m", "s"] | None] = Field(default=None)


class Link(Relation[Item, Item]):
    slot: Field[int] = Field(instance_key=True)
    note: Field[str] = Field(default="")


SORTED: dict[str, tuple[str, list[Any]]] = {
    "text": ("text", ["", " ", "A", "a", "ab", "b", "é", "\uffff", "\U0001f600"]),
    "int": ("whole", [-(2**63), -10, -9, 0, 1, 10, 2**63 - 1]),
    "float": ("real", [-1e300, -0.5, 0.0, 5e-324, 0.1, 1.0, 1e300]),
    "bool": ("flag", [False, True]),
    "naive datetime": ("at", [datetime(1, 1, 1), datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 1)]),
    "aware datetime": ("at", [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 30)]),
    "date": ("day", [date(1, 1, 1), date(999, 1, 1), date(2024, 12, 31)]),
    "decimal": (
        "amount",
        [Decimal(t) for t in ("-1E+9", "-10", "-9.5", "-0.1", "0", "1E-9", "2", "10", "1E+30")],
    ),
    "uuid": ("ref", [UUID(int=i) for i in (0, 1, 2**100, 2**128 - 1)]),
    "bytes": ("raw", [b"", b"\x00", b"\x00\x01", b"a", b"\xff"]),
    "enum by value": ("color", [Color.BLUE, Color.RED]),
    "literal": ("size", ["l", "m", "s"]),
}


@pytest.mark.parametrize("kind", SORTED)
def test_every_scalar_sorts_with_nulls_lowest(session: Session, kind: str) -> None:
    field, values = SORTED[kind]
    shuffled = random.Random(7).sample(values, len(values))
    session.ensure(Item(id=f"{i}", **{field: v}) for i, v in enumerate(shuffled))
    session.ensure(Item(id="null"))
    session.commit()
    ref, query = getattr(Item, field), session.query().entities(Item)
    for windowed in (query, query.as_of(1), query.with_history()):
        ascending = [getattr(o, field) for o in windowed.order_by(ref)]
        assert ascending == [None, *values]
        assert [getattr(o, field) for o in windowed.order_by(ref.asc())] == ascending
        assert [getattr(o, field) for o in windowed.order_by(ref.desc())] == ascending[::-1]


@pytest.fixture
def items(session: Session) -> Session:
    """A session with five items, whose text is shared by some and missing in one."""
    rows = [("e", "x", 1), ("d", "y", 1), ("c", "x", 2), ("b", None, 1), ("a", "y", None)]
    session.ensure(Item(id=i, text=t, whole=w) for i, t, w in rows)
    session.commit()
    return session


def ids(query: Any) -> str:
    return "".join(item.id for item in query.collect())


def test_without_an_order_the_key_decides(items: Session) -> None:
    query = items.query().entities(Item)
    assert ids(query) == ids(query.as_of(1)) == ids(query.with_history()) == "abcde"


def test_ties_are_settled_by_the_next_field_then_by_the_key(items: Session) -> None:
    query = items.query().entities(Item)
    for windowed in (query, query.as_of(1), query.with_history()):
        assert ids(windowed.order_by(Item.text)) == "bcead"
        assert ids(windowed.order_by(Item.text.desc())) == "adceb"
        assert ids(windowed.order_by(Item.text, Item.whole.desc())) == "bceda"
        assert ids(windowed.order_by(Item.whole.desc(), Item.text)) == "cbeda"
        assert ids(windowed.order_by(Item.text.desc(), Item.id.desc())) == "daecb"


def test_the_last_order_counts(items: Session) -> None:
    query = items.query().entities(Item).order_by(Item.text)
    assert ids(query.order_by(Item.id.desc())) == "edcba"


def test_decimals_that_are_equal_numbers_tie(session: Session) -> None:
    for key, amount in (("c", "1.0"), ("a", "1.00"), ("b", "1"), ("d", "0.9")):
        session.ensure(Item(id=key, amount=Decimal(amount)))
    session.commit()
    query = session.query().entities(Item)
    assert ids(query.order_by(Item.amount)) == ids(query.as_of(1).order_by(Item.amount)) == "dabc"


def test_limit_and_offset_cut_the_sorted_result(items: Session) -> None:
    query = items.query().entities(Item)
    for windowed in (query, query.as_of(1), query.with_history()):
        assert ids(windowed.limit(2)) == "ab"
        assert ids(windowed.offset(3)) == "de"
        assert ids(windowed.limit(2).offset(1)) == "bc"
        assert ids(windowed.limit(0)) == ""
        assert ids(windowed.limit(100)) == "abcde"
        assert ids(windowed.offset(100)) == ""
        assert ids(windowed.limit(2**63 - 1).offset(4)) == "e"
        assert ids(windowed.limit(2**63 - 1).offset(2**63 - 1)) == ""
        assert ids(windowed.order_by(Item.id.desc()).limit(1)) == "e"
        assert ids(windowed.where(Item.text == "x").offset(1)) == "e"


def test_the_last_limit_and_offset_count(items: Session) -> None:
    assert ids(items.query().entities(Item).limit(1).offset(4).limit(2).offset(0)) == "ab"


def test_builders_never_change(items: Session) -> None:
    query = items.query().entities(Item)
    query.where(Item.id == "a"), query.limit(1), query.offset(1), query.as_of(0)
    query.order_by(Item.id.desc()), query.with_history(), query.history_since(1)
    assert ids(query) == "abcde"


@pytest.mark.parametrize("bad", [-1, True, False, 1.0, "1", None, 2**63, -(2**63)])
def test_limits_that_make_no_sense_are_refused(session: Session, bad: Any) -> None:
    query = session.query().entities(Item)
    for method in (query.limit, query.offset):
        with pytest.raises(QueryError, match="makes no sense"):
            method(bad)


def test_first_is_the_first_or_none(items: Session) -> None:
    query = items.query().entities(Item)
    for windowed in (query, query.as_of(1), query.with_history()):
        assert windowed.first() == Item(id="a", text="y")
        assert windowed.order_by(Item.id.desc()).first() == Item(id="e", text="x", whole=1)
        assert windowed.offset(1).first() == Item(id="b", whole=1)
        assert windowed.where(Item.text == "nothing").first() is None
        assert windowed.limit(0).first() is None


def test_get_finds_by_key(items: Session) -> None:
    query = items.query().entities(Item)
    for windowed in (query, query.as_of(1), query.with_history(), query.history_since(0)):
        assert windowed.get("c") == Item(id="c", text="x", whole=2)
        assert windowed.get("nothing") is None
        assert windowed.where(Item.text == "x").get("c") == Item(id="c", text="x", whole=2)
        assert windowed.where(Item.text == "y").get("c") is None


class Shelf(Entity):
    day: Field[date] = Field(primary_key=True)


class Box(Entity):
    ref: Field[UUID] = Field(primary_key=True)


class Bin(Entity):
    number: Field[int] = Field(primary_key=True)


class Tone(Entity):
    color: Field[Color] = Field(primary_key=True)


KEYS = [
    (Shelf, "day", date(2024, 2, 29)),
    (Box, "ref", UUID(int=5)),
    (Bin, "number", -3),
    (Tone, "color", Color.RED),
]


@pytest.mark.parametrize(("cls", "name", "key"), KEYS)
def test_get_takes_every_type_of_key(session: Session, cls: Any, name: str, key: Any) -> None:
    session.ensure(cls(**{name: key}))
    session.commit()
    query = session.query().entities(cls)
    for windowed in (query, query.as_of(1), query.with_history()):
        assert getattr(windowed.get(key), name) == key
        assert [getattr(o, name) for o in windowed.where(getattr(cls, name) == key)] == [key]


def test_keys_sort_by_value_not_by_text(session: Session) -> None:
    session.ensure(Bin(number=n) for n in (10, 9, -1, -10, 100))
    session.commit()
    query = session.query().entities(Bin)
    for windowed in (query, query.as_of(1), query.with_history()):
        assert [b.number for b in windowed] == [-10, -1, 9, 10, 100]


def test_get_of_a_relation_takes_both_ends_and_the_instance(items: Session) -> None:
    items.ensure([Link(left_key="a", right_key="b", slot=s, note=f"n{s}") for s in (0, 1)])
    items.commit()
    query = items.query().relations(Link)
    for windowed in (query, query.as_of(2), query.with_history()):
        assert windowed.get("a", "b", 0).note == "n0"
        assert windowed.get("a", "b", 1).right.id == "b"
        assert windowed.get("b", "a", 1) is None
        assert windowed.where(Link.note == "n0").get("a", "b", 1) is None
    with pytest.raises(QueryError, match="3 keys"):
        query.get("a", "b")


def test_get_refuses_keys_of_another_type(session: Session) -> None:
    with pytest.raises(ValidationError):
        session.query().entities(Item).get(5)
    with pytest.raises(ValidationError):
        session.query().entities(Bin).get("many")
    with pytest.raises(ValidationError):
        session.query().entities(Item).get(None)


def test_get_in_history_is_the_newest_matching_version(session: Session) -> None:
    for n in (1, 2, 3):
        session.ensure(Item(id="a", whole=n, text="old" if n < 3 else "new"))
        session.commit()
    history = session.query().entities(Item).with_history()
    assert history.get("a").whole == 3
    assert history.where(Item.text == "old").get("a").whole == 2
    assert history.where(Item.text == "old").order_by(Item.whole.desc()).get("a").whole == 2
    assert session.query().entities(Item).history_since(3).get("a") is None


def test_iteration_gives_what_collect_gives(items: Session) -> None:
    query = items.query().entities(Item).where(Item.text.is_not_null()).order_by(Item.whole)
    assert list(query) == query.collect()
    assert [i.id for i in query] == ["a", "d", "e", "c"]


def fill(session: Session, n: int) -> None:
    session.ensure(Item(id=f"{i:06}", whole=0) for i in range(n))
    session.commit()


def test_iteration_sees_one_moment_while_commits_go_on(session: Session) -> None:
    fill(session, 6_000)
    seen = 0
    for item in session.query().entities(Item):
        assert item.whole == 0
        if seen in (0, 5_500):
            session.ensure(Item(id=f"{i:06}", whole=1) for i in range(0, 6_000, 50))
            session.ensure(Item(id=f"new {seen}", whole=2))
            session.commit()
        seen += 1
    assert seen == 6_000
    assert session.query().entities(Item).where(Item.whole > 0).count() == 122


def test_queries_may_run_inside_an_iteration(items: Session) -> None:
    query = items.query().entities(Item)
    found = [(a.id, query.get(a.id).id, query.count(), [b.id for b in query]) for a in query]
    assert found == [(i, i, 5, list("abcde")) for i in "abcde"]


def test_an_iteration_left_early_holds_nothing(session: Session) -> None:
    fill(session, 6_000)
    for _ in session.query().entities(Item):
        break
    session.ensure(Item(id="after"))
    assert session.commit() == 2
    assert session.query().entities(Item).count() == 6_001


def test_an_iteration_left_open_does_not_stop_other_writers(uri: str, clock: FakeClock) -> None:
    config = OntologiaConfig(lock_timeout_ms=2_000)
    with Session(uri, config=config, clock=clock) as session:
        fill(session, 6_000)
        iterator = iter(session.query().entities(Item))
        next(iterator)
        results: list[Any] = []

        def write() -> None:
            session.ensure(Item(id="from a thread"))
            results.append(session.commit())

        thread = Thread(target=write)
        thread.start()
        thread.join()
        assert results == [2]
        assert sum(1 for _ in iterator) == 5_999


def test_an_iteration_that_was_never_started_reads_when_it_starts(items: Session) -> None:
    iterator = iter(items.query().entities(Item))
    items.ensure(Item(id="z"))
    items.commit()
    assert len(list(iterator)) == 6


def test_a_failing_consumer_releases_the_reader(session: Session) -> None:
    fill(session, 6_000)

    def fail() -> None:
        for item in session.query().entities(Item):
            raise LookupError(item.id)

    with pytest.raises(LookupError, match="000000"):
        fail()
    gc.collect()
    session.ensure(Item(id="after"))
    assert session.commit() == 2


def test_iterating_relations_brings_their_endpoints(items: Session) -> None:
    items.ensure(Link(left_key="a", right_key=r, slot=0) for r in "bcde")
    items.commit()
    found = [(r.left.id, r.right.id) for r in items.query().relations(Link)]
    assert found == [("a", r) for r in "bcde"]


def test_types_that_were_never_committed_are_empty(session: Session) -> None:
    session.ensure(Bin(number=1))
    session.commit()
    for query in (session.query().entities(Item), session.query().relations(Link)):
        for windowed in (
            query,
            query.as_of(1),
            query.as_of(datetime.now(UTC) + timedelta(days=9_999)),
            query.with_history(),
            query.history_since(0),
        ):
            assert windowed.collect() == [] == list(windowed) == windowed.to_dicts()
            assert windowed.first() is None
            assert windowed.count() == 0
    assert session.query().entities(Item).get("a") is None
    assert session.query().relations(Link).get("a", "b", 1) is None
    assert session.query().entities(Item).max(Item.whole) is None


def test_an_empty_store_answers_every_query(session: Session) -> None:
    query = session.query().entities(Item)
    assert query.collect() == []
    assert query.as_of(0).count() == 0
    assert query.group_by(Item.text).agg() == []
    assert query.via(Link).collect() == []
    assert query.via(Link).without_relations().count() == 0
