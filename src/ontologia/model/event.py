"""Event: what the bus and the streams carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from typing_extensions import dataclass_transform

from ontologia.errors import Failure, ModelDefinitionError, ValidationError
from ontologia.model.canonical import INT_MAX, INT_MIN, text
from ontologia.model.fields import Field
from ontologia.model.meta import Model, spec_of
from ontologia.model.spec import FieldSpec, TypeSpec

DEFAULT_PRIORITY = 100

_RUNTIME = ("id", "created_at", "root_event_id", "chain_depth", "causation_id")


def derive_event_type(class_name: str) -> str:
    """The type string of a class name: ``UserCreated`` is ``user.created``."""
    parts = re.sub(r"(.)([A-Z][a-z]+)", r"\1.\2", class_name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1.\2", parts).lower()


def _runtime(*, default: Any, init: Literal[False] = False) -> Any:
    """Declares an attribute that the event store fills in, not the constructor."""
    return default


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(Field, _runtime))
class Event(Model):
    """Something that happened.

    >>> class OrderPlaced(Event):
    ...     order_id: Field[str]
    ...     priority: int = 50

    The type string is derived from the class name; ``class X(Event, type="order.placed")`` sets it.
    The priority given to the constructor beats that of the class; higher goes first.
    """

    __root__: ClassVar[bool] = True
    __event_type__: ClassVar[str]
    __event_fields__: ClassVar[tuple[str, ...]]

    id: str | None = _runtime(default=None)
    created_at: str | None = _runtime(default=None)
    root_event_id: str | None = _runtime(default=None)
    chain_depth: int = _runtime(default=0)
    causation_id: str | None = _runtime(default=None)
    priority: int = DEFAULT_PRIORITY

    def __init_subclass__(cls, *, type: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explicit = cls.__dict__.get("__event_type__") if type is None else type
        cls.__event_type__ = _check_type(
            cls.__name__, derive_event_type(cls.__name__) if explicit is None else explicit
        )
        if not _is_priority(cls.priority):
            raise ModelDefinitionError(
                f"{cls.__name__} has the priority {cls.priority!r}.",
                fix="a priority is a whole number, such as 100.",
            )

    if not TYPE_CHECKING:

        def __init__(self, /, *args: Any, **values: Any) -> None:
            priority = values.pop("priority", None)
            super().__init__(*args, **values)
            if priority is not None:
                self.__dict__["priority"] = _check_priority(self.__event_type__, priority)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "priority":
                self.__dict__[name] = _check_priority(self.__event_type__, value)
            elif name in _RUNTIME:
                self.__dict__[name] = value
            else:
                super().__setattr__(name, value)

    @classmethod
    def __build_spec__(cls, fields: list[FieldSpec]) -> TypeSpec:
        for item in fields:
            if item.primary_key or item.instance_key:
                raise ModelDefinitionError(
                    f"{cls.__name__}.{item.name} is marked as a key.",
                    why="events are identified by the event store.",
                    fix="remove primary_key and instance_key.",
                )
        cls.__event_fields__ = tuple(f.name for f in fields)
        return TypeSpec("event", cls.__event_type__, cls, tuple(fields), 0)

    @classmethod
    def model_validate(
        cls, data: Mapping[str, Any], *, mode: Literal["python", "json"] = "python"
    ) -> Self:
        """An event from the dict that ``model_dump`` gave; runtime metadata is not part of it."""
        return super().model_validate(data, mode=mode)


def event_payload(event: Event) -> str:
    """The canonical JSON of an event's declared fields."""
    spec = spec_of(type(event))
    return spec.codec.payload(spec.row(event))


def _check_type(class_name: str, value: object) -> str:
    try:
        if isinstance(value, str) and value and not value.isspace():
            return text(value)
    except ValueError:
        pass
    raise ModelDefinitionError(
        f"{class_name} has the event type {value!r}.",
        fix='use text such as "order.placed".',
    )


def _is_priority(value: object) -> bool:
    return type(value) is int and INT_MIN <= value <= INT_MAX


def _check_priority(type_name: str, value: Any) -> Any:
    if not _is_priority(value):
        raise ValidationError(
            type_name, [Failure("priority", value, "a priority is a whole number")]
        )
    return value
