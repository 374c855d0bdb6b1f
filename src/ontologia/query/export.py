"""Results as plain dicts, Arrow tables and data frames."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime

from ontologia.errors import MissingDependencyError
from ontologia.model.canonical import dumps
from ontologia.model.composites import OptionalType, RecordType, SequenceType
from ontologia.model.spec import FieldSpec, TypeSpec
from ontologia.model.types import ChoiceType, Scalar, ValueType

if TYPE_CHECKING:
    import pandas
    import pyarrow


def to_dicts(spec: TypeSpec, objects: list[Any], history: bool) -> list[dict[str, Any]]:
    """Objects as dicts of Python values; with their commits if they come from history."""
    names = [f.name for f in spec.fields] + (["_commit_id"] if history else [])
    return [{n: d[n] for n in names} for d in (o.__dict__ for o in objects)]


def to_arrow(spec: TypeSpec, objects: list[Any], history: bool) -> pyarrow.Table:
    """Objects as an Arrow table: scalars natively, nested values as lists and structs."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "arrow") from error
    columns: dict[str, Any] = {}
    for field in spec.fields:
        values = [o.__dict__[field.name] for o in objects]
        columns[field.name] = _column(pa, field, values)
    if history:
        columns["_commit_id"] = pa.array([o.__dict__["_commit_id"] for o in objects], pa.int64())
    return pa.table(columns)


def _column(pa: Any, field: FieldSpec, values: list[Any]) -> Any:
    kind = field.type.kind
    fixed = {
        "str": pa.string(),
        "uuid": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "bytes": pa.binary(),
        "date": pa.date32(),
    }
    if isinstance(field.type, ChoiceType):
        kind = field.type.base.__name__
    if not field.type.plain and kind not in ("datetime", "date", "decimal"):
        values = [None if v is None else field.type.to_json(v) for v in values]
    if kind in fixed:
        return pa.array(values, fixed[kind])
    if kind == "datetime":
        aware = field.type.hint is AwareDatetime or any(v and v.tzinfo for v in values)
        if not aware or all(v is None or v.tzinfo is not None for v in values):
            return pa.array(values, pa.timestamp("us", tz="UTC" if aware else None))
        return pa.array([None if v is None else field.type.to_stored(v) for v in values])
    if kind == "decimal":
        return _decimals(pa, values)
    if _has_shape(field.type):
        return pa.array(values)
    # Values of different shapes have no common Arrow type; as JSON they are complete.
    return pa.array([None if v is None else dumps(v) for v in values], pa.string())


def _decimals(pa: Any, values: list[Any]) -> Any:
    try:
        return pa.array(values, None if any(v is not None for v in values) else pa.decimal128(38))
    except pa.ArrowInvalid:  # more digits than Arrow's widest decimal has
        return pa.array([None if v is None else str(v) for v in values], pa.string())


def _has_shape(type_: ValueType) -> bool:
    """Whether all values of a type look alike: lists and records do, dicts do not."""
    if isinstance(type_, OptionalType | SequenceType):
        return _has_shape(type_.inner)
    if isinstance(type_, RecordType):
        return all(map(_has_shape, type_.members.values()))
    return isinstance(type_, Scalar)


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """An Arrow table as a data frame."""
    try:
        importlib.import_module("pandas")
    except ImportError as error:
        raise MissingDependencyError("pandas", "pandas") from error
    return table.to_pandas()
