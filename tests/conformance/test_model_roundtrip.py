"""What is read back is exactly what was ensured, and ensuring it again changes nothing."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontologia import Entity, Event, Field, Session


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Ratio(enum.Enum):
    HALF = 0.5


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(slots=True)
class Line:
    start: Point
    ends: list[Point] = field(default_factory=list)
    label: str | None = None


@dataclass
class Doubled:
    """Changes its member when constructed: reading back must not do it again."""

    n: int

    def __post_init__(self) -> None:
        self.n *= 2


class Money(pydantic.BaseModel):
    amount: Decimal
    currency: str = "EUR"


class Bill(pydantic.BaseModel):
    total: Money
    lines: list[Money] = []
    due: date | None = None


class Aliased(pydantic.BaseModel):
    street_name: str = pydantic.Field(alias="streetName")


class Frozen(pydantic.BaseModel, frozen=True):
    n: int


def _same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down (zeros with the same sign)."""
    if type(a) is not type(b) or a != b:
        return False
    if isinstance(a, dict):
        return all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, set | frozenset):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, datetime):
        return (a.tzinfo is None) == (b.tzinfo is None)
    if isinstance(a, pydantic.BaseModel):
        return _same(dict(a), dict(b))
    if isinstance(a, Line):
        return _same([a.start, a.ends, a.label], [b.start, b.ends, b.label])
    return not isinstance(a, Point) or _same((a.x, a.y), (b.x, b.y))


def _check_round_trip(session: Session, cls: type[Any], value: Any) -> None:
    """Ensure, read back in every mode, and ensure again."""
    thing = cls(id="1", x=value)
    assert _same(thing.x, value)
    session.ensure(thing)
    commit_id = session.commit()
    query = session.query().entities(cls)
    found = [
        query.get("1"),
        query.first(),
        query.as_of(commit_id).get("1"),
        query.as_of(commit_id).first(),
        query.with_history().first(),
    ]
    for other in found:
        assert other == thing
        assert _same(other.x, value), (other.x, value)
    for other in (cls(id="1", x=value), *found):
        session.ensure(other)
        assert session.commit() is None


CASES: list[tuple[Any, Any]] = [
    (str, ""),
    (str, "a'\"\\%_\n\u2028\u00e9\U0001f600"),
    (int, -(2**63)),
    (int, 2**63 - 1),
    (float, 0.1),
    (float, 5e-324),
    (float, 1.7976931348623157e308),
    (float, 1e22),
    (float, 3.0),
    (bool, True),
    (bool, False),
    (datetime, datetime(2026, 1, 1)),
    (datetime, datetime(1, 1, 1, tzinfo=UTC)),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (datetime, datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=-7, minutes=-30)))),
    (pydantic.AwareDatetime, datetime(2026, 1, 1, tzinfo=UTC)),
    (pydantic.NaiveDatetime, datetime(2026, 1, 1, 0, 0, 0, 1)),
    (date, date(9999, 12, 31)),
    (Decimal, Decimal("1.50")),
    (Decimal, Decimal("-0.00")),
    (Decimal, Decimal("1E+30")),
    (Decimal, Decimal("123456789012345678901234567890.123456789")),
    (UUID, UUID(int=2**128 - 1)),
    (bytes, b""),
    (bytes, bytes(range(256))),
    (Color, Color.BLUE),
    (Level, Level.HIGH),
    (Ratio, Ratio.HALF),
    (Literal["a", "b"], "a"),
    (Literal[1, 2], 2),
    (Literal[True], True),
    (Literal["a", None], None),
    (str | None, None),
    (Decimal | None, Decimal("0")),
    (list[int], []),
    (list[list[int | None]], [[1, None], []]),
    (list, [1, "a", None, [1.5], {"k": True}]),
    (tuple[int, str], (1, "a")),
    (tuple[float, ...], (1.0, -2.5)),
    (tuple[()], ()),
    (tuple, (1, "a", [None])),
    (set[int], {3, 1, 2}),
    (set[Color], {Color.RED, Color.BLUE}),
    (frozenset[str], frozenset({"b", "a"})),
    (set[tuple[int, int]], {(1, 2), (0, 9)}),
    (dict, {"b": 1, "a": [None, {"c": "d"}]}),
    (dict[str, Any], {"": 1, "x.y": 2, "$": 1.0, "'": True}),
    (dict[int, str], {2: "b", -1: "a"}),
    (dict[float, int], {1.0: 1, 0.5: 2}),
    (dict[bool, int], {True: 1, False: 0}),
    (dict[date, Decimal], {date(2026, 1, 1): Decimal("1.0")}),
    (dict[UUID, bytes], {UUID(int=1): b"\0"}),
    (dict[Color, tuple[int, ...]], {Color.RED: (1, 2)}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[datetime, int], {datetime(2026, 1, 1): 1, datetime(2026, 1, 1, tzinfo=UTC): 2}),
    (dict[bytes, str], {b"\xff": "a"}),
    (Any, {"a": [1, 1.0, True, None, "x"]}),
    (Any, None),
    (Address, {"street": "s"}),
    (Address, {"street": "s", "zip": "z"}),
    (list[Address], [{"street": "s"}]),
    (Point, Point(1, 2.0)),
    (Point | None, None),
    (Line, Line(Point(1), [Point(2, 3.0)], "l")),
    (dict[str, Line], {"a": Line(Point(1))}),
    (set[Point], {Point(1), Point(2)}),
    (Money, Money(amount=Decimal("1.10"))),
    (Bill, Bill(total=Money(amount=Decimal("2")), lines=[Money(amount=Decimal("2"))])),
    (tuple[Money, Point], (Money(amount=Decimal("0.10")), Point(0))),
    (set[Frozen], {Frozen(n=1), Frozen(n=2)}),
    (Aliased, Aliased(streetName="High Street")),
    (Annotated[int, pydantic.Field(gt=0)], 1),
]


