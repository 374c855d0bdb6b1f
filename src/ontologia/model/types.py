"""Value types: how a declared Python type is checked, stored, and read back exactly.

A value has two encoded forms. The *JSON* form is what history and event payloads hold. The
*stored* form is what a column holds: text, integer, float, bool or bytes, and canonical JSON text
for everything composite. Both are lossless for the declared type.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin
from uuid import UUID

import typing_extensions
from pydantic import AwareDatetime, BaseModel, NaiveDatetime

from ontologia.errors import shorten
from ontologia.model import canonical
from ontologia.model.canonical import dumps, loads

NONE = type(None)


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
            return base64.b64decode(data, validate=True)
        except (binascii.Error, TypeError):
            raise ValueError("bytes are stored as base64 text") from None


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
                _SCALARS[self.base].check(scalar)
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
    if kind in _JSON_SCALARS:
        _SCALARS[kind].to_json(value)
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
_JSON_SCALARS = (str, int, float, bool)
_SCALARS: dict[type, Scalar] = {
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


class OptionalType(ValueType):
    """A nested value that may be None."""

    def __init__(self, inner: ValueType) -> None:
        self.inner = inner
        self.hint = Union[inner.hint, None]  # noqa: UP007 (the hint may not be a class)

    def describe(self) -> Any:
        return {"optional": self.inner.describe()}

    def to_json(self, value: Any) -> Any:
        return None if value is None else self.inner.to_json(value)

    def from_json(self, data: Any) -> Any:
        return None if data is None else self.inner.from_json(data)

    def child(self, segment: str) -> ValueType:
        return self.inner.child(segment)

    def item(self) -> ValueType | None:
        return self.inner.item()


class SequenceType(ValueType):
    """A list, a set, a frozenset, or a tuple of any length."""

    def __init__(self, base: Any, inner: ValueType, bare: bool) -> None:
        self.base, self.inner = base, inner
        self._unordered = base in (set, frozenset)
        if bare:
            self.hint = base
        else:
            arguments = (inner.hint, ...) if base.__name__ == "tuple" else inner.hint
            self.hint = base[arguments]

    def describe(self) -> Any:
        return {self.base.__name__: self.inner.describe()}

    def to_json(self, value: Any) -> Any:
        if type(value) is not self.base:
            raise ValueError(f"{shorten(value)} is not a {self.base.__name__}")
        encode = self.inner.to_json
        data = [encode(item) for item in value]
        if self._unordered:
            data.sort(key=dumps)
        return data

    def from_json(self, data: Any) -> Any:
        decode = self.inner.from_json
        return self.base([decode(item) for item in _expect_json(data, list)])

    def item(self) -> ValueType | None:
        return self.inner


class TupleType(ValueType):
    """A tuple with a fixed number of items."""

    def __init__(self, inner: list[ValueType]) -> None:
        self.inner = inner
        self.hint: Any = cast(Any, tuple)[tuple(t.hint for t in inner)]

    def describe(self) -> Any:
        return {"tuple": [t.describe() for t in self.inner]}

    def to_json(self, value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(self.inner):
            raise ValueError(f"{shorten(value)} is not a tuple of {len(self.inner)} items")
        return [t.to_json(v) for t, v in zip(self.inner, value, strict=True)]

    def from_json(self, data: Any) -> Any:
        items = _expect_json(data, list)
        return tuple(t.from_json(v) for t, v in zip(self.inner, items, strict=True))

    def item(self) -> ValueType | None:
        return AnyType()


class DictType(ValueType):
    """A dict; keys of scalar types become text."""

    def __init__(self, key: ValueType, inner: ValueType, bare: bool) -> None:
        if not isinstance(key, Scalar):
            raise UnsupportedTypeError("the keys of a dict must be of a scalar type")
        self.key, self.inner = key, inner
        self.hint = dict if bare else cast(Any, dict)[key.hint, inner.hint]
        self._text_keys = key.kind not in ("int", "float", "bool") and (
            not isinstance(key, ChoiceType) or key.base is str
        )

    def describe(self) -> Any:
        return {"dict": [self.key.describe(), self.inner.describe()]}

    def _key_text(self, key: Any) -> str:
        encoded = self.key.to_json(key)
        return encoded if self._text_keys else dumps(encoded)

    def _key_value(self, text: str) -> Any:
        return self.key.from_json(text if self._text_keys else loads(text))

    def to_json(self, value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"{shorten(value)} is not a dict")
        encode = self.inner.to_json
        return {self._key_text(k): encode(v) for k, v in value.items()}

    def from_json(self, data: Any) -> Any:
        decode = self.inner.from_json
        return {self._key_value(k): decode(v) for k, v in _expect_json(data, dict).items()}

    def child(self, segment: str) -> ValueType:
        return self.inner


class RecordType(ValueType):
    """A TypedDict, dataclass or pydantic model: named members of their own types."""

    def __init__(self, hint: Any, members: dict[str, ValueType], optional: frozenset[str]) -> None:
        self.hint, self.members, self.optional = hint, members, optional

    def describe(self) -> Any:
        return {
            "record": {
                name: ["optional key", t.describe()] if name in self.optional else t.describe()
                for name, t in self.members.items()
            }
        }

    def child(self, segment: str) -> ValueType:
        return self.members[segment]

    def read(self, value: Any) -> dict[str, Any]:
        """The members of a value by name."""
        raise NotImplementedError

    def build(self, members: dict[str, Any]) -> Any:
        """A value with these members, without running its validation again."""
        raise NotImplementedError

    def to_json(self, value: Any) -> Any:
        result = {}
        for name, item in self.read(value).items():
            try:
                result[name] = self.members[name].to_json(item)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return result

    def from_json(self, data: Any) -> Any:
        stored = _expect_json(data, dict)
        return self.build(
            {name: t.from_json(stored[name]) for name, t in self.members.items() if name in stored}
        )


class TypedDictType(RecordType):
    def read(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"{shorten(value)} is not a dict")
        for name in value:
            if name not in self.members:
                raise ValueError(f"{shorten(name)} is not a key of {self.hint.__name__}")
        for name in self.members:
            if name not in value and name not in self.optional:
                raise ValueError(f"the key {name!r} is missing")
        return cast("dict[str, Any]", value)

    def build(self, members: dict[str, Any]) -> Any:
        return members


class _InstanceType(RecordType):
    """A record whose values are instances of one class."""

    def read(self, value: Any) -> dict[str, Any]:
        if type(value) is not self.hint:
            raise ValueError(f"{shorten(value)} is not an instance of {self.hint.__name__}")
        return {name: getattr(value, name) for name in self.members}


class DataclassType(_InstanceType):
    def build(self, members: dict[str, Any]) -> Any:
        # Past the constructor: __post_init__ has already had its effect on what was stored.
        value = object.__new__(self.hint)
        for name, item in members.items():
            object.__setattr__(value, name, item)
        return value


class PydanticType(_InstanceType):
    def read(self, value: Any) -> dict[str, Any]:
        members = super().read(value)
        if value.model_extra:
            raise ValueError(f"extra members {sorted(value.model_extra)} have no declared type")
        return members

    def build(self, members: dict[str, Any]) -> Any:
        return self.hint.model_construct(**members)


def _expect_json(data: Any, kind: type) -> Any:
    if type(data) is not kind:
        raise ValueError(f"{shorten(data)} is not a JSON {'array' if kind is list else 'object'}")
    return data


def resolve(hint: Any) -> ValueType:
    """The value type of an annotation; raises UnsupportedTypeError with the reason."""
    return _resolve(hint, ())


def is_optional(hint: Any) -> tuple[Any, bool]:
    """Split ``X | None`` into X and True; anything else into itself and False."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [a for a in get_args(hint) if a is not NONE]
        if len(members) == 1:
            return members[0], True
        raise UnsupportedTypeError(
            f"{hint} is a union; only X | None has an unambiguous stored form"
        )
    if get_origin(hint) is Literal and None in get_args(hint):
        rest = tuple(a for a in get_args(hint) if a is not None)
        return cast(Any, Literal)[rest], True
    return hint, False


