"""Type specs: everything the rest of the system needs to know about a declared class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, ConfigDict, create_model

from ontologia.errors import Failure, ModelDefinitionError, ValidationError
from ontologia.model.canonical import digest
from ontologia.model.codec import Row, RowCodec
from ontologia.model.fields import MISSING
from ontologia.model.types import ChoiceType, ValueType

Kind = Literal["entity", "relation", "event"]

_KEY_KINDS = ("str", "int", "uuid", "date")


@dataclass(frozen=True)
class FieldSpec:
    """One declared field, resolved."""

    name: str
    type: ValueType
    nullable: bool
    primary_key: bool = False
    instance_key: bool = False
    endpoint: bool = False
    """Holds the key of one end of a relation."""
    index: bool = False
    doc: str = ""
    default: Any = MISSING
    default_factory: Callable[[], Any] | None = None

    @property
    def required(self) -> bool:
        """Whether the constructor must be given a value."""
        return self.default is MISSING and self.default_factory is None

    def make_default(self) -> Any:
        """The value of a field that was not given."""
        return self.default if self.default_factory is None else self.default_factory()

    def describe(self) -> dict[str, Any]:
        """The field as JSON: what its stored form depends on, nothing else."""
        return {"type": self.type.describe(), "nullable": self.nullable}

    def hint(self) -> Any:
        """The annotation for pydantic, with our own checks attached."""
        annotated: Any = Annotated
        checked = annotated[self.type.hint, AfterValidator(self.type.check)]
        if self.is_key:
            return annotated[checked, AfterValidator(_not_empty)]
        return checked | None if self.nullable else checked

    @property
    def is_key(self) -> bool:
        """Whether the field is part of the identity."""
        return self.primary_key or self.instance_key or self.endpoint


def _not_empty(value: Any) -> Any:
    if value == "":
        raise ValueError("a key must not be empty")
    return value


def check_key_type(owner: str, spec: FieldSpec) -> None:
    """Refuse key types whose equality is not obvious."""
    kind, type_ = spec.type.kind, spec.type
    if isinstance(type_, ChoiceType) and type_.base in (str, int):
        return
    if spec.nullable or kind not in _KEY_KINDS:
        raise ModelDefinitionError(
            f"{owner}.{spec.name} cannot be a key.",
            why="keys are compared for identity: str, int, UUID, date, or an Enum or Literal "
            "of text or integers, and never None.",
            fix="choose one of these types.",
        )


@dataclass(frozen=True, eq=False)
class TypeSpec:
    """A declared type: its name, its fields in stored order (keys first), and its codec."""

    kind: Kind
    name: str
    cls: type[Any]
    fields: tuple[FieldSpec, ...]
    key_size: int
    left: TypeSpec | None = None
    right: TypeSpec | None = None
    by_name: dict[str, FieldSpec] = field(init=False)
    position: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {f.name: f for f in self.fields})
        object.__setattr__(self, "position", {f.name: i for i, f in enumerate(self.fields)})

    @property
    def key_fields(self) -> tuple[FieldSpec, ...]:
        """The fields that make up the identity."""
        return self.fields[: self.key_size]

    def endpoint(self, side: str) -> TypeSpec:
        """The spec of the entity at one end of a relation."""
        spec = self.left if side == "left" else self.right
        assert spec is not None, "only relations have endpoints"
        return spec

    @cached_property
    def description(self) -> dict[str, Any]:
        """The type as JSON; equal descriptions mean interchangeable stored forms."""
        body: dict[str, Any] = {
            "kind": self.kind,
            "key": [f.name for f in self.key_fields],
            "fields": {f.name: f.describe() for f in self.fields},
        }
        if self.left is not None and self.right is not None:
            body["left"], body["right"] = self.left.name, self.right.name
        return body

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """JSON forms of the defaults that are the same each time they are asked for."""
        found = {}
        for item in self.fields:
            if item.required:
                continue
            first, second = (self.validate_one(item.name, item.make_default()) for _ in "12")
            if first == second:
                found[item.name] = None if first is None else item.type.to_json(first)
        return found

    @property
    def document(self) -> dict[str, Any]:
        """What the registry keeps: the description, and the defaults for later upgrades."""
        return {**self.description, "defaults": self.defaults}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the description."""
        return digest(self.description)

    @cached_property
    def codec(self) -> RowCodec:
        """Generated functions between objects, rows and payloads."""
        return RowCodec(self.cls, self.fields, self.key_size)

    @cached_property
    def validator(self) -> Any:
        """The pydantic validator of the constructor's keywords."""
        return _build_validator(self)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Checked and completed values; raises ValidationError."""
        try:
            model = self.validator.validate_python(values)
        except pydantic.ValidationError as error:
            raise self.failure(error) from None
        result: dict[str, Any] = model.__dict__
        return result

    def validate_one(self, name: str, value: Any) -> Any:
        """A checked value for one field; raises ValidationError."""
        blank = self.validator.blank()
        try:
            self.validator.validate_assignment(blank, name, value)
        except pydantic.ValidationError as error:
            raise self.failure(error) from None
        return blank.__dict__[name]

    def failure(self, error: pydantic.ValidationError) -> ValidationError:
        """Our error for pydantic's."""
        failures: list[Failure] = []
        fix = None
        for item in error.errors(include_url=False):
            path = ".".join(str(p) for p in item["loc"])
            rule = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                rule = f"{self.name} has no such field"
                fix = f"the fields of {self.name} are {', '.join(self.by_name)}."
            elif item["type"] == "missing":
                rule = "the field is required"
                fix = f"pass {path}=..., or give the field a default."
            missing = item["type"] == "missing"
            failures.append(Failure(path, None if missing else item["input"], rule, missing))
        return ValidationError(self.name, failures, fix)

    def row(self, obj: Any) -> Row:
        """The stored form of an object; raises ValidationError when a member is not storable."""
        (row,) = self.rows((obj,), {}).values()
        return row

    def rows(self, objects: Iterable[Any], into: dict[Row, Row]) -> dict[Row, Row]:
        """Add the stored forms of objects, by identity; raises ValidationError."""
        encode, k = self.codec.row, self.key_size
        for obj in objects:
            try:
                row = encode(obj)
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise self._row_failure(obj, error) from None
            into[row[:k]] = row
        return into

    def _row_failure(self, obj: Any, cause: Exception) -> ValidationError:
        # A member was changed in place after construction: find the one that no longer fits.
        failures: list[Failure] = []
        for spec in self.fields:
            if spec.name not in obj.__dict__:
                failures.append(Failure(spec.name, None, "the field has no value"))
                continue
            value = obj.__dict__[spec.name]
            try:
                if value is not None or not spec.nullable:
                    spec.type.to_json(value)
            except (ValueError, TypeError, AttributeError) as error:
                failures.append(Failure(spec.name, value, str(error)))
        return ValidationError(self.name, failures or [Failure("?", obj, str(cause))])

    def key_row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The stored form of an identity given by the caller; raises ValidationError."""
        return tuple(
            f.type.to_stored(self.validate_one(f.name, v))
            for f, v in zip(self.key_fields, values, strict=True)
        )

    def key_values(self, key: Sequence[Any]) -> tuple[Any, ...]:
        """The identity as the user knows it."""
        return tuple(f.type.from_stored(v) for f, v in zip(self.key_fields, key, strict=True))


class Validator:
    """The pydantic side of a spec: a model class that is never shown to users."""

    def __init__(self, model_class: type[pydantic.BaseModel]) -> None:
        self.model_class = model_class
        self.validate_python = model_class.__pydantic_validator__.validate_python
        self.validate_assignment = model_class.__pydantic_validator__.validate_assignment

    def blank(self) -> pydantic.BaseModel:
        """An instance without values; unlike model_construct() it calls no default factory."""
        instance = self.model_class.__new__(self.model_class)
        for name, value in (
            ("__dict__", {}),
            ("__pydantic_fields_set__", set[str]()),
            ("__pydantic_extra__", None),
            ("__pydantic_private__", None),
        ):
            object.__setattr__(instance, name, value)
        return instance


def _build_validator(spec: TypeSpec) -> Validator:
    definitions: dict[str, Any] = {}
    for item in spec.fields:
        if item.default_factory is not None:
            default = pydantic.Field(default_factory=item.default_factory)
        elif item.default is not MISSING:
            default = pydantic.Field(default=item.default)
        else:
            default = pydantic.Field()
        definitions[item.name] = (item.hint(), default)
    try:
        with warnings.catch_warnings():
            # Users may call a field "schema" or "copy"; the model class is ours alone.
            warnings.simplefilter("ignore", UserWarning)
            model = create_model(
                spec.name,
                __config__=ConfigDict(
                    extra="forbid",
                    allow_inf_nan=False,
                    validate_default=True,
                    protected_namespaces=(),
                ),
                **definitions,
            )
    except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
        raise ModelDefinitionError(
            f"{spec.name} cannot be declared: {str(error).splitlines()[0]}"
        ) from error
    return Validator(model)
