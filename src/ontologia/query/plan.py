"""Plans: queries bound to a type, checked, and ready for a compiler or the evaluator.

Binding resolves every reference, encodes every constant in its stored form, and pushes negations
down to the leaves. A negated leaf is a leaf again, so a consumer only has to know when a leaf is
*true*; unknown and false need not be told apart, as in a SQL ``WHERE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

from ontologia.errors import QueryError, shorten
from ontologia.model import canonical
from ontologia.model.codec import Row
from ontologia.model.spec import FieldSpec, TypeSpec
from ontologia.model.types import ChoiceType, OptionalType, ValueType
from ontologia.query.expressions import Aggregate, FieldRef, Filter, Order

Mode = Literal["latest", "as_of", "history"]
CompareOp = Literal["==", "!=", "<", "<=", ">", ">="]

_NEGATED: dict[str, CompareOp] = {
    "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
}  # fmt: skip
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
_SORTABLE = ("text", "number", "bool", "datetime", "decimal", "bytes")


@dataclass(frozen=True)
class Window:
    """The slice of history that a query looks at."""

    mode: Mode = "latest"
    commit_id: int = 0
    """The commit of ``as_of``, or the one after which ``history`` begins."""


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


def bind_operand(spec: TypeSpec, ref: FieldRef[Any, Any]) -> Operand:
    """Resolve a reference within a type; raises QueryError."""
    if not isinstance(ref, FieldRef):
        raise QueryError(
            f"{shorten(ref)} is not a field.", fix="pass a field such as Customer.age."
        )
    if not issubclass(spec.cls, ref.owner):
        raise QueryError(
            f"{ref!r} belongs to {ref.owner.__name__}, not to {spec.cls.__name__}.",
            why="a query sees the fields of its own type, and of its endpoints.",
            fix="use left(R).x or right(R).x for endpoints, or query the other type.",
        )
    if ref.side is not None and spec.kind != "relation":
        raise QueryError(f"{ref!r}: {spec.name} is not a relation and has no endpoints.")
    owner = spec if ref.side is None else spec.endpoint(ref.side)
    field = owner.by_name.get(ref.name)
    if field is None:
        raise QueryError(
            f"{owner.name} has no field {ref.name!r}.",
            fix=f"its fields are {', '.join(owner.by_name)}.",
        )
    base: Literal["own", "left", "right"] = "own"
    if ref.side is not None:
        base = "left" if ref.side == "left" else "right"
    type_ = _descend(field.type, ref.segments, ref)
    return Operand(base, field, ref.segments, type_, repr(ref))


def _descend(type_: ValueType, segments: tuple[str, ...], ref: FieldRef[Any, Any]) -> ValueType:
    for segment in segments:
        try:
            type_ = type_.child(segment)
        except KeyError:
            raise QueryError(
                f"{ref!r}: there is nothing at {segment!r}.",
                why="the declared type of the field has no such key.",
                fix="use the keys of the nested type; any_path() reaches into lists.",
            ) from None
        if isinstance(type_, OptionalType):
            type_ = type_.inner
    return type_


def bind_filter(spec: TypeSpec, item: object, negated: bool = False) -> Predicate:
    """A filter as a predicate, its negations pushed down; raises QueryError."""
    if not isinstance(item, Filter):
        raise QueryError(
            f"{shorten(item)} is not a filter.",
            fix="compare a field of the class with a value: where(Customer.age > 30).",
        )
    op, args = item.op, item.args
    if op == "not":
        return bind_filter(spec, args[0], not negated)
    if op in ("and", "or"):
        parts = tuple(bind_filter(spec, a, negated) for a in chain(item))
        return Both(parts) if (op == "and") != negated else Either(parts)
    if isinstance(args[0], Aggregate):
        raise QueryError(
            f"{item!r} is a condition on groups.", fix="use it in group_by(...).having(...)."
        )
    ref = args[0]
    operand = bind_operand(spec, ref)
    if ref.items is None:
        return _leaf(operand, op, args[1:], negated)
    inner = operand.type.item()
    if inner is None:
        raise QueryError(
            f"{ref!r}: any_path() needs a list.", why=f"{operand.label} is not one.",
        )  # fmt: skip
    if isinstance(inner, OptionalType):
        inner = inner.inner
    item_type = _descend(inner, ref.items, ref)
    one = Operand("item", None, ref.items, item_type, repr(ref))
    return AnyItem(operand, _leaf(one, op, args[1:], False), negated)


def chain(item: Filter[Any]) -> list[Any]:
    """The operands of ``a & b & c`` or ``a | b | c`` side by side, however many there are."""
    found: list[Any] = []
    waiting: list[Any] = [item]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Filter) and one.op == item.op:
            waiting.extend(reversed(one.args))
        else:
            found.append(one)
    return found


def _leaf(operand: Operand, op: str, args: tuple[Any, ...], negated: bool) -> Predicate:
    if op in ("is_null", "is_not_null"):
        return IsNull(operand, (op == "is_not_null") != negated)
    if op in ("is_true", "is_false"):
        if operand.kind not in ("bool", "any"):
            raise QueryError(
                f"{operand.label}.{op}() needs a boolean.", fix="compare with a value instead."
            )
        if not negated:
            return Compare(operand, "==", op == "is_true")
        # "not true" holds for false only: a missing value is neither.
        return Compare(operand, "!=", op == "is_true")
    if op in ("startswith", "endswith", "contains"):
        if operand.type.kind not in ("str", "any"):
            raise QueryError(
                f"{operand.label}.{op}() needs a text field.",
                fix="for lists use any_path(), e.g. Customer.tags.any_path() == 'vip'.",
            )
        return TextMatch(operand, op, _text(operand, args[0]), negated)  # type: ignore[arg-type]
    if op == "in_":
        values = tuple(encode_constant(operand, v, "==") for v in args[0])
        return Among(operand, values, negated)
    if op in _NEGATED:
        compare = _NEGATED[op] if negated else op
        return Compare(operand, compare, encode_constant(operand, args[0], op))  # type: ignore[arg-type]
    raise QueryError(f"{op!r} is not an operator.", fix="use ==, !=, <, <=, >, >=, in_() ...")


def _text(operand: Operand, value: Any) -> str:
    try:
        return canonical.text(value)
    except ValueError as error:
        raise _bad_constant(operand, value, str(error)) from None


def _bad_constant(operand: Operand, value: object, why: str) -> QueryError:
    return QueryError(
        f"{operand.label} cannot be compared with {shorten(value)}.",
        why=why + ".",
        fix="compare with a value of the field's type.",
    )


def encode_constant(operand: Operand, value: Any, op: str) -> Any:
    """The stored form of a constant compared with an operand; raises QueryError."""
    ordering = op not in ("==", "!=")
    type_ = operand.type
    if ordering and (isinstance(type_, ChoiceType) or operand.kind in ("json", "bool")):
        raise QueryError(
            f"{operand.label} has no order.", fix="use ==, !=, in_() or is_null() with it."
        )
    try:
        return _encode(operand, type_, value)
    except (ValueError, TypeError) as error:
        raise _bad_constant(operand, value, str(error)) from None


def _encode(operand: Operand, type_: ValueType, value: Any) -> Any:
    if isinstance(type_, ChoiceType):
        found = type_.encoded.get(value) if value.__hash__ else None
        if found is None:
            return type_.to_json(type_.from_json(value))
        return found
    kind = operand.kind
    if kind == "json":
        return type_.to_stored(value)
    if kind == "any":
        if type(value) not in (str, int, float):
            raise ValueError("a nested value of unknown type compares with text or numbers")
        return canonical.text(value) if isinstance(value, str) else _number(value)
    if kind == "number":
        return _number(value)
    if kind == "decimal" and type(value) is int:
        value = Decimal(value)
    expected = {
        "str": str, "date": date, "uuid": UUID, "datetime": datetime, "decimal": Decimal,
        "bytes": bytes, "bool": bool,
    }[type_.kind]  # fmt: skip
    if type(value) is not expected and not (expected is str and isinstance(value, str)):
        raise ValueError(f"the field holds {expected.__name__}, not {type(value).__name__}")
    return type_.to_stored(type_.check(value))


def _number(value: Any) -> int | float:
    if type(value) is int:
        return canonical.integer(value)
    if type(value) is float:
        return canonical.real(value)
    raise ValueError(f"the field holds numbers, not {type(value).__name__}")


def bind_order(spec: TypeSpec, item: object) -> SortKey:
    """A sort key; raises QueryError."""
    order = item if isinstance(item, Order) else Order(item, False)  # type: ignore[arg-type]
    operand = bind_operand(spec, order.ref)
    _expect_scalar(operand, order.ref, "order_by")
    return SortKey(operand, order.descending)


def bind_key(spec: TypeSpec, ref: FieldRef[Any, Any]) -> Operand:
    """A group key; raises QueryError."""
    operand = bind_operand(spec, ref)
    _expect_scalar(operand, ref, "group_by")
    return operand


def _expect_scalar(operand: Operand, ref: FieldRef[Any, Any], where: str) -> None:
    if ref.items is not None or operand.kind not in _SORTABLE:
        raise QueryError(
            f"{operand.label} cannot be used in {where}().",
            why="it is a list, a nested value, or a value of unknown type.",
            fix="use a field of a scalar type, or declare the nested type precisely.",
        )


def bind_measure(spec: TypeSpec, item: object) -> Measure:
    """An aggregate; raises QueryError."""
    if not isinstance(item, Aggregate):
        raise QueryError(
            f"{shorten(item)} is not an aggregate.",
            fix="use count(), count_where(...), Customer.age.sum(), .avg(), .min(), .max().",
        )
    function = item.function
    if function == "count":
        return Measure("count")
    if function == "count_where":
        return Measure("count_where", predicate=bind_filter(spec, item.operand))
    ref: Any = item.operand
    operand = bind_operand(spec, ref)
    wanted = {
        "sum": operand.kind in ("number", "decimal"),
        "avg": operand.kind in ("number", "decimal"),
        "min": operand.kind in _SORTABLE and operand.kind != "bool",
        "max": operand.kind in _SORTABLE and operand.kind != "bool",
        "avg_len": operand.type.item() is not None,
    }
    if ref.items is not None or not wanted[function]:
        need = {"sum": "numbers", "avg": "numbers", "avg_len": "lists"}.get(function, "an order")
        raise QueryError(f"{item!r}: {function} needs a field with {need}.")
    return Measure(function, operand)  # type: ignore[arg-type]


def bind_having(spec: TypeSpec, item: object, negated: bool = False) -> Having:
    """A condition on groups, its negations pushed down; raises QueryError."""
    if not isinstance(item, Filter):
        raise QueryError(
            f"{shorten(item)} is not a condition on groups.",
            fix="compare an aggregate: having(count() > 2).",
        )
    if item.op == "not":
        return bind_having(spec, item.args[0], not negated)
    if item.op in ("and", "or"):
        parts = tuple(bind_having(spec, a, negated) for a in chain(item))
        return HavingGroup(parts, (item.op == "and") != negated)
    if not isinstance(item.args[0], Aggregate):
        raise QueryError(
            f"{item!r} is a condition on rows.", fix="use it in where(...) before group_by()."
        )
    measure = bind_measure(spec, item.args[0])
    if item.op in ("is_null", "is_not_null"):
        return HavingCompare(measure, "is_null", None, (item.op == "is_not_null") != negated)
    if item.op == "in_":
        values = [_having_constant(measure, v, "==") for v in item.args[1]]
        op = "!=" if negated else "=="
        parts = tuple(HavingCompare(measure, op, v) for v in values)
        return HavingGroup(parts, negated)
    op = _NEGATED[item.op] if negated else item.op
    return HavingCompare(measure, op, _having_constant(measure, item.args[1], item.op))


def _having_constant(measure: Measure, value: Any, op: str) -> Any:
    operand = measure.operand
    if operand is not None and measure.function != "avg_len":
        return encode_constant(operand, value, op)
    try:
        return _number(value)
    except ValueError as error:
        raise QueryError(
            f"{measure.function} cannot be compared with {shorten(value)}.", why=f"{error}."
        ) from None


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
