"""The evaluator: plans executed in this process, over rows from any backend.

It knows nothing of SQL. Backends without a query engine of their own use it for everything, and
all backends use it where rows must be upgraded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from ontologia.model import canonical
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query.plan import (
    Among,
    AnyItem,
    Both,
    Compare,
    Either,
    Grouping,
    Having,
    HavingCompare,
    HavingGroup,
    IsNull,
    Measure,
    Operand,
    Predicate,
    Selection,
    TextMatch,
    Window,
    key_constraint,
)


class Version(NamedTuple):
    """A stored row, in the current schema, with the commit that wrote it."""

    row: Row
    commit_id: int


class VersionSource(Protocol):
    """Where the evaluator reads rows from."""

    def rows(
        self, spec: TypeSpec, window: Window, keys: Iterable[Row] | None = None
    ) -> Iterable[Version]:
        """The rows of a type in a window, optionally only those with these identities."""
        ...

    def row_at(self, spec: TypeSpec, window: Window, key: Row, commit_id: int) -> Version | None:
        """One row as the window shows it; in history, as of a commit."""
        ...


class _Frame(NamedTuple):
    """What a predicate is tested on: a row, and how to reach its endpoints."""

    version: Version
    endpoint: Callable[[str], Row | None]


Getter = Callable[[_Frame], Any]


def select(source: VersionSource, plan: Selection) -> list[Version]:
    """The rows of a selection, ordered and cut."""
    frames = _filtered(source, plan)
    key_size, history = plan.spec.key_size, plan.window.mode == "history"
    frames.sort(key=lambda f: _natural(f.version, key_size, history))
    for sort in reversed(plan.order):
        getter = _comparable(plan.spec, sort.operand)
        frames.sort(key=lambda f, g=getter: _null_first(g(f)), reverse=sort.descending)  # type: ignore[misc]
    end = None if plan.limit is None else plan.offset + plan.limit
    return [f.version for f in frames[plan.offset : end]]


def _natural(version: Version, key_size: int, history: bool) -> Any:
    key = version.row[:key_size]
    return (version.commit_id, key) if history else key


def _null_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _filtered(source: VersionSource, plan: Selection) -> list[_Frame]:
    spec, window = plan.spec, plan.window
    tests = [_test(spec, p) for p in plan.where]
    frames = []
    for version in source.rows(spec, window, key_constraint(plan)):
        frame = _Frame(version, _endpoints(source, spec, window, version))
        if all(test(frame) for test in tests):
            frames.append(frame)
    return frames


def _endpoints(
    source: VersionSource, spec: TypeSpec, window: Window, version: Version
) -> Callable[[str], Row | None]:
    def endpoint(side: str) -> Row | None:
        key = (version.row[0 if side == "left" else 1],)
        found = source.row_at(spec.endpoint(side), window, key, version.commit_id)
        return None if found is None else found.row

    return endpoint


def _stored(spec: TypeSpec, operand: Operand) -> Getter:
    """A getter of the operand's stored or JSON value; None when there is none."""
    assert operand.field is not None
    owner = spec if operand.base == "own" else spec.endpoint(operand.base)
    index = owner.position[operand.field.name]
    base = operand.base
    if base == "own":

        def read(f: _Frame) -> Any:
            return f.version.row[index]

    else:

        def read(f: _Frame) -> Any:
            row = f.endpoint(base)
            return None if row is None else row[index]

    composite = operand.field.type.kind in ("json", "any")
    if not composite:
        return read
    segments = operand.segments

    def walk(f: _Frame) -> Any:
        text = read(f)
        return None if text is None else _walk(canonical.loads(text), segments)

    return walk


def _walk(value: Any, segments: tuple[str, ...]) -> Any:
    for segment in segments:
        if type(value) is not dict:
            return None
        value = value.get(segment)
    return value


def _convert(operand: Operand, value: Any, nested: bool) -> Any:
    """The form in which stored values of the operand's kind compare."""
    if value is None:
        return None
    kind = operand.kind
    if kind == "decimal":
        return Decimal(value)
    if kind == "bytes" and nested:
        return operand.type.from_json(value)
    if kind == "json":
        return canonical.dumps(value)
    if kind == "bool":
        return bool(value)
    return value


