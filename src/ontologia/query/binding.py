"""Binding: expressions checked against a type, and turned into plans.

Every reference is resolved, every constant encoded in its stored form, and every negation pushed
down to the leaves.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from ontologia.errors import QueryError, shorten
from ontologia.model import canonical
from ontologia.model.composites import OptionalType
from ontologia.model.spec import TypeSpec
from ontologia.model.types import ChoiceType, ValueType
from ontologia.query.expressions import Aggregate, FieldRef, Filter, Order
from ontologia.query.plan import (
    Among,
    AnyItem,
    Both,
    Compare,
    CompareOp,
    Either,
    Having,
    HavingCompare,
    HavingGroup,
    IsNull,
    Measure,
    Operand,
    Predicate,
    SortKey,
    TextMatch,
)

_NEGATED: dict[str, CompareOp] = {
    "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
}  # fmt: skip
MAX_DEPTH = 100
_SORTABLE = ("text", "number", "bool", "datetime", "decimal", "bytes")


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


def bind_filter(spec: TypeSpec, item: object, negated: bool = False, depth: int = 0) -> Predicate:
    """A filter as a predicate, its negations pushed down; raises QueryError."""
    _check_depth(depth)
    if not isinstance(item, Filter):
        raise QueryError(
            f"{shorten(item)} is not a filter.",
            fix="compare a field of the class with a value: where(Customer.age > 30).",
        )
    op, args = item.op, item.args
    if op == "not":
        return bind_filter(spec, args[0], not negated, depth + 1)
    if op in ("and", "or"):
        parts = tuple(bind_filter(spec, a, negated, depth + 1) for a in chain(item))
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


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise QueryError(
            f"the filter is nested more than {MAX_DEPTH} levels deep.",
            why="a & b & c is one level, however long; (a | (b & (c | ...))) is many.",
            fix="use in_(), or split the query.",
        )


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


def bind_having(spec: TypeSpec, item: object, negated: bool = False, depth: int = 0) -> Having:
    """A condition on groups, its negations pushed down; raises QueryError."""
    _check_depth(depth)
    if not isinstance(item, Filter):
        raise QueryError(
            f"{shorten(item)} is not a condition on groups.",
            fix="compare an aggregate: having(count() > 2).",
        )
    if item.op == "not":
        return bind_having(spec, item.args[0], not negated, depth + 1)
    if item.op in ("and", "or"):
        parts = tuple(bind_having(spec, a, negated, depth + 1) for a in chain(item))
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


def check_moment(name: str, at: object) -> str:
    """An aware time, as stored; raises QueryError."""
    if not isinstance(at, datetime):
        raise QueryError(f"{name}({at!r}) is not a time.", fix="pass an aware datetime.")
    if at.tzinfo is None:
        raise QueryError(
            f"{name}({at!r}) has no time zone.",
            why="what is stored is stamped in UTC.",
            fix="pass an aware datetime, e.g. datetime.now(timezone.utc).",
        )
    try:
        return canonical.datetime_text(at)
    except ValueError as error:
        raise QueryError(f"{name}({at!r}): {error}.") from None


def check_number(name: str, value: object) -> int:
    """A whole number, 0 or more, given to a builder; raises QueryError."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    what, fix = f"{name}({value!r}) makes no sense.", "pass a whole number, 0 or more."
    if value is None and name in ("as_of", "history_since"):
        fix = "pass a commit id; commit() gives None when there was nothing to change."
    raise QueryError(what, fix=fix)
