"""Queries that make no sense are refused with an error that says what to do."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest

from ontologia import (
    Entity,
    Field,
    FilterTruthError,
    ModelDefinitionError,
    OntologiaError,
    QueryError,
    Relation,
    Session,
    SessionClosedError,
    count,
    count_where,
    left,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(default="")
    whole: Field[int] = Field(default=0)
    real: Field[float] = Field(default=0.0)
    flag: Field[bool] = Field(default=False)
    at: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    amount: Field[Decimal] = Field(default=Decimal(0))
    ref: Field[UUID | None] = Field(default=None)
    raw: Field[bytes] = Field(default=b"")
    color: Field[Color] = Field(default=Color.RED)
    size: Field[Literal["s", "m"]] = Field(default="s")
    tags: Field[list[str]] = Field(default_factory=list)
    data: Field[dict[str, Any]] = Field(default_factory=dict)


class Other(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(default="")


class Link(Relation[Thing, Other]):
    n: Field[int] = Field(default=0)


@pytest.fixture
def things(session: Session) -> Any:
    """A query over one thing."""
    session.ensure(Thing(id="a", text="x", whole=5, tags=["t"]))
    session.commit()
    return session.query().entities(Thing)


def explains_itself(error: OntologiaError) -> bool:
    return bool(error.code) and ("fix:" in str(error) or "why:" in str(error))


@pytest.mark.parametrize("constant", [None, True, False])
def test_null_and_truth_have_tests_of_their_own(constant: Any) -> None:
    name = {None: "is_null", True: "is_true", False: "is_false"}[constant]
    for compare in (
        lambda f: f == constant,
        lambda f: f != constant,
        lambda f: f < constant,
        lambda f: f >= constant,
    ):
        for field in (
            Thing.flag,
            Thing.at,
            Thing.data["x"],
            Thing.tags.any_path(),
            left(Link).flag,
        ):
            with pytest.raises(QueryError, match=rf"{name}\(\)") as caught:
                compare(field)
            assert explains_itself(caught.value)


def test_null_among_values_is_refused() -> None:
    with pytest.raises(QueryError, match="is_null"):
        Thing.whole.in_([1, None])


@pytest.mark.parametrize("values", ["abc", b"abc"])
def test_one_text_is_not_a_list_of_values(values: Any) -> None:
    with pytest.raises(QueryError, match="pass a list"):
        Thing.text.in_(values)


@pytest.mark.parametrize("values", [5, None, Thing])
def test_in_needs_values(values: Any) -> None:
    with pytest.raises(QueryError):
        Thing.whole.in_(values)


def test_filters_have_no_truth_value() -> None:
    a, b = Thing.whole > 1, Thing.whole < 9
    for use in (
        lambda: bool(a),
        lambda: a and b,
        lambda: a or b,
        lambda: not a,
        lambda: 1 < Thing.whole < 9,
        lambda: bool(Thing.flag),
        lambda: Thing.flag and a,
        lambda: bool(count() > 1),
    ):
        with pytest.raises(FilterTruthError) as caught:
            use()
        assert explains_itself(caught.value)
    with pytest.raises(TypeError):
        bool(a)


@pytest.mark.parametrize("other", [True, 1, None, "x", Thing.flag])
def test_filters_combine_with_filters_only(other: Any) -> None:
    for combine in (lambda: (Thing.whole > 1) & other, lambda: (Thing.whole > 1) | other):
        with pytest.raises(QueryError, match="parentheses"):
            combine()


def test_two_fields_are_not_compared() -> None:
    with pytest.raises(QueryError, match="two expressions"):
        Thing.whole == Thing.real
    with pytest.raises(QueryError, match="two expressions"):
        count() > Thing.whole.sum()


WRONG: list[tuple[str, Any]] = [
    ("text", 5),
    ("text", b"x"),
    ("text", ["x"]),
    ("text", "nul\x00"),
    ("text", "\ud800"),
    ("whole", "5"),
    ("whole", Decimal(5)),
    ("whole", 2**63),
    ("whole", -(2**63) - 1),
    ("whole", float("nan")),
    ("whole", float("inf")),
    ("real", "1"),
    ("real", float("nan")),
    ("real", float("-inf")),
    ("at", date(2024, 1, 1)),
    ("at", "2024-01-01"),
    ("at", 5),
    ("day", datetime(2024, 1, 1)),
    ("day", "2024-01-01"),
    ("amount", 1.5),
    ("amount", "1.5"),
    ("amount", Decimal("NaN")),
    ("amount", Decimal("Infinity")),
    ("ref", str(UUID(int=1))),
    ("raw", "x"),
    ("color", "green"),
    ("color", 5),
    ("color", ["red"]),
    ("size", "xl"),
    ("flag", "yes"),
    ("tags", "t"),
    ("tags", [1]),
    ("data", "x"),
    ("data", {1: 2}),
    ("data", {"x": Decimal(1)}),
    ("data", {"x": object()}),
]


@pytest.mark.parametrize(("field", "constant"), WRONG, ids=lambda v: ascii(v)[:24])
def test_constants_of_another_type_are_refused(things: Any, field: str, constant: Any) -> None:
    ref = getattr(Thing, field)
    for condition in (
        lambda: ref == constant,
        lambda: ref != constant,
        lambda: ref.in_([constant]),
    ):
        with pytest.raises(QueryError) as caught:
            things.where(condition())
        assert explains_itself(caught.value)


@pytest.mark.parametrize("field", ["flag", "color", "size", "tags", "data"])
def test_types_without_an_order_are_not_ordered(things: Any, field: str) -> None:
    constant = {"flag": 1, "color": Color.RED, "size": "s", "tags": ["t"], "data": {}}[field]
    with pytest.raises(QueryError):
        things.where(getattr(Thing, field) < constant)


@pytest.mark.parametrize("method", ["startswith", "endswith", "contains"])
def test_text_matching_needs_text(things: Any, method: str) -> None:
    for bad in (5, None, b"x", ["x"]):
        with pytest.raises(QueryError):
            getattr(Thing.text, method)(bad)
    for field in ("whole", "raw", "tags", "at", "color"):
        with pytest.raises(QueryError, match="text field"):
            things.where(getattr(getattr(Thing, field), method)("x"))
    for unstorable in ("\x00", "\ud800"):
        with pytest.raises(QueryError):
            things.where(getattr(Thing.text, method)(unstorable))


@pytest.mark.parametrize("field", ["text", "whole", "at", "tags"])
def test_truth_tests_need_booleans(things: Any, field: str) -> None:
    with pytest.raises(QueryError, match="boolean"):
        things.where(getattr(Thing, field).is_true())


def test_unknown_fields_are_named(things: Any) -> None:
    with pytest.raises(QueryError, match="no field 'nope'"):
        Thing.nope
    with pytest.raises(AttributeError):
        Thing.nope
    assert not hasattr(Thing, "nope")


def test_fields_of_another_type_are_refused(things: Any, session: Session) -> None:
    foreign = Other.text
    for use in (
        lambda: things.where(foreign == "x"),
        lambda: things.where((Thing.whole > 1) & ~(foreign == "x")),
        lambda: things.order_by(foreign),
        lambda: things.group_by(foreign),
        lambda: things.max(foreign),
        lambda: things.count_where(foreign == "x"),
        lambda: things.group_by(Thing.text).agg(n=foreign.max()),
        lambda: things.group_by(Thing.text).having(foreign.max() == "x"),
        lambda: things.where(Link.n > 1),
        lambda: session.query().relations(Link).where(Thing.whole > 1),
    ):
        with pytest.raises(QueryError, match="belongs to") as caught:
            use()
        assert explains_itself(caught.value)


@pytest.mark.parametrize(
    "bad", [True, False, None, "text = 'x'", 5, Thing, Thing.flag, Thing.whole]
)
def test_where_takes_filters_only(things: Any, bad: Any) -> None:
    with pytest.raises(QueryError, match="not a filter"):
        things.where(bad)


def test_aggregates_do_not_belong_in_where(things: Any) -> None:
    for bad in (count() > 1, Thing.whole.sum() > 1, ~(count() == 1)):
        with pytest.raises(QueryError, match="having"):
            things.where(bad)
    with pytest.raises(QueryError):
        things.where(count())


def test_filters_do_not_belong_in_having(things: Any) -> None:
    grouped = things.group_by(Thing.text)
    for bad in (Thing.whole > 1, (count() > 1) & (Thing.whole > 1)):
        with pytest.raises(QueryError, match="where"):
            grouped.having(bad)
    for bad in (True, None, count(), Thing.whole):
        with pytest.raises(QueryError):
            grouped.having(bad)


def test_conditions_on_groups_compare_with_values_of_the_aggregate(things: Any) -> None:
    grouped = things.group_by(Thing.text)
    for bad in (
        count() > "x",
        count() == Decimal(1),
        Thing.whole.sum() > "x",
        Thing.amount.sum() > 1.5,
        Thing.text.max() > 5,
        Thing.tags.avg_len() > "x",
        count() > float("nan"),
    ):
        with pytest.raises(QueryError):
            grouped.having(bad)
    with pytest.raises(QueryError, match="is_null"):
        Thing.whole.sum() == None  # noqa: E711


def test_groups_need_keys(things: Any) -> None:
    with pytest.raises(QueryError, match="at least one field"):
        things.group_by()


@pytest.mark.parametrize(
    "key",
    [Thing.tags, Thing.data, Thing.data["x"], Thing.tags.any_path(), "text", None, count()],
    ids=str,
)
def test_keys_and_orders_must_be_scalar_fields(things: Any, key: Any) -> None:
    with pytest.raises(QueryError):
        things.group_by(key)
    with pytest.raises(QueryError):
        things.order_by(key)


def test_columns_of_the_same_name_are_refused(things: Any) -> None:
    with pytest.raises(QueryError, match="same name"):
        things.group_by(Thing.text).agg(text=count())
    with pytest.raises(QueryError, match="same name"):
        things.group_by(Thing.text, Thing.text).agg(n=count())


@pytest.mark.parametrize("bad", [1, "count", None, Thing.whole, Thing.whole > 1])
def test_agg_takes_aggregates_only(things: Any, bad: Any) -> None:
    with pytest.raises(QueryError, match="not an aggregate"):
        things.group_by(Thing.text).agg(n=bad)


def test_aggregates_need_fields_they_can_work_on(things: Any) -> None:
    for use in (
        lambda: things.sum(Thing.text),
        lambda: things.sum(Thing.flag),
        lambda: things.avg(Thing.at),
        lambda: things.sum(Thing.tags),
        lambda: things.min(Thing.flag),
        lambda: things.max(Thing.data),
        lambda: things.min(Thing.tags.any_path()),
        lambda: things.sum(Thing.data["x"]),
        lambda: things.avg_len(Thing.text),
        lambda: things.avg_len(Thing.whole),
        lambda: things.group_by(Thing.text).agg(n=Thing.text.sum()),
        lambda: things.count_where(True),
        lambda: things.count_where(count() > 1),
        lambda: things.group_by(Thing.text).agg(n=count_where(count() > 1)),
        lambda: count_where(Thing.flag) and things.group_by(Thing.text).agg(n=count_where(5)),
    ):
        with pytest.raises(QueryError):
            use()


@pytest.mark.parametrize("method", ["sum", "avg", "min", "max", "avg_len"])
def test_aggregates_take_fields_only(things: Any, method: str) -> None:
    for bad in ("whole", None, 5, Thing, Thing.whole.sum(), Thing.whole > 1):
        with pytest.raises(QueryError):
            getattr(things, method)(bad)


def test_queries_need_a_declared_class(session: Session) -> None:
    query = session.query()
    for bad in (Link, "Thing", None, Thing(id="a"), int, Entity):
        with pytest.raises(ModelDefinitionError):
            query.entities(bad)
    for bad in (Thing, "Link", None, int, Relation):
        with pytest.raises(ModelDefinitionError):
            query.relations(bad)


def test_a_field_is_not_a_sequence() -> None:
    with pytest.raises(TypeError):
        iter(Thing.tags)
    with pytest.raises(TypeError):
        "t" in Thing.tags
    with pytest.raises(TypeError):
        len(Thing.tags)


def test_fields_are_not_computed_with() -> None:
    for use in (
        lambda: Thing.whole + 1,
        lambda: 1 - Thing.whole,
        lambda: -Thing.whole,
        lambda: Thing.whole * Thing.real,
        lambda: abs(Thing.whole),
    ):
        with pytest.raises((QueryError, TypeError)):
            use()


def test_errors_show_the_expression(things: Any) -> None:
    with pytest.raises(QueryError, match=r"Thing\.data\['x'\]"):
        things.order_by(Thing.data["x"])
    condition = (Thing.whole > 1) & ~Thing.text.startswith("x") | Thing.tags.any_path().in_(["t"])
    assert "Thing.whole" in repr(condition)
    assert repr(left(Link).text) == "left(Link).text"


def test_a_closed_session_answers_no_query(session: Session) -> None:
    session.ensure([Thing(id="a"), Thing(id="b")])
    session.commit()
    query = session.query().entities(Thing)
    session.close()
    for use in (
        session.query,
        query.collect,
        query.first,
        query.count,
        query.explain,
        query.to_dicts,
        query.via(Link).collect,
        query.with_history().collect,
        query.group_by(Thing.text).agg,
        lambda: query.get("a"),
        lambda: list(query),
    ):
        with pytest.raises(SessionClosedError):
            use()


HOSTILE = [
    "'; DROP TABLE entity_Thing; --",
    '"; DROP TABLE "entity_Thing"; --',
    "' OR '1'='1",
    "x' UNION SELECT * FROM commits --",
    "%' OR 1=1 --",
    "?",
    ":name",
    "{}",
    "{0}",
    "%s",
    "$.x",
    "\\",
    "x\ny",
    "/* */",
    "null",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_values_cannot_inject(things: Any, session: Session, text: str) -> None:
    session.ensure(Thing(id=text, text=text, tags=[text], data={"x": text}))
    session.commit()
    for query in (things, things.as_of(2), things.with_history()):
        for condition in (
            Thing.text == text,
            Thing.id == text,
            Thing.text.in_([text]),
            Thing.text.startswith(text),
            Thing.text.endswith(text),
            Thing.text.contains(text),
            Thing.tags.any_path() == text,
            Thing.data["x"] == text,
            Thing.data["x"].contains(text),
            Thing.data == {"x": text},
        ):
            assert [t.id for t in query.where(condition)] == [text]
            assert query.count_where(condition) == 1
        assert query.get(text).text == text
        grouped = query.group_by(Thing.text).having(Thing.text.max() == text).agg(n=count())
        assert grouped == [{"text": text, "n": 1}]
        assert query.count() == 2


PATHS = [
    "x'; DROP TABLE entity_Thing; --",
    "x') OR 1=1 --",
    "?",
    "{}",
    "$",
    "*",
    "[0]",
    "x]",
    "a'b",
]


@pytest.mark.parametrize("key", PATHS)
def test_paths_cannot_inject(things: Any, session: Session, key: str) -> None:
    session.ensure(Thing(id="b", data={key: "v", "list": [{key: 1}]}))
    session.commit()
    for query in (things, things.as_of(2), things.with_history()):
        assert [t.id for t in query.where(Thing.data[key] == "v")] == ["b"]
        assert [t.id for t in query.where(Thing.data["list"].any_path()[key] == 1)] == ["b"]
        assert query.avg_len(Thing.data[key]) is None
        assert query.count() == 2


@pytest.mark.parametrize("name", ['n"; DROP TABLE commits; --', "a b", "x'y", "{}", "?", "a.b", ""])
def test_names_cannot_inject(session: Session, name: str) -> None:
    session.ensure(Thing(id="a"))
    session.commit()
    body = {"__annotations__": {"id": "Field[str]", name: "Field[int]"}, "__module__": __name__}
    body |= {"id": Field(primary_key=True), name: Field(default=0, index=True)}
    try:
        hostile: Any = type(Entity)("Hostile", (Entity,), body)
    except ModelDefinitionError:
        pass
    else:
        session.ensure(hostile(id="h", **{name: 5}))
        session.commit()
        query = session.query().entities(hostile)
        ref = getattr(hostile, name)
        for windowed in (query, query.as_of(2)):
            assert windowed.where(ref == 5).order_by(ref).count() == 1
    for type_name in ('T"x', "T;", "T x", "T'", "", "1T", "T" * 99):
        with pytest.raises(ModelDefinitionError):
            type(Entity)("T", (Entity,), {"id": Field(primary_key=True)}, name=type_name)
    assert session.query().entities(Thing).count() == 1
    assert session.list_commits()


@pytest.mark.parametrize("namespace", ["' OR 1=1 --", '"', "%", "_", "a;b", "é"])
def test_namespaces_cannot_inject(open_session: Any, namespace: str) -> None:
    plain, strange = open_session("plain"), open_session(namespace)
    plain.ensure(Thing(id="a", at=datetime(2024, 1, 1, tzinfo=UTC)))
    plain.commit()
    assert strange.query().entities(Thing).count() == 0
    strange.ensure(Thing(id="b"))
    strange.commit()
    for query in (strange.query().entities(Thing), strange.query().entities(Thing).with_history()):
        assert [t.id for t in query] == ["b"]
    assert [t.id for t in plain.query().entities(Thing)] == ["a"]
