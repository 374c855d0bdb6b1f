"""A plain model of a store and its queries: dicts, lists, and three-valued logic.

It shares nothing with the library, and prefers being obvious to being fast.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

Fields = dict[str, Any]
Identity = tuple[str, tuple[Any, ...]]
"""The name of a type, and the keys."""


# The store


@dataclass(frozen=True)
class Version:
    """What a commit wrote for one identity."""

    commit: int
    key: tuple[Any, ...]
    fields: Fields


@dataclass(frozen=True)
class Window:
    """latest, as_of a commit, or history since a commit."""

    mode: str = "latest"
    commit: int = 0


class PlainStore:
    """Commits as a list of what each one changed."""

    def __init__(self) -> None:
        self.commits: list[dict[Identity, Fields]] = []
        self.queued: dict[Identity, Fields] = {}

    def ensure(self, name: str, key: tuple[Any, ...], fields: Fields) -> None:
        self.queued[name, key] = copy.deepcopy(fields)

    def discard(self) -> None:
        self.queued = {}

    def commit(self) -> int | None:
        now = self.state(len(self.commits))
        changed = {
            identity: fields
            for identity, fields in self.queued.items()
            if identity not in now or exact(now[identity].fields) != exact(fields)
        }
        self.queued = {}
        if not changed:
            return None
        self.commits.append(changed)
        return len(self.commits)

    def state(self, at: int) -> dict[Identity, Version]:
        """The state right after a commit."""
        result = {}
        for number, changed in enumerate(self.commits[:at], 1):
            for identity, fields in changed.items():
                result[identity] = Version(number, identity[1], fields)
        return result

    def moment(self, window: Window, version: Version | None = None) -> int:
        """The commit whose state a window shows, for a version in history that version's."""
        if window.mode == "history":
            assert version is not None
            return version.commit
        return len(self.commits) if window.mode == "latest" else window.commit

    def versions(self, name: str, window: Window) -> list[Version]:
        """What a window shows of a type, in natural order."""
        if window.mode != "history":
            state = self.state(self.moment(window))
            return sorted((v for (n, _), v in state.items() if n == name), key=lambda v: v.key)
        return [
            Version(number, key, changed[n, key])
            for number, changed in enumerate(self.commits, 1)
            if number > window.commit
            for n, key in sorted(i for i in changed if i[0] == name)
        ]

    def frames(self, name: str, window: Window, ends: tuple[str, str] | None = None) -> list[Frame]:
        """The versions of a type; those of a relation with the fields of its ends."""
        frames = []
        for version in self.versions(name, window):
            frame = Frame(version, {"own": version.fields})
            if ends is not None:
                state = self.state(self.moment(window, version))
                for side, end, key in zip(("left", "right"), ends, version.key, strict=False):
                    found = state.get((end, (key,)))
                    frame.sides[side] = None if found is None else found.fields
            frames.append(frame)
        return frames


@dataclass
class Frame:
    """A version, and the fields that expressions see."""

    version: Version
    sides: dict[str, Fields | None] = field(default_factory=dict)


