"""Instances: validation, assignment, equality, copies, and their forms as dicts."""

import copy
import enum
import math
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel
from support.models import Customer, Product, Seat, Subscription

from ontologia import Entity, Field, OntologiaError, Session, ValidationError, commit_of


@dataclass
class Point:
    x: float = 0.0


class Box(BaseModel):
    width: float = 0.0


class Shape(TypedDict):
    area: float


class Level(enum.IntEnum):
    LOW = 1


class Measured(Entity):
    id: Field[str] = Field(primary_key=True)
    real: Field[float] = 0.0
    maybe: Field[float | None] = None
    exact: Field[Decimal] = Decimal(0)
    reals: Field[list[float]] = Field(default_factory=list)
    pair: Field[tuple[str, float]] = ("", 0.0)
    group: Field[set[float]] = Field(default_factory=set)
    table: Field[dict[str, float]] = Field(default_factory=dict)
    by_real: Field[dict[float, str]] = Field(default_factory=dict)
    anything: Field[Any] = None
    plain: Field[dict] = Field(default_factory=dict)
    point: Field[Point] = Point()
    box: Field[Box] = Box()
    shape: Field[Shape] = Field(default_factory=lambda: {"area": 0.0})
    number: Field[int] = 0
    numbers: Field[dict[int, list[int]]] = Field(default_factory=dict)
    text: Field[str] = ""
    texts: Field[dict[str, list[str]]] = Field(default_factory=dict)
    level: Field[Level] = Level.LOW


def _each(*values: Any) -> list[Any]:
    """Every place of a Measured where a float fits, with these in it."""
    places = []
    for value in values:
        places += [
            ("real", value),
            ("maybe", value),
            ("exact", Decimal(value)),
            ("reals", [0.0, value]),
            ("pair", ("a", value)),
            ("group", {value}),
            ("table", {"k": value}),
            ("by_real", {value: "k"}),
            ("anything", value),
            ("anything", {"a": [{"b": value}]}),
            ("plain", {"a": {"b": value}}),
            ("point", Point(value)),
            ("box", Box(width=value)),
            ("shape", {"area": value}),
        ]
    return places


UNSTORABLE = [
    *_each(math.nan, math.inf, -math.inf),
    ("exact", Decimal("sNaN")),
    ("number", 2**63),
    ("number", -(2**63) - 1),
    ("numbers", {1: [2**64]}),
    ("numbers", {2**63: []}),
    ("anything", [2**63]),
    ("text", "a\0b"),
    ("text", "\ud800"),
    ("texts", {"k": ["\udfff"]}),
    ("texts", {"\0": []}),
    ("anything", {"\ud800": 1}),
    ("anything", "\0"),
    ("anything", object()),
    ("anything", (1, 2)),
    ("anything", {1: 2}),
    ("plain", {1: 2}),
]


def _ids(cases: list[Any]) -> list[str]:
    return [f"{i}-{case[0]}" for i, case in enumerate(cases)]


@pytest.mark.parametrize(("field", "value"), UNSTORABLE, ids=_ids(UNSTORABLE))
def test_the_constructor_refuses_what_no_backend_stores_exactly(field: str, value: Any):
    with pytest.raises(ValidationError) as caught:
        Measured(id="1", **{field: value})
    assert caught.value.type_name == "Measured"
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(("field", "value"), UNSTORABLE, ids=_ids(UNSTORABLE))
def test_assignment_refuses_the_same_and_keeps_the_old_value(field: str, value: Any):
    thing = Measured(id="1")
    before = getattr(thing, field)
    with pytest.raises(ValidationError):
        setattr(thing, field, value)
    assert getattr(thing, field) is before


CHANGED_INSIDE = [
    lambda m: m.reals.append(math.nan),
    lambda m: m.reals.append("x"),
    lambda m: m.table.update(a=math.inf),
    lambda m: m.table.update({1: 1.0}),
    lambda m: m.plain.update(a=[math.nan]),
    lambda m: m.numbers.update({1: [2**63]}),
    lambda m: m.texts.update(a=["\0"]),
    lambda m: m.group.add("x"),
    lambda m: m.shape.update(other=1),
    lambda m: m.shape.clear(),
    lambda m: setattr(m.point, "x", math.nan),
    lambda m: setattr(m.box, "width", "wide"),
]


@pytest.mark.parametrize("change", CHANGED_INSIDE, ids=range(len(CHANGED_INSIDE)))
def test_ensure_refuses_a_value_that_was_spoilt_from_inside(session: Session, change: Any):
    thing = Measured(id="1", point=Point(), box=Box())
    change(thing)
    with pytest.raises(ValidationError, match="Measured"):
        session.ensure(thing)
    assert session.pending == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 5),
        ("age", "many"),
        ("age", 1.5),
        ("tags", "abc"),
        ("tags", [1]),
        ("id", None),
        ("id", ""),
        ("unheard_of", 1),
    ],
)
def test_errors_name_type_field_value_and_rule(field: str, value: Any):
    with pytest.raises(ValidationError) as caught:
        Customer(**{"id": "c1", field: value})
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.type_name == "Customer"
    assert error.field.split(".")[0] == field
    assert error.value in (value, 1)  # for a list, the item that does not fit
    assert error.rule
    assert field in str(error)
    assert "fix:" in str(error)


