"""Plans: queries bound to a type, ready for a compiler or the evaluator.

Negations stand at the leaves only, and a negated leaf is a leaf again. So a consumer only has to
know when a leaf is *true*; unknown and false need not be told apart, as in a SQL ``WHERE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ontologia.model.codec import Row
from ontologia.model.spec import FieldSpec, TypeSpec
from ontologia.model.types import ChoiceType, ValueType

Mode = Literal["latest", "as_of", "history"]
CompareOp = Literal["==", "!=", "<", "<=", ">", ">="]

_KINDS = {
    "str": "text",
    "date": "text",
    "uuid": "text",
    "int": "number",
    "float": "number",
    "bool": "bool",
    "datetime": "datetime",
    "decimal": "decimal",
    "bytes": "bytes",
    "any": "any",
}
_CHOICE_KINDS = {str: "text", int: "number", float: "number", bool: "bool"}


@dataclass(frozen=True)
class Window:
    """The slice of history that a query looks at."""

    mode: Mode = "latest"
    commit_id: int = 0
    """The commit of ``as_of``, or the one after which ``history`` begins."""

    until: int | None = None
    """Where ``history`` ends: before what is still being written; None: nothing is."""


LATEST = Window()


@dataclass(frozen=True)
class Operand:
    """A resolved reference: a field of the type itself, of an endpoint, or of a list item."""

    base: Literal["own", "left", "right", "item"]
    field: FieldSpec | None
    segments: tuple[str, ...]
    type: ValueType
    label: str

    @property
    def kind(self) -> str:
        """How values compare: text, number, bool, datetime, decimal, bytes, any or json."""
        if isinstance(self.type, ChoiceType):
            return _CHOICE_KINDS[self.type.base]
        return _KINDS.get(self.type.kind, "json")

    @property
    def has_fractions(self) -> bool:
        """Whether its numbers may be other than whole."""
        type_ = self.type
        return not (type_.kind == "int" or (isinstance(type_, ChoiceType) and type_.base is int))


@dataclass(frozen=True)
class Compare:
    """True where the operand has a value and the comparison holds."""

    operand: Operand
    op: CompareOp
    value: Any


@dataclass(frozen=True)
class Among:
    """True where the operand's value is (or, negated, is not) one of the values."""

    operand: Operand
    values: tuple[Any, ...]
    negated: bool


@dataclass(frozen=True)
class TextMatch:
    """True where the operand's text does (or does not) start with, end with or hold a text."""

    operand: Operand
    how: Literal["startswith", "endswith", "contains"]
    text: str
    negated: bool


@dataclass(frozen=True)
class IsNull:
    """True where the operand has no value (or, negated, has one)."""

    operand: Operand
    negated: bool


@dataclass(frozen=True)
class AnyItem:
    """True where some item of a list satisfies the predicate (or, negated, where none does)."""

    operand: Operand
    predicate: Predicate
    negated: bool


@dataclass(frozen=True)
class Both:
    """True where all parts are."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True)
class Either:
    """True where some part is."""

    parts: tuple[Predicate, ...]


Predicate: TypeAlias = Compare | Among | TextMatch | IsNull | AnyItem | Both | Either


@dataclass(frozen=True)
class SortKey:
    """One key of an order; nulls sort lowest."""

    operand: Operand
    descending: bool


@dataclass(frozen=True)
class Selection:
    """Which rows of a type, in which order."""

    spec: TypeSpec
    window: Window = LATEST
    where: tuple[Predicate, ...] = ()
    order: tuple[SortKey, ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Measure:
    """An aggregate over a group."""

    function: Literal["count", "count_where", "sum", "avg", "min", "max", "avg_len"]
    operand: Operand | None = None
    predicate: Predicate | None = None


@dataclass(frozen=True)
class HavingCompare:
    """A condition on a measure; ``value`` None means a test for null."""

    measure: Measure
    op: str
    value: Any
    negated: bool = False


@dataclass(frozen=True)
class HavingGroup:
    """Conditions on measures, all or any of which must hold."""

    parts: tuple[Having, ...]
    every: bool


Having: TypeAlias = HavingCompare | HavingGroup


@dataclass(frozen=True)
class Grouping:
    """Measures over the groups of a selection; without keys there is one group of all rows."""

    selection: Selection
    keys: tuple[Operand, ...]
    having: tuple[Having, ...]
    measures: tuple[Measure, ...]


def conjuncts(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """The predicates that must all hold, nested ones unfolded."""
    for part in parts:
        if isinstance(part, Both):
            yield from conjuncts(part.parts)
        else:
            yield part


def key_constraint(plan: Selection) -> list[Row] | None:
    """The only identities a selection can match, when its filters say so."""
    spec = plan.spec
    found: dict[str, Any] = {}
    for part in conjuncts(plan.where):
        if isinstance(part, Compare) and part.op == "==" and part.operand.base == "own":
            field = part.operand.field
            if field is not None and field.is_key and not part.operand.segments:
                found[field.name] = part.value
    if all(f.name in found for f in spec.key_fields):
        return [tuple(found[f.name] for f in spec.key_fields)]
    return None


def only_key(plan: Selection) -> Row | None:
    """The identity that a selection asks for, if it asks for nothing else and one moment."""
    if plan.window.mode == "history" or len(plan.where) != plan.spec.key_size or plan.offset:
        return None
    if plan.limit == 0 or not all(isinstance(p, Compare) for p in plan.where):
        return None
    keys = key_constraint(plan)
    return None if keys is None else keys[0]


def sides_of(plan: Selection | Grouping) -> frozenset[str]:
    """The endpoints that a plan's filters, orders, keys and measures look at."""
    selection = plan.selection if isinstance(plan, Grouping) else plan
    if selection.spec.kind != "relation":
        return frozenset()
    operands: list[Operand] = [k.operand for k in selection.order]
    predicates: list[Predicate] = list(selection.where)
    if isinstance(plan, Grouping):
        operands += plan.keys
        conditions: list[Having] = list(plan.having)
        measures = list(plan.measures)
        while conditions:
            condition = conditions.pop()
            if isinstance(condition, HavingGroup):
                conditions.extend(condition.parts)
            else:
                measures.append(condition.measure)
        operands += [m.operand for m in measures if m.operand is not None]
        predicates += [m.predicate for m in measures if m.predicate is not None]
    while predicates:
        predicate = predicates.pop()
        if isinstance(predicate, Both | Either):
            predicates.extend(predicate.parts)
        else:
            operands.append(predicate.operand)
    return frozenset(o.base for o in operands if o.base in ("left", "right"))
