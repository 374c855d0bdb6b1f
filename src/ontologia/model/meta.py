"""The class machinery behind Entity, Relation and Event.

Declared fields leave the class body when the class is made: what an instance holds are plain
attributes, and ``Customer.age`` on the class reaches the metaclass, which answers with an
expression. Annotations that cannot be resolved yet are resolved on first use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import dataclass_transform

from ontologia.errors import (
    Failure,
    ModelDefinitionError,
    UnknownFieldError,
    ValidationError,
)
from ontologia.model.fields import MISSING, Field
from ontologia.model.resolution import is_optional, resolve
from ontologia.model.spec import FieldSpec, TypeSpec
from ontologia.model.types import AnyType, UnsupportedTypeError
from ontologia.query.expressions import FieldRef

_FIELD_TEXT = re.compile(r"^\s*([\w.]+\.)?Field\s*(\[|$)")
_NAME = re.compile(r"[^\W\d][\w.\-]*")
MAX_NAME_BYTES = 48


class Declaration:
    """A field as written in a class body, before its annotation is resolved."""

    def __init__(self, field: Field[Any], annotation: Any, scope: _Scope) -> None:
        self.field, self.annotation, self.scope = field, annotation, scope


class _Scope:
    """Where the names of an annotation are looked up."""

    def __init__(self, frame_globals: dict[str, Any], frame_locals: Mapping[str, Any]) -> None:
        self.globals = frame_globals
        self.locals = {} if frame_locals is frame_globals else dict(frame_locals)

    def evaluate(self, text: str) -> Any:
        return eval(text, self.globals, self.locals)  # noqa: S307 (annotations are code)


class ModelMeta(type):
    """Collects fields, and answers class-level field access with expressions."""

    __declarations__: dict[str, Declaration]
    __own_declarations__: dict[str, Declaration]
    __scope__: _Scope
    __abstract__: bool
    __spec__: TypeSpec | None

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        /,
        *,
        abstract: bool = False,
        **kwargs: Any,
    ) -> ModelMeta:
        _refuse_plain_mixins(name, bases)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        scope = _Scope(frame.f_globals, frame.f_locals)
        declared = _collect(name, namespace, scope)
        for field_name in declared:
            namespace.pop(field_name, None)
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        scope.locals.setdefault(name, cls)
        cls.__scope__ = scope
        inherited: dict[str, Declaration] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited.update(vars(base).get("__own_declarations__", {}))
        cls.__own_declarations__ = declared
        cls.__declarations__ = inherited | declared
        cls.__abstract__ = abstract or not any(isinstance(b, ModelMeta) for b in bases)
        cls.__abstract__ = cls.__abstract__ or namespace.get("__root__", False)
        cls.__spec__ = None
        _check_names(cls, declared)
        if not cls.__abstract__:
            # A name that is defined later is resolved on first use.
            with suppress(_UnresolvedError):
                spec_of(cls)
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: Any, /, **kwargs: Any) -> None:
        super().__init__(name, bases, namespace)

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            if name in cls.__dict__.get("__declarations__", ()):
                return FieldRef(cls, name)
            if name.startswith("_"):
                raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
            raise UnknownFieldError(
                f"{cls.__name__} has no field {name!r}.",
                fix=f"its fields are {', '.join(cls.__declarations__) or 'none'}.",
            )


class _UnresolvedError(ModelDefinitionError):
    """An annotation names something that is not defined (yet)."""


def _refuse_plain_mixins(name: str, bases: tuple[type, ...]) -> None:
    """Fields of a class that is no model would be ignored without a word."""
    for base in bases:
        for attribute, value in vars(base).items():
            if isinstance(value, Field):
                raise ModelDefinitionError(
                    f"{name} inherits the field {attribute!r} from {base.__name__}, "
                    "which is a plain class.",
                    fix=f"declare it as class {base.__name__}(Entity, abstract=True).",
                )


def _collect(class_name: str, namespace: dict[str, Any], scope: _Scope) -> dict[str, Declaration]:
    declared: dict[str, Declaration] = {}
    annotations: dict[str, Any] = namespace.get("__annotations__", {})
    for name, annotation in annotations.items():
        value = namespace.get(name, MISSING)
        if not (isinstance(value, Field) or _is_field(annotation, scope)):
            continue
        field = value if isinstance(value, Field) else Field[Any](default=value)
        declared[name] = Declaration(field, annotation, scope)
    for name, value in namespace.items():
        if isinstance(value, Field) and name not in declared:
            raise ModelDefinitionError(
                f"{class_name}.{name} has no annotation.",
                fix=f"write {name}: Field[...] = Field().",
            )
    return declared


def _is_field(annotation: Any, scope: _Scope) -> bool:
    if isinstance(annotation, str):
        if _FIELD_TEXT.match(annotation):
            return True
        try:
            annotation = scope.evaluate(annotation)
        except Exception:  # an unrelated annotation that is not our business
            return False
    return annotation is Field or get_origin(annotation) is Field


def _check_names(cls: ModelMeta, declared: dict[str, Declaration]) -> None:
    seen: dict[str, str] = {}
    for name in cls.__declarations__:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise ModelDefinitionError(
                f"{cls.__name__} has the fields {other!r} and {name!r}.",
                why="column names do not distinguish upper and lower case everywhere.",
                fix="rename one of them.",
            )
    for name in declared:
        reserved = any(hasattr(b, name) for b in cls.__mro__[1:] if _is_root(b))
        # The model class behind the validation has members of its own.
        reserved = reserved or (name.startswith("model_") and hasattr(BaseModel, name))
        if name.startswith("_") or reserved or not name.isidentifier():
            raise ModelDefinitionError(
                f"{cls.__name__} cannot have a field {name!r}.",
                why="the name is no identifier, starts with an underscore, or is used by the "
                "library.",
                fix="rename the field.",
            )


def _is_root(base: type) -> bool:
    return bool(vars(base).get("__root__", False)) or not isinstance(base, ModelMeta)


def check_type_name(name: object) -> str:
    """The name of a type, if every backend can use it as part of a table or object name."""
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or len(name.encode(errors="replace")) > MAX_NAME_BYTES
        or name.casefold().endswith("_history")
    ):
        raise ModelDefinitionError(
            f"{name!r} is not a usable type name.",
            why=f"a name is letters, digits, '_', '.' and '-', at most {MAX_NAME_BYTES} bytes, "
            "and does not end in '_history', which is how tables of versions are named.",
            fix='pass another one: class X(Entity, name="...").',
        )
    return name


def spec_of(cls: type[Any] | ModelMeta) -> TypeSpec:
    """The spec of a declared class, resolved once; raises ModelDefinitionError."""
    if not isinstance(cls, ModelMeta):
        raise ModelDefinitionError(
            f"{cls!r} is not an Entity, Relation or Event class.",
            fix="pass a class that derives from one of them.",
        )
    found = cls.__dict__.get("__spec__")
    if found is not None:
        return found  # type: ignore[no-any-return]
    if cls.__abstract__:
        raise ModelDefinitionError(
            f"{cls.__name__} is abstract.", fix="derive a class from it and use that."
        )
    model: Any = cls
    spec: TypeSpec = model.__build_spec__(_resolve_fields(model))
    _check_defaults(spec)
    cls.__spec__ = spec
    return spec


def _resolve_fields(cls: ModelMeta) -> list[FieldSpec]:
    return [_resolve_field(cls, name, d) for name, d in cls.__declarations__.items()]


def evaluate(owner: str, what: str, annotation: Any, scope: _Scope) -> Any:
    """An annotation as an object; names that are unknown yet raise an error that says so."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return scope.evaluate(annotation)
    except NameError as error:
        raise _UnresolvedError(
            f"{what} of {owner} is annotated {annotation!r}, but {error.name!r} is not defined.",
            why="annotations are resolved when the class is made, or at the latest on first use.",
            fix="define or import the name at module level before the first use.",
        ) from None
    except Exception as error:
        raise ModelDefinitionError(
            f"{what} of {owner} is annotated {annotation!r}: {error}"
        ) from error


