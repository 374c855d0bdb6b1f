"""Random objects, histories and filters; and filters as the library knows them.

An object or a query is made from a number by ``random.Random``, and Hypothesis chooses the numbers.
That is many times faster than letting it choose every value, so many more cases are tried; lists
of objects and queries still shrink to the few that matter.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from ontologia import EndpointMissingError, Relation, Session, commit_of, left, right
from property import plain
from property.declarations import ENDS, Box, Edge, LivesAt, Node, Place, key_of
from property.plain import Both, Either, Leaf, Negated, PlainStore, Ref, Window

T = TypeVar("T")


def numbered(make: Callable[[Random], T]) -> st.SearchStrategy[T]:
    """What a function makes of a number that Hypothesis chooses."""
    return st.integers(0, 2**40).map(lambda number: make(Random(number)))


# Values. The pools are small, so that constants meet stored values and duplicates occur.

TEXTS = ["", "a", "A", "ab", "aB", "b", "%", "_", "a%", "é", "e\u0301", "1", "null", "a'b", 'q"']
TEXTS += ["\uffff", "\U0001f600", "\\", "\n", "\U0010ffff", "\ud7ff", "\ue000", "\x7f"]
LETTERS = "aAbB%_é\U0001f600"
INTEGERS = [-3, -2, -1, 0, 1, 2, 3, 10, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]
DECIMALS = [
    Decimal(t)
    for t in (
        *("0", "-0.0", "1", "1.0", "1.00", "-1", "-1.5", "9.99", "10", "-10", "1E+2", "100"),
        *("1E-9", "12345678901234567890.123", "-9.99", "-10.00", "0.10", "0.1"),
    )
]
NAIVE = [datetime(2024, 1, 1), datetime(2024, 1, 1, 12, 0, 0, 1), datetime(1, 1, 2)]
DATES = [date(1, 1, 1), date(2024, 2, 29), date(2024, 3, 1)]
BLOBS = [b"", b"\x00", b"a", b"ab", b"\xff"]
NAMES = ["a", "b", "c.d"]


def text(r: Random) -> str:
    return r.choice(TEXTS) if r.random() < 0.6 else "".join(r.choices(LETTERS, k=r.randint(0, 3)))


def integer(r: Random) -> int:
    return r.choice(INTEGERS)


def small(r: Random) -> int:
    return r.randint(-3, 3)


def quarter(r: Random) -> float:
    """A float whose sums are exact."""
    return r.randint(-16, 16) / 4


def decimal(r: Random) -> Decimal:
    return r.choice(DECIMALS)


def moment(r: Random) -> datetime:
    at = r.choice(NAIVE)
    return (
        at if r.random() < 0.5 else at.replace(tzinfo=r.choice([UTC, timezone(timedelta(hours=2))]))
    )


def day(r: Random) -> date:
    return r.choice(DATES)


def blob(r: Random) -> bytes:
    return r.choice(BLOBS)


def choice(r: Random) -> str:
    return r.choice("xy")


def boolean(r: Random) -> bool:
    return r.random() < 0.5


def document(r: Random, depth: int = 2) -> Any:
    """A JSON value."""
    if depth and r.random() < 0.4:
        if r.random() < 0.5:
            return [document(r, depth - 1) for _ in range(r.randint(0, 3))]
        return mapping(r, depth - 1)
    return r.choice([lambda _: None, boolean, integer, quarter, text])(r)


def mapping(r: Random, depth: int = 2) -> dict[str, Any]:
    return {name: document(r, depth) for name in r.sample(NAMES, r.randint(0, 3))}


def maybe(make: Callable[[Random], T], r: Random) -> T | None:
    return None if r.random() < 0.25 else make(r)


def several(make: Callable[[Random], T], r: Random) -> list[T]:
    return [make(r) for _ in range(r.randint(0, 3))]


# Objects


def node(r: Random) -> Node:
    return Node(
        id=r.choice("abcde"),
        text=maybe(text, r),
        whole=maybe(integer, r),
        real=maybe(quarter, r),
        flag=maybe(boolean, r),
        at=maybe(moment, r),
        day=maybe(day, r),
        amount=maybe(decimal, r),
        raw=maybe(blob, r),
        choice=maybe(choice, r),
        data=mapping(r),
        loose=document(r),
        tags=maybe(lambda r: several(text, r), r),
        lines=several(lambda r: mapping(r, 1), r),
        prices=several(decimal, r),
        box=maybe(lambda r: Box(integer(r), maybe(decimal, r), maybe(text, r)), r),
    )


def place(r: Random) -> Place:
    return Place(id=r.randint(-1, 2), city=maybe(text, r))


def edge(r: Random) -> Edge:
    return Edge(
        left_key=r.choice("abcdg"),
        right_key=r.choice("abcdg"),
        slot=r.randint(0, 1),
        weight=maybe(small, r),
        note=maybe(text, r),
    )


def home(r: Random) -> LivesAt:
    return LivesAt(left_key=r.choice("abcg"), right_key=r.randint(-1, 3), weight=maybe(small, r))


def one_of(*makers: Callable[[Random], Any]) -> Callable[[Random], Any]:
    return lambda r: r.choice(makers)(r)


anything = one_of(node, node, edge, edge, place, home)


def histories(make: Callable[[Random], Any], size: int = 10) -> st.SearchStrategy[list[list[Any]]]:
    """Lists of what is ensured before each commit."""
    return st.lists(st.lists(numbered(make), min_size=1, max_size=size), min_size=1, max_size=5)


def write(history: list[list[Any]], model: PlainStore, *sessions: Session) -> None:
    """The same history in the model and in sessions, which must hand out the same ids."""
    for batch in history:
        for obj in batch:
            model.ensure(type(obj).__name__, key_of(obj), obj.model_dump())
        expected = model.commit()
        for session in sessions:
            session.ensure(batch)
            assert session.commit() == expected


def window(r: Random, model: PlainStore) -> Window:
    mode = r.choice(["latest", "as_of", "history"])
    return Window(mode, 0 if mode == "latest" else r.randint(0, len(model.commits) + 1))


def seen(query: Any, window: Window) -> Any:
    """A query that looks at a window."""
    if window.mode == "as_of":
        return query.as_of(window.commit)
    if window.mode == "history":
        return query.history_since(window.commit) if window.commit else query.with_history()
    return query


def start(session: Session, cls: type[Any], window: Window) -> Any:
    query = session.query()
    return seen(query.relations(cls) if ENDS[cls] else query.entities(cls), window)


def found(query: Any) -> list[Any]:
    """What a query gives, with the ends of relations, in a form that compares exactly."""
    return [(commit_of(o), fields(o), *ends(o)) for o in query.collect()]


def fields(obj: Any) -> Any:
    return plain.exact(obj.model_dump())


def ends(obj: Any) -> list[Any]:
    result = []
    for side in ("left", "right") if isinstance(obj, Relation) else ():
        try:
            result.append(fields(getattr(obj, side)))
        except EndpointMissingError:
            result.append(None)
    return result


def expected(frames: list[plain.Frame]) -> list[Any]:
    return [
        (f.version.commit, *(None if s is None else plain.exact(s) for s in f.sides.values()))
        for f in frames
    ]


# Filters

number = one_of(integer, integer, quarter, quarter, lambda r: r.choice([0.1, 1e300, -1e-9]))
CONSTANTS: dict[str, Callable[[Random], Any]] = {
    "text": text,
    "number": number,
    "decimal": one_of(decimal, small),
    "datetime": moment,
    "date": day,
    "bytes": blob,
    "choice": choice,
    "bool": boolean,
    "any": one_of(text, number),
    "whole": lambda r: several(text, r),
}
ORDERED = ["==", "!=", "<", "<=", ">", ">=", "in_"]
EQUAL = ["==", "!=", "in_"]
MATCH = ["startswith", "endswith", "contains"]
TRUTH = ["is_true", "is_false"]
NULL = ["is_null", "is_not_null"]
OPERATORS: dict[str, list[str]] = {
    "text": ORDERED + MATCH + NULL,
    "number": ORDERED + NULL,
    "decimal": ORDERED + NULL,
    "datetime": ORDERED + NULL,
    "date": ORDERED + NULL,
    "bytes": ORDERED + NULL,
    "choice": EQUAL + NULL,
    "bool": [*TRUTH, "in_", *NULL],
    "any": ORDERED + MATCH + TRUTH + NULL,
    "whole": EQUAL + NULL,
}
FIXED = [
    ("id", "text"), ("text", "text"), ("whole", "number"), ("real", "number"), ("flag", "bool"),
    ("at", "datetime"), ("day", "date"), ("amount", "decimal"), ("raw", "bytes"),
    ("choice", "choice"), ("loose", "any"), ("tags", "whole"),
]  # fmt: skip
NESTED = [("n", "number"), ("price", "decimal"), ("label", "text")]


def path(r: Random, least: int = 1) -> tuple[str, ...]:
    return tuple(r.choices(NAMES, k=r.randint(least, 2)))


def node_ref(r: Random, side: str = "own") -> Ref:
    """A field of a node, or something inside one."""
    shape = r.randrange(8)
    if shape < 3:
        return Ref(*r.choice(FIXED), side=side)
    if shape == 3:
        name, kind = r.choice(NESTED)
        return Ref("box", kind, (name,), side=side)
    if shape == 4:
        name, kind = r.choice([("tags", "text"), ("prices", "decimal")])
        return Ref(name, kind, items=(), side=side)
    if shape == 5:
        return Ref(r.choice(["data", "loose"]), "any", path(r), side=side)
    if shape == 6:
        return Ref("lines", "any", items=path(r), side=side)
    if r.random() < 0.5:
        return Ref("loose", "any", items=path(r, 0), side=side)
    return Ref("data", "any", path(r), path(r, 0), side=side)


EDGE_FIELDS = [("left_key", "text"), ("right_key", "text"), ("slot", "number")]
EDGE_FIELDS += [("weight", "number"), ("note", "text")]
HOME_FIELDS = [("left_key", "text"), ("right_key", "number"), ("weight", "number")]
PLACE_FIELDS = [("id", "number"), ("city", "text")]

REFS: dict[Any, Callable[[Random], Ref]] = {
    Node: node_ref,
    Place: lambda r: Ref(*r.choice(PLACE_FIELDS)),
    Edge: one_of(
        lambda r: Ref(*r.choice(EDGE_FIELDS)),
        lambda r: node_ref(r, "left"),
        lambda r: node_ref(r, "right"),
    ),
    LivesAt: one_of(
        lambda r: Ref(*r.choice(HOME_FIELDS)),
        lambda r: node_ref(r, "left"),
        lambda r: Ref(*r.choice(PLACE_FIELDS), side="right"),
    ),
}


def leaf(r: Random, cls: type[Any], frames: list[plain.Frame]) -> Leaf:
    """A test of one field; its constant is often one that some row holds there."""
    ref = REFS[cls](r)
    op = r.choice(OPERATORS[ref.kind])
    if op in NULL or op in TRUTH:
        return Leaf(ref, op)
    if op == "in_":
        return Leaf(ref, op, [constant(r, ref, frames) for _ in range(r.randint(0, 4))])
    if op not in MATCH:
        return Leaf(ref, op, constant(r, ref, frames))
    whole = constant(r, ref, frames)
    if not isinstance(whole, str):
        return Leaf(ref, op, text(r))
    begin = r.randint(0, len(whole))
    return Leaf(ref, op, whole[begin : r.randint(begin, len(whole))])


def constant(r: Random, ref: Ref, frames: list[plain.Frame]) -> Any:
    if frames and r.random() < 0.7:
        value = plain.value_of(ref, r.choice(frames))
        if ref.items is not None and isinstance(value, list) and value:
            value = plain.walk(r.choice(value), ref.items)
        of_kind = (str, int, float) if ref.kind == "any" else type(CONSTANTS[ref.kind](Random(0)))
        if ref.kind in ("number", "decimal"):
            of_kind = (int, float, Decimal)
        if isinstance(value, of_kind) and (ref.kind == "bool" or not isinstance(value, bool)):
            return value
    return CONSTANTS[ref.kind](r)


def expression(r: Random, cls: type[Any], frames: list[plain.Frame], depth: int = 3) -> Any:
    """Leaves, combined by & | ~ in any way."""
    shape = r.random()
    if not depth or shape < 0.4:
        return leaf(r, cls, frames)
    if shape < 0.7:
        return Negated(expression(r, cls, frames, depth - 1))
    combine = Both if shape < 0.85 else Either
    return combine(expression(r, cls, frames, depth - 1), expression(r, cls, frames, depth - 1))


OPERATOR_FUNCTIONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def build_ref(cls: type[Any], ref: Ref) -> Any:
    owner: Any = {"own": lambda c: c, "left": left, "right": right}[ref.side](cls)
    result = getattr(owner, ref.field)
    for segment in ref.path:
        result = result[segment]
    if ref.items is not None:
        result = result.any_path()
        for segment in ref.items:
            result = result[segment]
    return result


def build(cls: type[Any], expression: Any) -> Any:
    """The filter that a plain expression describes."""
    if isinstance(expression, Both):
        return build(cls, expression.a) & build(cls, expression.b)
    if isinstance(expression, Either):
        return build(cls, expression.a) | build(cls, expression.b)
    if isinstance(expression, Negated):
        return ~build(cls, expression.a)
    ref, op = build_ref(cls, expression.ref), expression.op
    if op in OPERATOR_FUNCTIONS:
        return OPERATOR_FUNCTIONS[op](ref, expression.constant)
    if op in NULL or op in TRUTH:
        return getattr(ref, op)()
    return getattr(ref, op)(expression.constant)