def _comparable(spec: TypeSpec, operand: Operand) -> Getter:
    read, nested = _stored(spec, operand), bool(operand.segments)
    return lambda f: _convert(operand, read(f), nested)


def _test(spec: TypeSpec, predicate: Predicate) -> Callable[[_Frame], bool]:
    if isinstance(predicate, Both):
        parts = [_test(spec, p) for p in predicate.parts]
        return lambda f: all(p(f) for p in parts)
    if isinstance(predicate, Either):
        parts = [_test(spec, p) for p in predicate.parts]
        return lambda f: any(p(f) for p in parts)
    if isinstance(predicate, AnyItem):
        return _any_item(spec, predicate)
    read = _comparable(spec, predicate.operand)
    test = _leaf(predicate)
    return lambda f: test(read(f))


def _any_item(spec: TypeSpec, predicate: AnyItem) -> Callable[[_Frame], bool]:
    read = _stored(spec, predicate.operand)
    inner = predicate.predicate
    assert not isinstance(inner, Both | Either | AnyItem)
    operand, test, negated = inner.operand, _leaf(inner), predicate.negated

    def check(f: _Frame) -> bool:
        items = read(f)
        found = type(items) is list and any(
            test(_convert(operand, _walk(item, operand.segments), True)) for item in items
        )
        return found != negated

    return check


def _leaf(predicate: Compare | Among | TextMatch | IsNull) -> Callable[[Any], bool]:
    operand = predicate.operand
    if isinstance(predicate, IsNull):
        negated = predicate.negated
        return lambda v: (v is None) != negated
    if isinstance(predicate, TextMatch):
        return _text_test(predicate)
    if isinstance(predicate, Among):
        return _among_test(predicate)
    constant = (
        _convert(operand, predicate.value, False)
        if operand.kind == "decimal"
        else (predicate.value)
    )
    same = _same_kind(operand, constant)
    compare = _COMPARE[predicate.op]
    return lambda v: v is not None and same(v) and compare(v, constant)


def _text_test(predicate: TextMatch) -> Callable[[Any], bool]:
    text, negated = predicate.text, predicate.negated
    if predicate.how == "contains":
        return lambda v: type(v) is str and (text in v) != negated
    if predicate.how == "startswith":
        return lambda v: type(v) is str and v.startswith(text) != negated
    return lambda v: type(v) is str and v.endswith(text) != negated


def _among_test(predicate: Among) -> Callable[[Any], bool]:
    operand, negated = predicate.operand, predicate.negated
    if not predicate.values:
        return lambda v: negated
    if operand.kind == "decimal":
        values = {Decimal(v) for v in predicate.values}
        return lambda v: v is not None and (v in values) != negated
    groups: dict[Any, set[Any]] = {}
    for value in predicate.values:
        groups.setdefault(_kind_of(operand, value), set()).add(value)
    if negated and len(groups) > 1:
        # Whatever a row holds, it does not compare with one of the kinds.
        return lambda v: False

    def test(v: Any) -> bool:
        if v is None:
            return False
        same = groups.get(_kind_of(operand, v))
        return same is not None and (v in same) != negated

    return test


def _kind_of(operand: Operand, value: Any) -> Any:
    """What a value compares with: others of the same kind."""
    if operand.kind == "datetime":
        return canonical.is_aware_text(value)
    if operand.kind != "any":
        return None
    return float if type(value) is int else type(value)