def exact(value: Any) -> Any:
    """A form in which two values are equal only if they are stored alike."""
    if isinstance(value, dict):
        return ("dict", sorted((str(k), exact(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("list", [exact(v) for v in value])
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    if hasattr(value, "__dataclass_fields__"):
        return exact({n: getattr(value, n) for n in value.__dataclass_fields__})
    return (type(value).__name__, repr(value))


# Expressions


@dataclass(frozen=True)
class Ref:
    """A field, of a row or one of its ends, perhaps at a path, perhaps of any item of a list."""

    field: str
    kind: str
    path: tuple[str, ...] = ()
    items: tuple[str, ...] | None = None
    side: str = "own"


@dataclass(frozen=True)
class Leaf:
    ref: Ref
    op: str
    constant: Any = None


@dataclass(frozen=True)
class Both:
    a: Any
    b: Any


@dataclass(frozen=True)
class Either:
    a: Any
    b: Any


@dataclass(frozen=True)
class Negated:
    a: Any


Truth = bool | None
"""None is unknown."""


def truth(expression: Any, frame: Frame) -> Truth:
    """Kleene's logic."""
    if isinstance(expression, Negated):
        return negation(truth(expression.a, frame))
    if isinstance(expression, Both | Either):
        parts = [truth(expression.a, frame), truth(expression.b, frame)]
        return conjunction(parts) if isinstance(expression, Both) else disjunction(parts)
    ref = expression.ref
    if ref.items is None:
        return holds(ref.kind, expression.op, value_of(ref, frame), expression.constant)
    items = value_of(ref, frame)
    if not isinstance(items, list):
        return False
    found = [walk(item, ref.items) for item in items]
    return any(holds(ref.kind, expression.op, v, expression.constant) is True for v in found)


def negation(a: Truth) -> Truth:
    return None if a is None else not a


def conjunction(parts: list[Truth]) -> Truth:
    if False in parts:
        return False
    return None if None in parts else True


def disjunction(parts: list[Truth]) -> Truth:
    if True in parts:
        return True
    return None if None in parts else False


def value_of(ref: Ref, frame: Frame) -> Any:
    fields = frame.sides[ref.side]
    return None if fields is None else walk(fields[ref.field], ref.path)


def walk(value: Any, path: tuple[str, ...]) -> Any:
    for segment in path:
        if hasattr(value, "__dataclass_fields__"):
            value = getattr(value, segment)
        elif isinstance(value, dict):
            value = value.get(segment)
        else:
            return None
    return value


def holds(kind: str, op: str, value: Any, constant: Any) -> Truth:
    """One test on one value."""
    if op == "is_null":
        return value is None
    if op == "is_not_null":
        return value is not None
    if op == "in_":
        return disjunction([holds(kind, "==", value, c) for c in constant])
    if value is None:
        return None
    if op in ("is_true", "is_false"):
        return value is (op == "is_true") if isinstance(value, bool) else None
    if op in ("startswith", "endswith", "contains"):
        if not isinstance(value, str):
            return None
        return constant in value if op == "contains" else getattr(value, op)(constant)
    if not comparable(kind, value, constant):
        return None
    if kind == "whole":
        value, constant = exact(value), exact(constant)
    return COMPARE[op](value, constant)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def comparable(kind: str, value: Any, constant: Any) -> bool:
    if kind == "datetime":
        return (value.tzinfo is None) == (constant.tzinfo is None)
    if kind == "any":
        if isinstance(constant, str):
            return isinstance(value, str)
        return isinstance(value, int | float) and not isinstance(value, bool)
    return True


# Order, groups and aggregates


def sort_key(value: Any) -> Any:
    """Nulls lowest; times by what the clock shows in UTC, naive before aware."""
    if value is None:
        return (0,)
    if isinstance(value, datetime):
        aware = value.tzinfo is not None
        clock = value.astimezone(UTC).replace(tzinfo=None) if aware else value
        return (1, clock, aware)
    return (1, value)


def ordered(frames: list[Frame], keys: list[tuple[Ref, bool]]) -> list[Frame]:
    """Sorted by (field, descending) pairs; the natural order settles ties."""
    for ref, descending in reversed(keys):
        frames = sorted(frames, key=lambda f: sort_key(value_of(ref, f)), reverse=descending)
    return frames


@dataclass(frozen=True)
class Aggregate:
    function: str
    ref: Ref | None = None
    predicate: Any = None


def aggregate(item: Aggregate, frames: list[Frame]) -> Any:
    if item.function == "count":
        return len(frames)
    if item.function == "count_where":
        return sum(truth(item.predicate, f) is True for f in frames)
    assert item.ref is not None
    values = [v for f in frames if (v := value_of(item.ref, f)) is not None]
    if item.function == "avg_len":
        values = [len(v) for v in values if isinstance(v, list)]
        return sum(values) / len(values) if values else None
    if not values:
        return None
    if item.function in ("min", "max"):
        return {"min": min, "max": max}[item.function](values, key=sort_key)
    with localcontext(prec=100):
        total = sum(values)
    if item.function == "sum":
        return total
    if isinstance(total, Decimal):
        return Context(prec=28).divide(total, Decimal(len(values)))
    return float(Fraction(total) / len(values))


@dataclass(frozen=True)
class Condition:
    """A comparison of an aggregate, perhaps negated."""

    item: Aggregate
    op: str
    constant: Any
    negated: bool


def group_key(value: Any) -> Any:
    """Equal for values that belong to one group."""
    if isinstance(value, bool | date | bytes | str) or value is None:
        return (type(value).__name__, sort_key(value))
    return ("number", value)


def grouped(
    frames: list[Frame],
    keys: list[Ref],
    items: dict[str, Aggregate],
    having: list[Condition],
) -> list[list[Any]]:
    """One row per group: its keys, then the aggregates; ordered by the keys."""
    groups: dict[Any, list[Frame]] = {}
    for frame in frames:
        groups.setdefault(tuple(group_key(value_of(k, frame)) for k in keys), []).append(frame)
    rows = []
    for members in groups.values():
        values = [value_of(k, members[0]) for k in keys]
        if all(satisfied(c, members) for c in having):
            rows.append([*values, *(aggregate(i, members) for i in items.values())])
    return sorted(rows, key=lambda row: [sort_key(v) for v in row[: len(keys)]])


def satisfied(condition: Condition, frames: list[Frame]) -> bool:
    value = aggregate(condition.item, frames)
    if value is None:
        return False
    return COMPARE[condition.op](value, condition.constant) is not condition.negated
