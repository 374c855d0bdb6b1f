"""Declaring types: fields, defaults, keys, inheritance, and what is refused."""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal
from uuid import UUID

import pytest

import ontologia
from ontologia import Entity, Event, Field, ModelDefinitionError, Relation, Session, ValidationError


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1
    L = 2


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = Field(default=0, index=True, doc="in years")
    tags: Field[list[str]] = Field(default_factory=list)
    nick: Field[str | None] = None
    tier: Field[str] = "free"


class Product(Entity):
    sku: Field[int] = Field(primary_key=True)


# Defaults


def test_fields_that_are_not_given_take_their_defaults():
    ada = Customer(id="c1", name="Ada")
    assert (ada.age, ada.tags, ada.nick, ada.tier) == (0, [], None, "free")


def test_default_factory_is_called_for_each_instance():
    one, two = Customer(id="1", name="a"), Customer(id="2", name="b")
    one.tags.append("x")
    assert two.tags == []


def test_mutable_bare_default_is_not_shared():
    class Basket(Entity):
        id: Field[str] = Field(primary_key=True)
        items: Field[list[str]] = []

    Basket(id="1").items.append("x")
    assert Basket(id="2").items == []


def test_a_field_without_a_default_is_required():
    with pytest.raises(ValidationError) as caught:
        Customer(id="c1")
    assert (caught.value.type_name, caught.value.field) == ("Customer", "name")
    assert "required" in caught.value.rule


def test_none_is_refused_unless_declared():
    with pytest.raises(ValidationError):
        Customer(id="c1", name=None)


# Keys


@pytest.mark.parametrize(
    ("hint", "key"),
    [
        (str, "a/b c'\"é\u2028😀"),
        (int, -(2**63)),
        (UUID, UUID(int=7)),
        (date, date(1, 1, 1)),
        (Color, Color.RED),
        (Size, Size.L),
        (Literal["a", "b"], "b"),
        (Literal[1, 2], 2),
    ],
)
def test_key_types_identify_an_entity(session: Session, hint: Any, key: Any):
    class Thing(Entity):
        id: Field[hint] = Field(primary_key=True)
        n: Field[int] = 0

    session.ensure(Thing(id=key))
    session.commit()
    session.ensure(Thing(id=key, n=1))
    session.commit()
    found = session.query().entities(Thing).get(key)
    assert found == Thing(id=key, n=1)
    assert type(found.id) is type(key)
    assert session.query().entities(Thing).count() == 1


@pytest.mark.parametrize(
    "hint",
    [float, bool, datetime, Decimal, bytes, str | None, list[str], dict, Any, Literal[True]],
)
def test_other_types_cannot_be_keys(hint: Any):
    with pytest.raises(ModelDefinitionError, match="cannot be a key"):

        class Thing(Entity):
            id: Field[hint] = Field(primary_key=True)


def test_an_entity_may_have_fields_called_like_the_ends_of_a_relation(session: Session):
    class Glove(Entity):
        id: Field[str] = Field(primary_key=True)
        left_key: Field[str | None] = None
        right_key: Field[str] = ""

    session.ensure(Glove(id="g"))
    session.commit()
    assert session.query().entities(Glove).get("g") == Glove(id="g", left_key=None, right_key="")


# Inheritance


class Stamped(Entity, abstract=True):
    id: Field[str] = Field(primary_key=True)
    created: Field[date] = date(2026, 1, 1)


class Invoice(Stamped):
    total: Field[int] = 0


class CreditNote(Invoice):
    total: Field[int] = -1


def test_subclasses_inherit_fields_and_are_types_of_their_own(session: Session):
    session.ensure([Invoice(id="1", total=5), CreditNote(id="1")])
    session.commit()
    assert session.query().entities(Invoice).collect() == [Invoice(id="1", total=5)]
    note = session.query().entities(CreditNote).get("1")
    assert (note.created, note.total) == (date(2026, 1, 1), -1)


def test_inherited_fields_filter_the_subclass(session: Session):
    session.ensure([Invoice(id="1"), Invoice(id="2", created=date(2025, 1, 1))])
    session.commit()
    old = session.query().entities(Invoice).where(Stamped.created < date(2026, 1, 1))
    assert [i.id for i in old] == ["2"]