def _resolve_field(cls: ModelMeta, name: str, declaration: Declaration) -> FieldSpec:
    annotation = evaluate(
        cls.__name__, f"field {name!r}", declaration.annotation, declaration.scope
    )
    args = get_args(annotation)
    if get_origin(annotation) is not Field or len(args) != 1:
        raise ModelDefinitionError(
            f"{cls.__name__}.{name} is annotated {annotation!r}.",
            fix=f"write {name}: Field[<type>] = Field(...).",
        )
    (hint,) = args
    if not isinstance(hint, str | type) and hasattr(hint, "__forward_arg__"):
        hint = hint.__forward_arg__
    hint = evaluate(cls.__name__, f"field {name!r}", hint, declaration.scope)
    try:
        inner, nullable = is_optional(hint)
        type_ = resolve(inner)
    except UnsupportedTypeError as error:
        raise ModelDefinitionError(f"{cls.__name__}.{name}: {error}.") from None
    except NameError as error:
        raise _UnresolvedError(f"{cls.__name__}.{name}: {error}.") from None
    field = declaration.field
    return FieldSpec(
        name,
        type_,
        nullable or isinstance(type_, AnyType),
        primary_key=field.primary_key,
        instance_key=field.instance_key,
        index=field.index,
        doc=field.doc,
        default=field.default,
        default_factory=field.default_factory,
    )