def _resolve(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    inner, optional = is_optional(hint)
    if optional:
        return OptionalType(_resolve(inner, seen))
    if get_origin(hint) is Annotated:
        return _annotated(hint, seen)
    if hint in (Any, object):
        return AnyType()
    if hint in (AwareDatetime, NaiveDatetime):
        return DatetimeType(hint)
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    if get_origin(hint) is Literal:
        return ChoiceType(hint, [(a, a) for a in get_args(hint)], str(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ChoiceType(hint, [(m.value, m) for m in hint], hint.__name__)
    container = get_origin(hint) or hint
    if container in _CONTAINERS:
        return _CONTAINERS[container](hint, seen)
    return _record(hint, seen)


def _annotated(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    inner = _resolve(get_args(hint)[0], seen)
    clone = object.__new__(type(inner))
    clone.__dict__.update(inner.__dict__)
    clone.hint = hint
    return clone


def _sequence(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    base = get_origin(hint) or hint
    args = get_args(hint)
    if not args:
        return SequenceType(base, AnyType(), True)
    return SequenceType(base, _resolve(args[0], seen), False)


def _tuple(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    args = get_args(hint)
    if hint is tuple:
        return SequenceType(tuple, AnyType(), True)
    if len(args) == 2 and args[1] is Ellipsis:
        return SequenceType(tuple, _resolve(args[0], seen), False)
    return TupleType([_resolve(a, seen) for a in args])


def _dict(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    args = get_args(hint)
    if not args:
        return DictType(TextType(), AnyType(), True)
    return DictType(_resolve(args[0], seen), _resolve(args[1], seen), False)


_CONTAINERS: dict[Any, Callable[[Any, tuple[Any, ...]], ValueType]] = {
    list: _sequence,
    set: _sequence,
    frozenset: _sequence,
    tuple: _tuple,
    dict: _dict,
}


def _record(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    if hint in seen:
        raise UnsupportedTypeError(f"{hint.__name__} contains itself")
    seen = (*seen, hint)
    if typing_extensions.is_typeddict(hint):
        return _typed_dict(hint, seen)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        names = [f.name for f in dataclasses.fields(hint)]
        return DataclassType(hint, _members(hint, names, seen), frozenset())
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return PydanticType(hint, _members(hint, list(hint.model_fields), seen), frozenset())
    raise UnsupportedTypeError(
        f"{hint!r} is not supported; use str, int, float, bool, datetime, date, Decimal, UUID, "
        "bytes, Enum, Literal, list, tuple, set, dict, TypedDict, a dataclass, a pydantic model, "
        "or one of these | None"
    )


def _members(cls: type, names: list[str], seen: tuple[Any, ...]) -> dict[str, ValueType]:
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    return {name: _resolve(hints[name], seen) for name in names}


def _typed_dict(hint: Any, seen: tuple[Any, ...]) -> ValueType:
    hints = typing_extensions.get_type_hints(hint)
    optional = frozenset(hint.__optional_keys__)
    members = {name: _resolve(h, seen) for name, h in hints.items()}
    if sys.version_info < (3, 12) and type(hint).__module__ == typing.__name__:
        # pydantic cannot read typing.TypedDict on this version of Python, only its backport.
        wrapped = {
            name: typing_extensions.NotRequired[t.hint] if name in optional else t.hint
            for name, t in members.items()
        }
        hint = cast(Any, typing_extensions.TypedDict)(hint.__name__, wrapped)
    return TypedDictType(hint, members, optional)