@pytest.mark.parametrize("cls", [Stamped, Entity, Relation, Event])
def test_abstract_classes_have_no_instances(cls: Any):
    with pytest.raises(ModelDefinitionError, match="abstract"):
        cls(id="1")


def test_methods_properties_and_class_variables_stay_what_they_are(session: Session):
    class Circle(Entity):
        unit: ClassVar[str] = "cm"
        id: Field[str] = Field(primary_key=True)
        radius: Field[float] = 1.0

        @property
        def diameter(self) -> float:
            return 2 * self.radius

        def grow(self) -> None:
            self.radius *= 2

    circle = Circle(id="c")
    circle.grow()
    assert (circle.diameter, Circle.unit) == (4.0, "cm")
    session.ensure(circle)
    session.commit()
    assert session.query().entities(Circle).first().diameter == 4.0


# Names


def test_the_name_keyword_is_the_stored_name(session: Session):
    class V2(Entity, name="Customer"):
        id: Field[str] = Field(primary_key=True)

    session.ensure(V2(id="1"))
    (change,) = session.list_commit_changes(session.commit())
    assert change["type"] == "Customer"


def test_names_that_sql_reserves_are_ordinary_names(session: Session):
    class Order(Entity, name="table"):
        select: Field[str] = Field(primary_key=True)
        group: Field[int] = Field(default=1, index=True)
        rowid: Field[int] = 2
        naïve: Field[str] = "é"

    session.ensure(Order(select="x"))
    session.commit()
    assert session.query().entities(Order).where(Order.group == 1, Order.rowid == 2).collect() == [
        Order(select="x")
    ]


@pytest.mark.parametrize(
    "name", ["", "a b", "1x", 'x"; DROP TABLE commits --', "x" * 49, "a\0", "A_History"]
)
def test_unusable_type_names_are_refused(name: str):
    with pytest.raises(ModelDefinitionError, match="not a usable type name"):

        class Thing(Entity, name=name):
            id: Field[str] = Field(primary_key=True)


def _entity(name: str, *indexed: str) -> type[Entity]:
    body: dict[str, Any] = {"id": Field(primary_key=True), "__annotations__": {"id": Field[str]}}
    for field in indexed:
        body[field] = Field(default="x", index=True)
        body["__annotations__"][field] = Field[str]
    return type(Entity)(name, (Entity,), body)


@pytest.mark.parametrize(
    "classes",
    [
        [_entity("Order", "line_no"), _entity("Order_line", "no")],
        [_entity("Order", "history")],
    ],
    ids=["type-and-field-run-together", "indexed-field-history"],
)
def test_similar_names_do_not_get_into_each_others_way(session: Session, classes: Any):
    things = [cls(id="1") for cls in classes]
    session.ensure(things)
    session.commit()
    assert [session.query().entities(cls).get("1") for cls in classes] == things


# Annotations that are resolved later


class Late(Entity):
    id: "Field[str]" = Field(primary_key=True)
    place: Field["Place | None"] = None
    other: "ontologia.Field[Place | None]" = None


class Visit(Relation["Late", "Place2"]):
    pass


@dataclass
class Place:
    city: str


class Place2(Entity):
    id: Field[str] = Field(primary_key=True)


def test_annotations_may_name_what_is_defined_later(session: Session):
    late = Late(id="1", place=Place("Rome"), other=Place("Oslo"))
    visit = Visit(left_key="1", right_key="p")
    session.ensure([late, visit, Place2(id="p")])
    session.commit()
    assert session.query().entities(Late).first() == late
    assert session.query().relations(Visit).first().right == Place2(id="p")


def test_an_annotation_that_is_never_defined_is_named_on_first_use():
    class Lost(Entity):
        id: Field[str] = Field(primary_key=True)
        where: "Field[Nowhere]"  # noqa: F821

    with pytest.raises(ModelDefinitionError, match="'Nowhere' is not defined"):
        Lost(id="1", where=1)