def _same_kind(operand: Operand, constant: Any) -> Callable[[Any], bool]:
    """Values of different kinds are neither equal nor unequal nor ordered: unknown."""
    if operand.kind not in ("datetime", "any"):
        return lambda v: True
    kind = _kind_of(operand, constant)
    return lambda v: _kind_of(operand, v) == kind


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def group(source: VersionSource, plan: Grouping) -> list[tuple[Any, ...]]:
    """The groups of a selection: decoded keys, then measures."""
    spec = plan.selection.spec
    getters = [_comparable(spec, k) for k in plan.keys]
    groups: dict[tuple[Any, ...], list[_Frame]] = {}
    for frame in _filtered(source, plan.selection):
        groups.setdefault(tuple(g(frame) for g in getters), []).append(frame)
    if not plan.keys:
        groups.setdefault((), [])
    result = []
    for key in sorted(groups, key=lambda k: [_null_first(v) for v in k]):
        frames = groups[key]
        if all(_holds(spec, condition, frames) for condition in plan.having):
            values = [_decode_key(k, v) for k, v in zip(plan.keys, key, strict=True)]
            values += [decode_measure(m, measure(spec, m, frames)) for m in plan.measures]
            result.append(tuple(values))
    return result


def _decode_key(operand: Operand, value: Any) -> Any:
    if value is None:
        return None
    if operand.kind == "decimal":
        return canonical.decimal_plain(value)
    return operand.type.from_stored(value)


def decode_measure(measure: Measure, value: Any) -> Any:
    """A computed measure as the user knows it."""
    if value is None or measure.function not in ("min", "max"):
        return value
    assert measure.operand is not None
    if isinstance(value, Decimal):
        return canonical.decimal_plain(value)
    return measure.operand.type.from_stored(value)


def measure(spec: TypeSpec, item: Measure, frames: list[_Frame]) -> Any:
    """One measure over the rows of a group, in comparable form."""
    if item.function == "count":
        return len(frames)
    if item.predicate is not None:
        test = _test(spec, item.predicate)
        return sum(1 for f in frames if test(f))
    assert item.operand is not None
    if item.function == "avg_len":
        read = _stored(spec, item.operand)
        lengths = [len(v) for f in frames if type(v := read(f)) is list]
        return sum(lengths) / len(lengths) if lengths else None
    getter = _comparable(spec, item.operand)
    values = [v for f in frames if (v := getter(f)) is not None]
    if not values:
        return None
    if item.function in ("min", "max"):
        return min(values) if item.function == "min" else max(values)
    total: Any
    if item.operand.kind == "decimal":
        total = canonical.decimal_sum(values)
        return total if item.function == "sum" else canonical.decimal_mean(total, len(values))
    total = _float_sum(values) if any(type(v) is float for v in values) else sum(values)
    return total if item.function == "sum" else float(total) / len(values)


def _float_sum(values: list[Any]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:  # beyond the largest float lies infinity, as in a database
        return float(sum(values))


def _holds(spec: TypeSpec, condition: Having, frames: list[_Frame]) -> bool:
    if isinstance(condition, HavingGroup):
        results = (_holds(spec, part, frames) for part in condition.parts)
        return all(results) if condition.every else any(results)
    assert isinstance(condition, HavingCompare)
    value = measure(spec, condition.measure, frames)
    if condition.op == "is_null":
        return (value is None) != condition.negated
    if value is None:
        return False
    operand, constant = condition.measure.operand, condition.value
    if (
        operand is not None
        and operand.kind == "decimal"
        and condition.measure.function != "avg_len"
    ):
        constant = Decimal(constant)
    return _COMPARE[condition.op](value, constant)


def describe(plan: Selection | Grouping) -> tuple[str, ...]:
    """The steps in which the evaluator works, in words."""
    selection = plan.selection if isinstance(plan, Grouping) else plan
    spec, window = selection.spec, selection.window
    moment = {
        "latest": "the current rows",
        "as_of": f"the rows as of commit {window.commit_id}",
        "history": f"all versions after commit {window.commit_id}",
    }[window.mode]
    steps = [f"read {moment} of {spec.kind} {spec.name}"]
    if key_constraint(selection) is not None:
        steps[0] += " with one key"
    if selection.where:
        steps.append(f"keep those that satisfy {len(selection.where)} filters")
    if isinstance(plan, Grouping):
        steps.append(f"group by {', '.join(k.label for k in plan.keys) or 'nothing'}")
    elif selection.order:
        steps.append(f"sort by {', '.join(k.operand.label for k in selection.order)}")
    return tuple(steps)