@pytest.mark.parametrize(
    ("hint", "value"), CASES, ids=[f"{i}-{str(c[0])[:40]}" for i, c in enumerate(CASES)]
)
def test_values_round_trip_exactly(session: Session, hint: Any, value: Any):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[hint]

    _check_round_trip(session, Thing, value)


def test_dataclasses_are_rebuilt_without_running_their_constructor(session: Session):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[Doubled]

    _check_round_trip(session, Thing, Doubled(2))


def test_aware_and_naive_times_are_kept_apart(session: Session):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[datetime]

    session.ensure(Thing(id="1", x=datetime(2026, 1, 1)))
    session.commit()
    session.ensure(Thing(id="1", x=datetime(2026, 1, 1, tzinfo=UTC)))
    assert session.commit() == 2
    naive, aware = session.query().entities(Thing).with_history().collect()
    assert naive.x == datetime(2026, 1, 1)
    assert aware.x == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_same_moment_in_another_time_zone_is_no_change(session: Session):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[datetime]

    session.ensure(Thing(id="1", x=datetime(2026, 1, 1, 12, tzinfo=UTC)))
    session.commit()
    session.ensure(Thing(id="1", x=datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))))
    assert session.commit() is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zero_keeps_one_sign_everywhere(session: Session, sign: float):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[float]
        xs: Field[list[float]]

    zero = math.copysign(0.0, sign)
    thing = Thing(id="1", x=zero, xs=[zero])
    session.ensure(thing)
    session.commit()
    query = session.query().entities(Thing)
    for found in (query.get("1"), query.first(), query.as_of(1).get("1"), query.as_of(1).first()):
        assert _same([found.x, found.xs], [thing.x, thing.xs])


