"""Value types: how a declared Python type is checked, stored, and read back exactly.

A value has two encoded forms. The *JSON* form is what history and event payloads hold. The
*stored* form is what a column holds: text, integer, float, bool or bytes, and canonical JSON text
for everything composite. Both are lossless for the declared type.
"""

from __future__ import annotations

import base64
import binascii
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from pydantic import AwareDatetime, NaiveDatetime

from ontologia.errors import shorten
from ontologia.model import canonical
from ontologia.model.canonical import dumps, loads


class UnsupportedTypeError(Exception):
    """A declared type that has no exact stored form; carries the reason."""


class ValueType:
    """What a field holds. Subclasses say how it is encoded."""

    kind: ClassVar[str] = "json"
    """Decides the column type and which comparisons make sense."""

    plain: ClassVar[bool] = False
    """The stored form is the value itself."""

    hint: Any
    """The annotation that pydantic validates."""

    def describe(self) -> Any:
        """The type as JSON, for fingerprints and diffs."""
        raise NotImplementedError

    def to_json(self, value: Any) -> Any:
        """The JSON form; raises ValueError when the value is not storable."""
        raise NotImplementedError

    def from_json(self, data: Any) -> Any:
        """The value that :meth:`to_json` encoded."""
        raise NotImplementedError

    def to_stored(self, value: Any) -> Any:
        """The stored form of a value that is not None."""
        return dumps(self.to_json(value))

    def from_stored(self, stored: Any) -> Any:
        """The value that :meth:`to_stored` encoded."""
        return self.from_json(loads(stored))

    def check(self, value: Any) -> Any:
        """The value itself; raises ValueError when it is not storable."""
        self.to_json(value)
        return value

    def child(self, segment: str) -> ValueType:
        """The type at a key of this one; raises KeyError when there can be none."""
        raise KeyError(segment)

    def item(self) -> ValueType | None:
        """The type of the items if this is a list or a set, otherwise None."""
        return None


class Scalar(ValueType):
    """A value that fits into one column."""

    json_is_stored: ClassVar[bool] = True

    def __init__(self, hint: Any = None) -> None:
        self.hint = self.python_type if hint is None else hint

    python_type: ClassVar[type]

    def describe(self) -> Any:
        return self.kind

    def check(self, value: Any) -> Any:
        return value

    def _expect(self, value: Any) -> Any:
        if type(value) is not self.python_type:
            raise ValueError(f"{shorten(value)} is not of type {self.python_type.__name__}")
        return self.check(value)

    def to_json(self, value: Any) -> Any:
        return self._expect(value)

    def from_json(self, data: Any) -> Any:
        return data

    def to_stored(self, value: Any) -> Any:
        return value

    def from_stored(self, stored: Any) -> Any:
        return stored


class TextType(Scalar):
    kind, plain, python_type = "str", True, str

    def check(self, value: Any) -> Any:
        return canonical.text(value)


class IntegerType(Scalar):
    kind, plain, python_type = "int", True, int

    def check(self, value: Any) -> Any:
        return canonical.integer(value)


class RealType(Scalar):
    kind, plain, python_type = "float", True, float

    def check(self, value: Any) -> Any:
        # A column may not tell -0.0 from 0.0, so a field does not either.
        return canonical.real(value) + 0.0

    def to_json(self, value: Any) -> Any:
        # As type checkers do, take a whole number where a float is declared.
        if type(value) not in (float, int):
            raise ValueError(f"{shorten(value)} is not of type float")
        return canonical.real(float(value))


class BooleanType(Scalar):
    kind, python_type = "bool", bool

    def from_stored(self, stored: Any) -> Any:
        return bool(stored)


class BytesType(Scalar):
    kind, plain, python_type, json_is_stored = "bytes", True, bytes, False

    def to_json(self, value: Any) -> Any:
        return base64.b64encode(self._expect(value)).decode()

    def from_json(self, data: Any) -> Any:
        try:
            if isinstance(data, str):
                return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            pass
        raise ValueError("bytes are stored as base64 text")


class _TextScalar(Scalar):
    """A scalar whose stored form is a text."""

    encode: ClassVar[Any]
    decode: ClassVar[Any]

    def __init__(self, hint: Any = None) -> None:
        super().__init__(hint)
        # In place of methods that would only pass the call on: codecs make it once per value.
        self.__dict__.update(to_stored=self.encode, from_stored=self.decode)

    def to_json(self, value: Any) -> Any:
        return self.to_stored(self._expect(value))

    def from_json(self, data: Any) -> Any:
        return self.from_stored(data)