# What cannot work


class Opaque:
    pass


@dataclass
class Node:
    next: "Node | None" = None


class Listed(enum.Enum):
    A = [1]


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Huge(enum.Enum):
    A = 2**63


class Unspeakable(enum.Enum):
    A = "\ud800"


@pytest.mark.parametrize(
    "hint",
    [
        int | str,
        Callable[[], int],
        Opaque,
        Node,
        Listed,
        Mixed,
        Huge,
        Unspeakable,
        Literal["a", 1],
        Literal[b"a"],
        dict[tuple[int, int], str],
        complex,
    ],
    ids=repr,
)
def test_types_without_an_exact_stored_form_are_refused(hint: Any):
    with pytest.raises(ModelDefinitionError, match=r"Thing\.x"):

        class Thing(Entity):
            id: Field[str] = Field(primary_key=True)
            x: Field[hint]


@pytest.mark.parametrize(
    ("default", "hint"),
    [("x", int), (None, int), (float("nan"), float), ("\0", str), (2**63, int), ("c", Color)],
)
def test_defaults_must_be_valid(default: Any, hint: Any):
    with pytest.raises(ModelDefinitionError, match=r"default of Thing\.x"):

        class Thing(Entity):
            id: Field[str] = Field(primary_key=True)
            x: Field[hint] = default


def _no_primary_key() -> None:
    class Thing(Entity):
        x: Field[str]


def _two_primary_keys() -> None:
    class Thing(Entity):
        a: Field[str] = Field(primary_key=True)
        b: Field[str] = Field(primary_key=True)


def _instance_key_on_entity() -> None:
    class Thing(Entity):
        a: Field[str] = Field(primary_key=True)
        b: Field[str] = Field(instance_key=True)


def _primary_key_on_relation() -> None:
    class Thing(Relation[Customer, Product]):
        a: Field[str] = Field(primary_key=True)


def _two_instance_keys() -> None:
    class Thing(Relation[Customer, Product]):
        a: Field[str] = Field(instance_key=True)
        b: Field[str] = Field(instance_key=True)


def _relation_of_nothing() -> None:
    class Thing(Relation):
        pass


def _relation_of_strings() -> None:
    class Thing(Relation[str, Customer]):
        pass


def _key_on_event() -> None:
    class Thing(Event):
        a: Field[str] = Field(primary_key=True)


def _no_annotation() -> None:
    class Thing(Entity):
        id = Field(primary_key=True)


def _no_parameter() -> None:
    class Thing(Entity):
        id: Field = Field(primary_key=True)


def _underscore() -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        _x: Field[str] = ""


def _reserved() -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        model_dump: Field[str] = ""


def _reserved_on_relation() -> None:
    class Thing(Relation[Customer, Product]):
        left: Field[str] = ""


def _reserved_on_event() -> None:
    class Thing(Event):
        created_at: Field[str] = ""


def _differ_in_case() -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        ID: Field[str] = ""


def _default_twice() -> None:
    Field(default=1, default_factory=int)


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (_no_primary_key, "no primary key"),
        (_two_primary_keys, "2 primary keys"),
        (_instance_key_on_entity, "instance key"),
        (_primary_key_on_relation, "primary key"),
        (_two_instance_keys, "2 instance keys"),
        (_relation_of_nothing, "what it relates"),
        (_relation_of_strings, "Entity classes"),
        (_key_on_event, "key"),
        (_no_annotation, "no annotation"),
        (_no_parameter, "Field[<type>]"),
        (_underscore, "underscore"),
        (_reserved, "used by the library"),
        (_reserved_on_relation, "used by the library"),
        (_reserved_on_event, "used by the library"),
        (_differ_in_case, "upper and lower case"),
        (_default_twice, "both default and default_factory"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_declarations_that_cannot_work_say_why(declare: Callable[[], None], says: str):
    with pytest.raises(ModelDefinitionError, match=re.escape(says)):
        declare()


def test_asking_a_class_for_an_unknown_field_lists_the_known_ones():
    with pytest.raises(ontologia.QueryError, match="its fields are id, name"):
        Customer.nmae