def test_all_failures_are_reported_together():
    with pytest.raises(ValidationError) as caught:
        Customer(id="", age="x", tags=3)
    assert {e.field for e in caught.value.errors} == {"id", "age", "tags"}


def test_unknown_keys_of_a_typed_dict_are_refused_not_dropped():
    with pytest.raises(ValidationError):
        Measured(id="1", shape={"area": 1.0, "perimeter": 2.0})


def test_assignment_validates_and_converts():
    ada = Customer(id="c1")
    ada.age = 5
    with pytest.raises(ValidationError):
        ada.age = "old"
    with pytest.raises(ValidationError):
        ada.agee = 5
    assert ada.age == 5


def test_fields_cannot_be_deleted():
    ada = Customer(id="c1")
    with pytest.raises(OntologiaError):
        del ada.name
    assert ada.name == ""


def test_subclasses_of_plain_types_are_stored_as_the_plain_type(session: Session):
    class Text(str):
        pass

    class Word(enum.StrEnum):
        HELLO = "hello"

    things = [
        Measured(id=Text("1"), text=Text("a"), number=True),
        Measured(id="2", text=Word.HELLO, number=Level.LOW),
    ]
    session.ensure(things)
    session.commit()
    for thing in things:
        found = session.query().entities(Measured).get(thing.id)
        assert found == thing
        assert (type(thing.id), type(thing.text), type(thing.number)) == (str, str, int)
        assert (type(found.id), type(found.text), type(found.number)) == (str, str, int)


# Equality, hash, repr


def test_equality_is_by_type_and_fields():
    assert Customer(id="1", name="a") == Customer(id="1", name="a")
    assert Customer(id="1", name="a") != Customer(id="1", name="b")
    assert Customer(id="1") != "1"
    assert Subscription(left_key="1", right_key=1) != Seat(left_key="1", right_key=1, number=1)


def test_where_an_object_comes_from_does_not_matter_for_equality(session: Session):
    ada = Customer(id="1")
    session.ensure(ada)
    commit_id = session.commit()
    found = session.query().entities(Customer).first()
    assert found == ada
    assert (commit_of(found), commit_of(ada)) == (commit_id, None)


def test_hash_is_by_identity():
    ada = Customer(id="1", name="a")
    assert {ada: 1}[Customer(id="1", name="a")] == 1
    assert hash(ada) == hash(Customer(id="1", name="b"))
    assert hash(Seat(left_key="1", right_key=1, number=1)) != hash(
        Seat(left_key="1", right_key=1, number=2)
    )


def test_repr_can_be_evaluated():
    for obj in (
        Customer(id="it's", tags=["a"], nick=None),
        Seat(left_key="1", right_key=2, number=3),
    ):
        assert eval(repr(obj)) == obj


# Copies


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, *(lambda o, p=p: pickle.loads(pickle.dumps(o, p)) for p in (2, 5))],
    ids=["copy", "deepcopy", "pickle-2", "pickle-5"],
)
def test_copies_are_equal_and_keep_their_origin(session: Session, duplicate: Any):
    session.ensure(
        [
            Customer(id="c", tags=["a"]),
            Product(sku=1),
            Subscription(left_key="c", right_key=1),
        ]
    )
    session.commit()
    found = session.query().relations(Subscription).first()
    twin = duplicate(found)
    assert twin == found
    assert twin is not found
    assert twin.left == Customer(id="c", tags=["a"])
    assert commit_of(twin) == commit_of(found)
    session.ensure(twin)
    assert session.commit() is None


def test_a_deep_copy_shares_nothing():
    ada = Customer(id="c", tags=["a"])
    copy.deepcopy(ada).tags.append("b")
    assert ada.tags == ["a"]


# Dicts


def test_model_dump_gives_python_values_or_json():
    thing = Measured(id="1", exact=Decimal("1.50"), group={2.0, 1.0})
    assert thing.model_dump()["exact"] == Decimal("1.50")
    as_json = thing.model_dump(mode="json")
    assert (as_json["exact"], as_json["group"]) == ("1.50", [1.0, 2.0])


@pytest.mark.parametrize("mode", ["python", "json"])
def test_model_validate_takes_what_model_dump_gave(mode: Any):
    thing = Measured(id="1", exact=Decimal("1.50"), pair=("a", 2.0), point=Point(3.0))
    assert Measured.model_validate(thing.model_dump(mode=mode), mode=mode) == thing


@pytest.mark.parametrize("data", [None, [], "x", {"id": "1", "nope": 1}, {}])
def test_model_validate_refuses_other_data(data: Any):
    with pytest.raises(ValidationError):
        Measured.model_validate(data)


def test_model_dump_does_not_hand_out_the_members():
    ada = Customer(id="c", tags=["a"])
    ada.model_dump(mode="json")["tags"].append("b")
    assert ada.tags == ["a"]


class Moment(Entity):
    id: Field[UUID] = Field(primary_key=True)
    at: Field[datetime]


def test_times_outside_the_calendar_in_utc_are_refused():
    from datetime import timedelta, timezone

    with pytest.raises(ValidationError):
        Moment(id=UUID(int=1), at=datetime.min.replace(tzinfo=timezone(timedelta(hours=1))))
    assert Moment(id=UUID(int=1), at=datetime.max.replace(tzinfo=UTC)).at.year == 9999