class Autumn(tzinfo):
    """A zone in which every hour comes twice, as one does when summer time ends."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1 if moment is not None and moment.fold else 2)


@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_that_the_clock_shows_twice_round_trips(session: Session, fold: int):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[datetime]

    twice = datetime(2026, 10, 25, 2, 30, tzinfo=Autumn(), fold=fold)
    thing = Thing(id="1", x=twice)
    session.ensure(thing)
    session.commit()
    found = session.query().entities(Thing).get("1")
    assert found.x.timestamp() == twice.timestamp()
    assert found == thing


def test_values_that_python_calls_equal_but_differ_in_kind_are_changes(session: Session):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[Any] = None

    for value in (1, 1.0, True, "1", [1], None):
        session.ensure(Thing(id="1", x=value))
        assert session.commit() is not None
        assert _same(session.query().entities(Thing).get("1").x, value)


def test_decimals_keep_their_digits(session: Session):
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        x: Field[Decimal]

    session.ensure(Thing(id="1", x=Decimal("1.5")))
    session.commit()
    session.ensure(Thing(id="1", x=Decimal("1.50")))
    assert session.commit() == 2
    assert str(session.query().entities(Thing).get("1").x) == "1.50"


# Property-based: one entity with every kind of field

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
naive = st.datetimes()
fixed_offsets = st.integers(-840, 840).map(lambda minutes: timezone(timedelta(minutes=minutes)))
aware = st.datetimes(
    datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.one_of(st.just(UTC), fixed_offsets)
)
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
points = st.builds(Point, integers, floats)
money = st.builds(Money, amount=decimals, currency=text)


class Everything(Entity):
    id: Field[str] = Field(primary_key=True)
    string: Field[str]
    integer: Field[int]
    real: Field[float]
    flag: Field[bool]
    moment: Field[datetime]
    day: Field[date]
    exact: Field[Decimal]
    uuid: Field[UUID]
    blob: Field[bytes]
    color: Field[Color]
    level: Field[Level]
    word: Field[Literal["a", "b"]]
    maybe: Field[str | None]
    maybe_exact: Field[Decimal | None]
    items: Field[list[float]]
    moments: Field[list[datetime | None]]
    pair: Field[tuple[int, str]]
    many: Field[tuple[Decimal, ...]]
    group: Field[set[int]]
    frozen: Field[frozenset[str]]
    table: Field[dict[str, bytes]]
    by_number: Field[dict[int, list[str]]]
    by_day: Field[dict[date, UUID]]
    document: Field[dict]
    anything: Field[Any]
    address: Field[Address]
    point: Field[Point]
    line: Field[Line | None]
    bill: Field[Bill]


class EverythingHappened(Event):
    string: Field[str]
    moment: Field[datetime]
    exact: Field[Decimal]
    many: Field[tuple[Decimal, ...]]
    group: Field[set[int]]
    line: Field[Line | None]
    anything: Field[Any]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "string": text,
    "integer": integers,
    "real": floats,
    "flag": st.booleans(),
    "moment": naive | aware,
    "day": st.dates(),
    "exact": decimals,
    "uuid": st.uuids(),
    "blob": st.binary(max_size=8),
    "color": st.sampled_from(Color),
    "level": st.sampled_from(Level),
    "word": st.sampled_from(["a", "b"]),
    "maybe": st.none() | text,
    "maybe_exact": st.none() | decimals,
    "items": st.lists(floats, max_size=3),
    "moments": st.lists(st.none() | naive | aware, max_size=3),
    "pair": st.tuples(integers, text),
    "many": st.lists(decimals, max_size=3).map(tuple),
    "group": st.sets(integers, max_size=3),
    "frozen": st.frozensets(text, max_size=3),
    "table": st.dictionaries(text, st.binary(max_size=4), max_size=3),
    "by_number": st.dictionaries(integers, st.lists(text, max_size=2), max_size=3),
    "by_day": st.dictionaries(st.dates(), st.uuids(), max_size=2),
    "document": st.dictionaries(text, json_values, max_size=3),
    "anything": json_values,
    "address": st.fixed_dictionaries({"street": text}, optional={"zip": text}),
    "point": points,
    "line": st.none() | st.builds(Line, points, st.lists(points, max_size=2), st.none() | text),
    "bill": st.builds(
        Bill, total=money, lines=st.lists(money, max_size=2), due=st.none() | st.dates()
    ),
}
EVERYTHING = st.fixed_dictionaries(FIELDS)
HAPPENED = st.fixed_dictionaries(
    {name: FIELDS[name] for name in EverythingHappened.__event_fields__}
)

each_example_brings_its_own_store = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@each_example_brings_its_own_store
@given(values=EVERYTHING)
def test_an_entity_of_all_types_round_trips(new_uri: Callable[[], str], values: dict[str, Any]):
    with Session(new_uri()) as session:
        thing = Everything(id="1", **values)
        session.ensure(thing)
        commit_id = session.commit()
        query = session.query().entities(Everything)
        for found in (
            query.get("1"),
            query.as_of(commit_id).get("1"),
            query.with_history().first(),
        ):
            assert found == thing
            for name, value in values.items():
                assert _same(getattr(found, name), getattr(thing, name)), name
                assert getattr(found, name) == value
            session.ensure(found)
            assert session.commit() is None


@each_example_brings_its_own_store
@given(before=EVERYTHING, after=EVERYTHING)
def test_a_change_writes_exactly_what_differs(
    new_uri: Callable[[], str], before: dict[str, Any], after: dict[str, Any]
):
    with Session(new_uri()) as session:
        old, new = Everything(id="1", **before), Everything(id="1", **after)
        session.ensure(old)
        first = session.commit()
        session.ensure(new)
        second = session.commit()
        query = session.query().entities(Everything)
        assert query.as_of(first).get("1") == old
        assert query.get("1") == new
        if second is not None:
            (change,) = session.diff(first, second).changed
            wrong = {n for n in FIELDS if n not in change.fields and before[n] != after[n]}
            assert not wrong
        assert session.verify().ok


@settings(deadline=None, max_examples=40)
@given(values=EVERYTHING)
def test_dicts_and_json_round_trip(values: dict[str, Any]):
    thing = Everything(id="1", **values)
    for mode in ("python", "json"):
        again = Everything.model_validate(thing.model_dump(mode=mode), mode=mode)
        assert again == thing
        assert _same(again.model_dump(), thing.model_dump())


@settings(deadline=None, max_examples=40)
@given(values=HAPPENED)
def test_events_round_trip_through_dicts_and_json(values: dict[str, Any]):
    event = EverythingHappened(**values)
    for mode in ("python", "json"):
        assert EverythingHappened.model_validate(event.model_dump(mode=mode), mode=mode) == event
