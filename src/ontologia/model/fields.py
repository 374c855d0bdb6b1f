"""Field: the annotation and the specifier of a declared field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ontologia.errors import ModelDefinitionError
from ontologia.query.expressions import FieldRef

T = TypeVar("T")
OwnerT = TypeVar("OwnerT")

MISSING: Any = object()


class Field(Generic[T]):
    """A declared field: ``age: Field[int] = Field(default=0, index=True)``.

    On the class, ``Customer.age`` is an expression; on an instance, ``customer.age`` is a value.
    """

    @overload
    def __init__(
        self,
        *,
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        doc: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        default: T,
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        doc: str = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        default_factory: Callable[[], T],
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        doc: str = ...,
    ) -> None: ...
    def __init__(
        self,
        *,
        default: T = MISSING,
        default_factory: Callable[[], T] | None = None,
        primary_key: bool = False,
        instance_key: bool = False,
        index: bool = False,
        doc: str = "",
    ) -> None:
        if default is not MISSING and default_factory is not None:
            raise ModelDefinitionError(
                "Field() got both default and default_factory.", fix="pass one of them."
            )
        if primary_key and instance_key:
            raise ModelDefinitionError(
                "Field() got both primary_key and instance_key.",
                why="an entity has a primary key, a relation may have an instance key.",
                fix="pass one of them.",
            )
        self.default, self.default_factory = default, default_factory
        self.primary_key, self.instance_key = primary_key, instance_key
        self.index, self.doc = index, doc

    # At run time fields leave the class body: instance access is then a plain attribute, and
    # class access goes through the metaclass. The checkers see a descriptor.
    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type[OwnerT]) -> FieldRef[OwnerT, T]: ...
        @overload
        def __get__(self, instance: object, owner: type[Any] | None = ...) -> T: ...
        def __get__(
            self, instance: object | None, owner: type[Any] | None = None
        ) -> FieldRef[Any, T] | T: ...

        # Must stay a plain, un-overloaded method: the checkers read the parameter type of
        # __init__ from here.
        def __set__(self, instance: object, value: T) -> None: ...