class DatetimeType(_TextScalar):
    kind, python_type = "datetime", datetime
    encode, decode = staticmethod(canonical.datetime_text), datetime.fromisoformat

    def check(self, value: Any) -> Any:
        # In UTC from the start: what an object holds equals what is read back, also where
        # clocks show an hour twice and Python finds no two such times equal.
        if type(value) is not datetime:
            value = datetime.combine(
                date(value.year, value.month, value.day), value.timetz(), value.tzinfo
            )
        return canonical.to_utc(value)

    def describe(self) -> Any:
        if self.hint is AwareDatetime:
            return "datetime (aware)"
        return "datetime (naive)" if self.hint is NaiveDatetime else "datetime"


class DateType(_TextScalar):
    kind, python_type = "date", date
    encode, decode = staticmethod(date.isoformat), date.fromisoformat

    def check(self, value: Any) -> Any:
        return value if type(value) is date else date(value.year, value.month, value.day)


class DecimalType(_TextScalar):
    kind, python_type = "decimal", Decimal
    encode, decode = str, Decimal

    def check(self, value: Any) -> Any:
        return canonical.decimal(value)


class UUIDType(_TextScalar):
    kind, python_type = "uuid", UUID
    encode, decode = str, UUID


class ChoiceType(Scalar):
    """An Enum or Literal: one of a fixed set of JSON scalars."""

    kind = "choice"

    def __init__(self, hint: Any, pairs: list[tuple[Any, Any]], label: str) -> None:
        self.hint, self.label = hint, label
        bases = {type(scalar) for scalar, _ in pairs}
        if not bases <= {str, int, bool, float}:
            raise UnsupportedTypeError(
                f"the members of {label} must be text, integers, floats or booleans"
            )
        if len(bases) != 1:
            raise UnsupportedTypeError(f"the members of {label} must all be of one type")
        (self.base,) = bases
        try:
            for scalar, _ in pairs:
                SCALARS[self.base].check(scalar)
        except ValueError as error:
            raise UnsupportedTypeError(f"a member of {label} cannot be stored: {error}") from None
        self.members = dict(pairs)
        self.encoded = {value: scalar for scalar, value in pairs}

    def describe(self) -> Any:
        # The order of declaration means nothing, so that it may change freely.
        return {"one_of": sorted(self.members, key=dumps)}

    def to_json(self, value: Any) -> Any:
        try:
            return self.encoded[value]
        except (KeyError, TypeError):
            raise ValueError(f"{shorten(value)} is not one of {self.label}") from None

    to_stored = to_json

    def from_json(self, data: Any) -> Any:
        try:
            return self.members[data]
        except (KeyError, TypeError):
            raise ValueError(f"{shorten(data)} is not one of {self.label}") from None

    def from_stored(self, stored: Any) -> Any:
        return self.members[stored]


class AnyType(ValueType):
    """Any JSON value: text, numbers, booleans, None, lists, and dicts with text keys."""

    kind = "any"

    def __init__(self, hint: Any = Any) -> None:
        self.hint = hint

    def describe(self) -> Any:
        return "any"

    def to_json(self, value: Any) -> Any:
        _check_json(value, 0)
        return value

    def from_json(self, data: Any) -> Any:
        return data

    def child(self, segment: str) -> ValueType:
        return self

    def item(self) -> ValueType | None:
        return self


def _check_json(value: Any, depth: int) -> None:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"a value may be nested {MAX_DEPTH} deep, and must not contain itself")
    if kind in _JSONSCALARS:
        SCALARS[kind].to_json(value)
    elif kind is list:
        for item in value:
            _check_json(item, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"the key {shorten(key)} is not text")
            canonical.text(key)
            _check_json(item, depth + 1)
    elif value is not None:
        raise ValueError(
            f"{shorten(value)} of type {kind.__name__} is not a JSON value; "
            "declare a precise type for the field to store it exactly"
        )


MAX_DEPTH = 100
_JSONSCALARS = (str, int, float, bool)
SCALARS: dict[type, Scalar] = {
    str: TextType(),
    int: IntegerType(),
    float: RealType(),
    bool: BooleanType(),
    bytes: BytesType(),
    datetime: DatetimeType(),
    date: DateType(),
    Decimal: DecimalType(),
    UUID: UUIDType(),
}
