"""Entity and Relation: what state is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from ontologia.errors import EndpointMissingError, ModelDefinitionError
from ontologia.model.fields import Field
from ontologia.model.meta import Model, ModelMeta, check_type_name, evaluate, spec_of
from ontologia.model.spec import FieldSpec, TypeSpec, check_key_type


class _Stored(Model):
    """A type whose instances have an identity and a history."""

    __root__: ClassVar[bool] = True
    __type_name__: ClassVar[str]

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__type_name__ = check_type_name(cls.__name__ if name is None else name)

    def __hash__(self) -> int:
        spec = spec_of(type(self))
        return hash((spec.name, *(self.__dict__[f.name] for f in spec.key_fields)))


class Entity(_Stored):
    """A thing with an identity: exactly one field is the primary key.

    >>> class Customer(Entity):
    ...     id: Field[str] = Field(primary_key=True)
    ...     name: Field[str]
    """

    __root__: ClassVar[bool] = True

    @classmethod
    def __build_spec__(cls, fields: list[FieldSpec]) -> TypeSpec:
        keys = [f for f in fields if f.primary_key]
        if len(keys) != 1:
            found = f"{len(keys)} primary keys" if keys else "no primary key"
            raise ModelDefinitionError(
                f"{cls.__name__} has {found}.",
                why="an entity is identified by exactly one field.",
                fix="mark one field: id: Field[str] = Field(primary_key=True).",
            )
        for item in fields:
            if item.instance_key:
                raise ModelDefinitionError(
                    f"{cls.__name__}.{item.name} is an instance key.",
                    why="instance keys tell several relations between the same two apart.",
                    fix="use primary_key=True on an entity.",
                )
        check_key_type(cls.__name__, keys[0])
        ordered = keys + [f for f in fields if not f.primary_key]
        return TypeSpec("entity", cls.__type_name__, cls, tuple(ordered), 1)


LeftT = TypeVar("LeftT", bound=Entity)
RightT = TypeVar("RightT", bound=Entity)


class Relation(_Stored, Generic[LeftT, RightT]):
    """A typed link between two entities, identified by both ends (and an instance key, if any).

    >>> class Subscription(Relation[Customer, Product]):
    ...     plan: Field[str]
    """

    __root__: ClassVar[bool] = True

    left_key: Field[Any]
    right_key: Field[Any]

    if TYPE_CHECKING:

        @property
        def left(self) -> LeftT:
            """The entity at the left end, after a query."""
            ...

        @property
        def right(self) -> RightT:
            """The entity at the right end, after a query."""
            ...

    else:

        @property
        def left(self) -> Any:
            return self._endpoint("left")

        @property
        def right(self) -> Any:
            return self._endpoint("right")

    def _endpoint(self, side: str) -> Any:
        found = self.__dict__.get(f"_{side}")
        if found is not None:
            return found
        key = self.__dict__[f"{side}_key"]
        loaded = f"_{side}" in self.__dict__
        raise EndpointMissingError(
            f"the {side} endpoint {key!r} of this {type(self).__name__} is not there.",
            why="no such entity existed at the queried point in time."
            if loaded
            else "endpoints are filled in by a query; this object was made by hand.",
            fix="ensure the entity too."
            if loaded
            else "read the relation with session.query().relations(...).",
        )

    @classmethod
    def __build_spec__(cls, fields: list[FieldSpec]) -> TypeSpec:
        left, right = _endpoints(cls)
        by_name = {f.name: f for f in fields}
        del by_name["left_key"], by_name["right_key"]
        instance = [f for f in by_name.values() if f.instance_key]
        for item in by_name.values():
            if item.primary_key:
                raise ModelDefinitionError(
                    f"{cls.__name__}.{item.name} is a primary key.",
                    why="a relation is identified by its two ends.",
                    fix="use instance_key=True to tell several relations of a pair apart.",
                )
        if len(instance) > 1:
            raise ModelDefinitionError(
                f"{cls.__name__} has {len(instance)} instance keys.", fix="mark at most one field."
            )
        for item in instance:
            check_key_type(cls.__name__, item)
        ends = [
            FieldSpec("left_key", left.key_fields[0].type, False, endpoint=True),
            FieldSpec("right_key", right.key_fields[0].type, False, endpoint=True),
        ]
        rest = [f for f in by_name.values() if not f.instance_key]
        ordered = (*ends, *instance, *rest)
        return TypeSpec("relation", cls.__type_name__, cls, ordered, 2 + len(instance), left, right)


def _endpoints(cls: ModelMeta) -> tuple[TypeSpec, TypeSpec]:
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            if get_origin(base) is Relation:
                left, right = (_endpoint_class(cls, arg) for arg in get_args(base))
                return spec_of(left), spec_of(right)
    raise ModelDefinitionError(
        f"{cls.__name__} does not say what it relates.",
        fix=f"write class {cls.__name__}(Relation[LeftEntity, RightEntity]).",
    )


def _endpoint_class(cls: ModelMeta, argument: Any) -> type[Entity]:
    name = getattr(argument, "__forward_arg__", argument)
    if isinstance(name, str):
        argument = evaluate(cls.__name__, "an endpoint", name, cls.__scope__)
    if not (isinstance(argument, type) and issubclass(argument, Entity)):
        raise ModelDefinitionError(
            f"{cls.__name__} relates {argument!r}.",
            why="both ends of a relation are Entity classes.",
            fix="write Relation[LeftEntity, RightEntity].",
        )
    return argument


def commit_of(obj: Entity | Relation[Any, Any]) -> int | None:
    """The commit that wrote the version an object was read from; None if it was made by hand."""
    found: int | None = obj.__dict__.get("_commit_id")
    return found
