"""Filters on scalar fields: every operator on every type, and three-valued logic."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, Literal
from uuid import UUID

import pytest

from ontologia import Entity, Field, Session


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Thing(Entity):
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
    level: Field[Level | None] = Field(default=None)
    size: Field[Literal["s", "m"] | None] = Field(default=None)
    grade: Field[Literal[1, 2] | None] = Field(default=None)


def store(session: Session, field: str, **values: Any) -> None:
    """One thing per keyword, with that value in the field; and one called "null" without."""
    session.ensure(Thing(id=key, **{field: value}) for key, value in values.items())
    session.ensure(Thing(id="null"))
    session.commit()


def select(session: Session, *filters: Any) -> list[str]:
    """The keys found, which current state, the past and history must agree about."""
    query = session.query().entities(Thing).where(*filters)
    found = [thing.id for thing in query.collect()]
    assert [thing.id for thing in query.as_of(1).collect()] == found
    assert [thing.id for thing in query.with_history().collect()] == found
    assert query.count() == query.as_of(1).count() == query.with_history().count() == len(found)
    return found


NOON = datetime(2024, 5, 1, 12)
ORDERED: dict[str, tuple[str, Any, Any, Any]] = {
    "text": ("text", "Z", "a", "é"),
    "text beyond the basic plane": ("text", "a", "\uffff", "\U0001f600"),
    "empty text": ("text", "", " ", "a"),
    "int": ("whole", -5, 0, 7),
    "64 bit": ("whole", -(2**63), 2**53 + 1, 2**63 - 1),
    "float": ("real", -1.5, 0.0, 2.25),
    "close floats": ("real", 0.3, 0.1 + 0.2, 0.1 + 0.2 + 1e-16),
    "extreme floats": ("real", -1.7976931348623157e308, 5e-324, 2.2250738585072014e-308),
    "naive datetime": ("at", NOON, NOON + timedelta(microseconds=1), NOON + timedelta(days=1)),
    "aware datetime": (
        "at",
        NOON.replace(tzinfo=UTC),
        NOON.replace(tzinfo=timezone(timedelta(hours=-1))),
        NOON.replace(tzinfo=timezone(timedelta(hours=-2))),
    ),
    "early datetime": ("at", datetime(1, 1, 1), datetime(999, 1, 1), datetime(9999, 12, 31)),
    "date": ("day", date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)),
    "decimal": ("amount", Decimal("-2"), Decimal("9.5"), Decimal("10")),
    "negative decimal": ("amount", Decimal("-10.01"), Decimal("-10"), Decimal("-9.999")),
    "decimal exponents": ("amount", Decimal("1E-30"), Decimal("1"), Decimal("1E+30")),
    "uuid": ("ref", UUID(int=1), UUID(int=2**64), UUID(int=2**127)),
    "bytes": ("raw", b"", b"\x00", b"\x00\xff"),
}
EXPECTED = [
    (eq, ["mid"], ["high", "low"]),
    (ne, ["high", "low"], ["mid"]),
    (lt, ["low"], ["high", "mid"]),
    (le, ["low", "mid"], ["high"]),
    (gt, ["high"], ["low", "mid"]),
    (ge, ["high", "mid"], ["low"]),
]


@pytest.mark.parametrize("kind", ORDERED)
def test_comparisons_order_values_and_never_match_null(session: Session, kind: str) -> None:
    field, low, mid, high = ORDERED[kind]
    store(session, field, low=low, mid=mid, high=high)
    ref = getattr(Thing, field)
    for compare, matching, rest in EXPECTED:
        assert select(session, compare(ref, mid)) == matching
        assert select(session, ~compare(ref, mid)) == rest


@pytest.mark.parametrize("kind", ORDERED)
def test_in_matches_any_of_the_values(session: Session, kind: str) -> None:
    field, low, mid, high = ORDERED[kind]
    store(session, field, low=low, mid=mid, high=high)
    ref = getattr(Thing, field)
    assert select(session, ref.in_([])) == []
    assert select(session, ~ref.in_([])) == ["high", "low", "mid", "null"]
    assert select(session, ref.in_([mid])) == ["mid"]
    assert select(session, ref.in_((high, low, high))) == ["high", "low"]
    assert select(session, ~ref.in_(iter([high, low]))) == ["mid"]


CHOICES: dict[str, tuple[str, Any, Any]] = {
    "enum": ("color", Color.RED, Color.BLUE),
    "int enum": ("level", Level.LOW, Level.HIGH),
    "text literal": ("size", "s", "m"),
    "int literal": ("grade", 1, 2),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_are_equal_or_not(session: Session, kind: str) -> None:
    field, one, other = CHOICES[kind]
    store(session, field, one=one, other=other)
    ref = getattr(Thing, field)
    assert select(session, ref == one) == ["one"]
    assert select(session, ref != one) == ["other"]
    assert select(session, ~(ref == one)) == ["other"]
    assert select(session, ref.in_([one, other])) == ["one", "other"]
    assert select(session, ~ref.in_([one])) == ["other"]


def test_booleans_are_true_false_or_neither(session: Session) -> None:
    store(session, "flag", yes=True, no=False)
    assert select(session, Thing.flag.is_true()) == ["yes"]
    assert select(session, Thing.flag.is_false()) == ["no"]
    assert select(session, ~Thing.flag.is_true()) == ["no"]
    assert select(session, ~Thing.flag.is_false()) == ["yes"]
    assert select(session, Thing.flag.in_([True])) == ["yes"]
    assert select(session, ~Thing.flag.in_([True])) == ["no"]
    assert select(session, Thing.flag.in_([True, False])) == ["no", "yes"]


FIELDS = [field for field, *_ in ORDERED.values()] + ["flag", "color", "size", "level", "grade"]


@pytest.mark.parametrize("field", sorted(set(FIELDS)))
def test_null_is_told_from_every_value(session: Session, field: str) -> None:
    values = {f: mid for f, _, mid, _ in ORDERED.values()} | {f: v for f, v, _ in CHOICES.values()}
    store(session, field, some=values.get(field, False))
    ref = getattr(Thing, field)
    assert select(session, ref.is_null()) == ["null"]
    assert select(session, ref.is_not_null()) == ["some"]
    assert select(session, ~ref.is_null()) == ["some"]
    assert select(session, ~ref.is_not_null()) == ["null"]


def test_whole_numbers_compare_with_fractions(session: Session) -> None:
    store(session, "whole", one=1, two=2)
    assert select(session, Thing.whole > 1.5) == ["two"]
    assert select(session, Thing.whole == 1.0) == ["one"]
    assert select(session, Thing.whole.in_([2.0, 2.5])) == ["two"]


def test_floats_compare_with_whole_numbers(session: Session) -> None:
    store(session, "real", one=1.0, more=1.25, most=1e300)
    assert select(session, Thing.real == 1) == ["one"]
    assert select(session, Thing.real > 2**62) == ["most"]


def test_large_whole_numbers_are_not_rounded(session: Session) -> None:
    store(session, "whole", even=2**53, odd=2**53 + 1)
    assert select(session, Thing.whole == 2**53 + 1) == ["odd"]
    assert select(session, Thing.whole > float(2**53)) == ["odd"]


def test_negative_zero_is_zero(session: Session) -> None:
    store(session, "real", minus=-0.0, plus=0.0)
    assert select(session, Thing.real == 0.0) == ["minus", "plus"]
    assert select(session, Thing.real < 0) == []


def test_floats_are_found_by_their_exact_value(session: Session) -> None:
    values = [0.1, 1 / 3, 1e23, 9007199254740993.0, 4.35, 2.675, 1e-7, 1.1e16, 5e-324, 1.7e308]
    session.ensure(Thing(id=str(i), real=v) for i, v in enumerate(values))
    session.commit()
    for i, value in enumerate(values):
        assert select(session, Thing.real == value) == [str(i)]
        assert select(session, Thing.real.in_([value, *map(float, range(10**6, 10**6 + 300))])) == [
            str(i)
        ]


def test_decimals_are_equal_by_number_not_by_digits(session: Session) -> None:
    store(
        session,
        "amount",
        a=Decimal("1.0"),
        b=Decimal("1.00"),
        c=Decimal("1"),
        d=Decimal("1.01"),
        e=Decimal("-1.0"),
    )
    assert select(session, Thing.amount == Decimal("1.000")) == ["a", "b", "c"]
    assert select(session, Thing.amount == 1) == ["a", "b", "c"]
    assert select(session, Thing.amount != Decimal("1")) == ["d", "e"]
    assert select(session, Thing.amount <= Decimal("1.00")) == ["a", "b", "c", "e"]
    assert select(session, Thing.amount.in_([Decimal("1E0"), Decimal("-1")])) == list("abce")


def test_decimal_zero_has_no_sign_or_scale(session: Session) -> None:
    store(session, "amount", a=Decimal("0"), b=Decimal("-0.00"), c=Decimal("0E+9"), d=Decimal("1"))
    assert select(session, Thing.amount == 0) == ["a", "b", "c"]
    assert select(session, Thing.amount < 0) == []
    assert select(session, Thing.amount > Decimal("-1E-99")) == ["a", "b", "c", "d"]


def test_decimals_keep_every_digit(session: Session) -> None:
    store(
        session, "amount", low=Decimal("1." + "0" * 60 + "1"), high=Decimal("1." + "0" * 60 + "2")
    )
    assert select(session, Thing.amount > Decimal("1." + "0" * 60 + "1")) == ["high"]


def test_aware_datetimes_compare_as_moments(session: Session) -> None:
    berlin = timezone(timedelta(hours=2))
    store(session, "at", utc=datetime(2024, 1, 1, 10, tzinfo=UTC))
    assert select(session, Thing.at == datetime(2024, 1, 1, 12, tzinfo=berlin)) == ["utc"]
    assert select(session, Thing.at < datetime(2024, 1, 1, 12, tzinfo=berlin)) == []


def test_naive_and_aware_datetimes_never_compare(session: Session) -> None:
    store(session, "at", aware=NOON.replace(tzinfo=UTC), naive=NOON)
    for compare in (eq, ne, lt, le, gt, ge):
        for constant, kind in ((NOON, "naive"), (NOON.replace(tzinfo=UTC), "aware")):
            condition = compare(Thing.at, constant)
            expected = [kind] if compare in (eq, le, ge) else []
            assert select(session, condition) == expected
            assert select(session, ~condition) == [k for k in [kind] if k not in expected]


def test_naive_and_aware_datetimes_mix_in_lists(session: Session) -> None:
    later = NOON + timedelta(days=1)
    store(session, "at", aware=NOON.replace(tzinfo=UTC), naive=NOON, later=later)
    both = [NOON, NOON.replace(tzinfo=UTC)]
    assert select(session, Thing.at.in_(both)) == ["aware", "naive"]
    assert select(session, ~Thing.at.in_([NOON])) == ["later"]
    assert select(session, ~Thing.at.in_(both)) == []


@pytest.mark.parametrize("size", [1, 200, 201, 1_000])
def test_in_takes_any_number_of_texts(session: Session, size: int) -> None:
    store(session, "text", hit="v0", other="x")
    assert select(session, Thing.text.in_([f"v{i}" for i in range(size)])) == ["hit"]
    assert select(session, ~Thing.text.in_([f"v{i}" for i in range(size)])) == ["other"]


MANY: dict[str, tuple[str, Any]] = {
    "text": ("text", lambda i: f"v{i}"),
    "int": ("whole", lambda i: i),
    "float": ("real", lambda i: i / 8),
    "datetime": ("at", lambda i: NOON + timedelta(seconds=i)),
    "date": ("day", lambda i: date(1900, 1, 1) + timedelta(days=i)),
    "decimal": ("amount", lambda i: Decimal(i) / 4),
    "uuid": ("ref", lambda i: UUID(int=i)),
    "bytes": ("raw", lambda i: i.to_bytes(4, "big")),
}


@pytest.mark.parametrize("kind", MANY)
def test_in_takes_50000_values_of_every_type(session: Session, kind: str) -> None:
    field, make = MANY[kind]
    store(session, field, hit=make(777), other=make(60_000))
    ref, values = getattr(Thing, field), [make(i) for i in range(50_000)]
    found = session.query().entities(Thing).where(ref.in_(values))
    assert [t.id for t in found.collect()] == ["hit"]
    assert [t.id for t in found.with_history().collect()] == ["hit"]
    rest = session.query().entities(Thing).where(~ref.in_(values))
    assert [t.id for t in rest.collect()] == ["other"]


def test_keys_are_filtered_like_other_fields(session: Session) -> None:
    store(session, "text", a="1", b="2")
    assert select(session, Thing.id == "a") == ["a"]
    assert select(session, Thing.id > "a") == ["b", "null"]
    assert select(session, Thing.id == "a", Thing.id == "b") == []
    assert select(session, (Thing.id == "a") | (Thing.id == "null")) == ["a", "null"]
    assert select(session, Thing.id.startswith("n")) == ["null"]
    assert select(session, Thing.id.is_null()) == []


TRICKY = [
    "%",
    "_",
    "%%",
    "a%",
    "a_c",
    "abc",
    "A",
    "[a]",
    "*",
    "?",
    "\\",
    "\\%",
    "'",
    '"',
    "é",
    "e\u0301",
]


@pytest.mark.parametrize("text", TRICKY)
def test_text_matching_is_literal(session: Session, text: str) -> None:
    others = [*TRICKY, "xyz", "", "abcabc", "a" + text, text + "a", "x" + text + "x"]
    session.ensure(Thing(id=f"{i:02}", text=t) for i, t in enumerate(others))
    session.ensure(Thing(id="null"))
    session.commit()

    def texts(condition: Any) -> list[str | None]:
        return [others[int(key)] for key in select(session, condition)]

    for method in ("startswith", "endswith"):
        condition = getattr(Thing.text, method)(text)
        assert texts(condition) == [t for t in others if getattr(t, method)(text)]
        assert texts(~condition) == [t for t in others if not getattr(t, method)(text)]
    assert texts(Thing.text.contains(text)) == [t for t in others if text in t]
    assert texts(~Thing.text.contains(text)) == [t for t in others if text not in t]


def test_every_text_starts_with_ends_with_and_contains_the_empty_text(session: Session) -> None:
    store(session, "text", empty="", some="a")
    for method in (Thing.text.startswith, Thing.text.endswith, Thing.text.contains):
        assert select(session, method("")) == ["empty", "some"]
        assert select(session, ~method("")) == []


def test_prefixes_at_the_end_of_a_range_of_characters(session: Session) -> None:
    for prefix in ("\ud7ff", "\uffff", "\U0010ffff", "a\U0010ffff", "z", "\x7f"):
        session.ensure(Thing(id=f"{ord(prefix[-1]):x}-{len(prefix)}", text=prefix + "\U0010ffff"))
    session.ensure(Thing(id="b", text="b"))
    session.commit()
    assert select(session, Thing.text.startswith("\ud7ff")) == ["d7ff-1"]
    assert select(session, Thing.text.startswith("\uffff")) == ["ffff-1"]
    assert select(session, Thing.text.startswith("\U0010ffff")) == ["10ffff-1"]
    assert select(session, Thing.text.startswith("a\U0010ffff")) == ["10ffff-2"]
    assert select(session, Thing.text.startswith("\x7f")) == ["7f-1"]


def test_text_matching_tells_case_and_accents_apart(session: Session) -> None:
    store(session, "text", lower="straße", upper="STRASSE", other="strasse")
    assert select(session, Thing.text.contains("ss")) == ["other"]
    assert select(session, Thing.text.startswith("stra")) == ["lower", "other"]
    assert select(session, Thing.text == "straße") == ["lower"]


def test_unknown_spreads_as_in_sql(session: Session) -> None:
    session.ensure(
        [
            Thing(id="both", whole=1, text="a"),
            Thing(id="first", whole=1),
            Thing(id="second", text="a"),
            Thing(id="none"),
            Thing(id="other", whole=2, text="b"),
        ]
    )
    session.commit()
    one, a = Thing.whole == 1, Thing.text == "a"
    assert select(session, one & a) == ["both"]
    assert select(session, one | a) == ["both", "first", "second"]
    assert select(session, ~(one & a)) == ["other"]
    assert select(session, ~(one | a)) == ["other"]
    assert select(session, ~one | ~a) == ["other"]
    assert select(session, ~one & ~a) == ["other"]
    assert select(session, ~(one & Thing.text.is_null())) == ["both", "other", "second"]
    assert select(session, one | ~one) == ["both", "first", "other"]
    assert select(session, ~~one) == ["both", "first"]


def test_several_filters_must_all_hold(session: Session) -> None:
    store(session, "whole", a=1, b=2, c=3)
    assert select(session, Thing.whole > 1, Thing.whole < 3) == ["b"]
    query = session.query().entities(Thing)
    chained = query.where(Thing.whole > 1).where(Thing.whole < 3)
    assert [t.id for t in chained.collect()] == ["b"]
    assert query.where().count() == 4
    assert query.count() == 4, "a builder never changes"


@pytest.mark.parametrize("size", [300, 3_000])
def test_long_chains_of_filters_work(session: Session, size: int) -> None:
    store(session, "whole", a=1, b=size + 5)
    parts = [Thing.whole != i for i in range(2, size + 2)]
    every, some = reduce(and_, parts), reduce(or_, parts)
    query = session.query().entities(Thing)
    assert [t.id for t in query.where(every)] == ["a", "b"]
    assert query.where(~some).count() == 0
    assert query.with_history().where(some).count() == 2


def test_a_filter_may_be_used_many_times(session: Session) -> None:
    store(session, "whole", a=1, b=2)
    condition = Thing.whole == 1
    assert select(session, condition) == select(session, condition, condition) == ["a"]
    assert select(session, condition & ~condition) == []


def test_fields_of_a_base_class_filter_derived_types(session: Session) -> None:
    class Special(Thing):
        extra: Field[int] = Field(default=0)

    session.ensure([Special(id="s", whole=1, extra=5), Thing(id="t", whole=1)])
    session.commit()
    found = session.query().entities(Special).where(Thing.whole == 1, Special.extra == 5)
    assert [s.id for s in found.collect()] == ["s"]
    assert select(session, Thing.whole == 1) == ["t"]


def test_field_names_may_be_words_that_the_library_uses_itself(session: Session) -> None:
    class Door(Entity):
        id: Field[int] = Field(primary_key=True)
        left_key: Field[str | None] = Field(default=None)
        right_key: Field[str] = Field(default="")
        order: Field[int] = Field(default=0, index=True)
        select: Field[str] = Field(default="")
        commit_id: Field[int] = Field(default=0)
        namespace: Field[str] = Field(default="")
        key: Field[str] = Field(default="")
        value: Field[list[str]] = Field(default_factory=list)
        item: Field[int] = Field(default=0)
        größe: Field[int] = Field(default=0, index=True)

    session.ensure(
        Door(id=1, left_key="a", order=3, select="x", key="k", value=["v"], item=7, größe=3)
    )
    session.ensure(Door(id=2, commit_id=99, namespace="other"))
    session.commit()
    query = session.query().entities(Door)
    for first in (
        Door.left_key == "a",
        Door.order > 2,
        Door.select.contains("x"),
        Door.commit_id < 50,
        Door.namespace == "",
        Door.key == "k",
        Door.value.any_path() == "v",
        Door.item == 7,
        Door.größe == 3,
    ):
        for windowed in (query, query.as_of(1), query.with_history()):
            assert [d.id for d in windowed.where(first).collect()] == [1]
            assert [d.id for d in windowed.where(~first).collect() if d.left_key] == []
    assert query.get(2) == Door(id=2, commit_id=99, namespace="other")
