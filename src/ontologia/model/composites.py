"""Composite value types: lists, tuples, sets, dicts and records.

Their stored form is canonical JSON text.
"""

from __future__ import annotations

from typing import Any, Union, cast

from ontologia.errors import shorten
from ontologia.model.canonical import dumps, loads
from ontologia.model.types import AnyType, ChoiceType, Scalar, UnsupportedTypeError, ValueType


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