def _check_defaults(spec: TypeSpec) -> None:
    for item in spec.fields:
        if item.default is not MISSING:
            try:
                spec.validate_one(item.name, item.default)
            except ValidationError as error:
                raise ModelDefinitionError(
                    f"the default of {spec.name}.{item.name} is not valid: {error.what}",
                    fix="give the field a default of its own type.",
                ) from None


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(Field,))
class Model(metaclass=ModelMeta):
    """What Entity, Relation and Event share: construction, validation, equality, pickling."""

    __root__: ClassVar[bool] = True
    __abstract__: ClassVar[bool]

    if not TYPE_CHECKING:

        def __init__(self, /, *args: Any, **values: Any) -> None:
            spec = spec_of(type(self))
            if args:
                raise ValidationError(
                    spec.name,
                    [Failure("*", args, "fields are given by name")],
                    f"write {type(self).__name__}({next(iter(spec.by_name), 'field')}=...).",
                )
            object.__setattr__(self, "__dict__", spec.validate(values))

        # Hidden from the checkers, which would otherwise accept any attribute.
        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                object.__setattr__(self, name, value)
                return
            spec = spec_of(type(self))
            if name not in spec.by_name:
                raise ValidationError(
                    spec.name,
                    [Failure(name, value, f"{spec.name} has no such field")],
                    f"the fields of {spec.name} are {', '.join(spec.by_name)}.",
                )
            self.__dict__[name] = spec.validate_one(name, value)

    def __delattr__(self, name: str) -> None:
        raise ValidationError(
            type(self).__name__,
            [Failure(name, None, "fields cannot be deleted")],
            "assign None to a field that may be empty.",
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return all(mine[f.name] == theirs[f.name] for f in spec_of(type(self)).fields)

    if not TYPE_CHECKING:
        __hash__ = None

    def __repr__(self) -> str:
        body = ", ".join(
            f"{f.name}={self.__dict__.get(f.name)!r}" for f in spec_of(type(self)).fields
        )
        return f"{type(self).__name__}({body})"

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """The declared fields as a dict: Python values, or their JSON forms."""
        spec = spec_of(type(self))
        if mode not in ("python", "json"):
            raise ValidationError(spec.name, [Failure("mode", mode, 'use "python" or "json"')])
        if mode == "python":
            return {f.name: self.__dict__[f.name] for f in spec.fields}
        spec.row(self)  # raises our error when a member was changed into something unstorable
        return {
            f.name: None if (v := self.__dict__[f.name]) is None else f.type.to_json(v)
            for f in spec.fields
        }

    @classmethod
    def model_validate(
        cls, data: Mapping[str, Any], *, mode: Literal["python", "json"] = "python"
    ) -> Self:
        """An instance from a dict that :meth:`model_dump` could have given in the same mode."""
        spec = spec_of(cls)
        if mode not in ("python", "json"):
            raise ValidationError(spec.name, [Failure("mode", mode, 'use "python" or "json"')])
        if not isinstance(data, Mapping):
            raise ValidationError(spec.name, [Failure("*", data, "the data must be a mapping")])
        values = dict(data)
        if mode == "json":
            values = decode_json(spec, values)
        return cls(**values)


def decode_json(spec: TypeSpec, data: dict[str, Any]) -> dict[str, Any]:
    """Python values for the JSON forms of fields; raises ValidationError."""
    values: dict[str, Any] = {}
    failures: list[Failure] = []
    for name, item in data.items():
        field = spec.by_name.get(str(name))
        if field is None or item is None:
            values[str(name)] = item
            continue
        try:
            values[name] = field.type.from_json(item)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            failures.append(Failure(name, item, f"not a stored {field.type.kind}: {error}"))
    if failures:
        raise ValidationError(spec.name, failures)
    return values


def fields_of(cls: type[Any]) -> dict[str, FieldSpec]:
    """The declared fields of a class by name: types, defaults, keys, indexes and docs."""
    return dict(spec_of(cls).by_name)
