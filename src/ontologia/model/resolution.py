"""Resolution: which value type an annotation stands for."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import typing_extensions
from pydantic import AwareDatetime, BaseModel, NaiveDatetime

from ontologia.model.composites import (
    DataclassType,
    DictType,
    OptionalType,
    PydanticType,
    SequenceType,
    TupleType,
    TypedDictType,
)
from ontologia.model.types import (
    SCALARS,
    AnyType,
    ChoiceType,
    DatetimeType,
    TextType,
    UnsupportedTypeError,
    ValueType,
)

NONE = type(None)


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
    if isinstance(hint, type) and hint in SCALARS:
        return SCALARS[hint]
    if get_origin(hint) is Literal:
        return ChoiceType(hint, [(a, a) for a in get_args(hint)], str(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Flag):
        raise UnsupportedTypeError(f"{hint.__name__} is a Flag; declare an int or a set of members")
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
