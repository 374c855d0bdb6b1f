"""Filters that reach into nested values: path(), [] and any_path()."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from ontologia import Entity, Field, QueryError, Relation, Session, left


class Doc(Entity):
    id: Field[str] = Field(primary_key=True)
    data: Field[dict[str, Any]] = Field(default_factory=dict)
    anything: Field[Any] = Field(default=None)
    maybe: Field[dict[str, Any] | None] = Field(default=None)


def store(session: Session, **documents: Any) -> None:
    session.ensure(Doc(id=key, data=data) for key, data in documents.items())
    session.commit()


def keys(session: Session, *filters: Any, of: type[Entity] = Doc) -> list[str]:
    """The keys found, which current state, the past and history must agree about."""
    query = session.query().entities(of).where(*filters)
    found = [o.id for o in query.collect()]
    assert [o.id for o in query.as_of(1).collect()] == found
    assert [o.id for o in query.with_history().collect()] == found
    return found


def test_path_and_brackets_reach_the_same_value(session: Session) -> None:
    store(session, a={"x": {"y": 1}}, b={"x": {"y": 2}}, c={"x.y": 1})
    assert keys(session, Doc.data.path("x.y") == 1) == ["a"]
    assert keys(session, Doc.data["x"]["y"] == 1) == ["a"]
    assert keys(session, Doc.data["x"].path("y") == 1) == ["a"]
    assert keys(session, Doc.data.path("x")["y"] == 1) == ["a"]


def test_a_key_with_a_dot_is_reached_by_brackets(session: Session) -> None:
    store(session, dotted={"x.y": 1}, nested={"x": {"y": 1}})
    assert keys(session, Doc.data["x.y"] == 1) == ["dotted"]
    assert keys(session, Doc.data["x.y"].is_null()) == ["nested"]


@pytest.mark.parametrize(
    "key", ["a b", "it's", "$", "$.x", "[0]", "#-1", "*", "%", "é", "\U0001f600", "0", "a-b", "x]"]
)
def test_any_key_can_be_named(session: Session, key: str) -> None:
    store(session, hit={key: {key: "v"}}, miss={"x": 1})
    assert keys(session, Doc.data[key][key] == "v") == ["hit"]
    assert keys(session, Doc.data[key].is_null()) == ["miss"]


MISSING: dict[str, Any] = {
    "absent": {},
    "null": {"x": None},
    "null on the way": {"x": {"y": None}},
    "text on the way": {"x": "y"},
    "number on the way": {"x": 5},
    "list on the way": {"x": [{"y": {"z": 1}}]},
    "empty": {"x": {}},
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_not_there_is_null(session: Session, case: str) -> None:
    store(session, hit={"x": {"y": {"z": 1}}}, miss=MISSING[case])
    ref = Doc.data.path("x.y.z")
    assert keys(session, ref.is_null()) == ["miss"]
    assert keys(session, ref.is_not_null()) == ["hit"]
    assert keys(session, ref == 1) == ["hit"]
    assert keys(session, ref != 5) == ["hit"]
    assert keys(session, ~(ref == 5)) == ["hit"]
    assert keys(session, ~ref.in_([5])) == ["hit"]


def test_a_container_is_not_null(session: Session) -> None:
    store(session, dict={"x": {}}, list={"x": []}, null={"x": None})
    assert keys(session, Doc.data["x"].is_not_null()) == ["dict", "list"]


def test_a_whole_document_may_be_missing(session: Session) -> None:
    session.ensure([Doc(id="none"), Doc(id="some", maybe={"x": 1}, anything={"x": 1})])
    session.ensure([Doc(id="null", maybe={"x": None}, anything=[1])])
    session.commit()
    assert keys(session, Doc.maybe.is_null()) == ["none"]
    assert keys(session, Doc.maybe["x"].is_null()) == ["none", "null"]
    assert keys(session, Doc.maybe["x"] == 1) == ["some"]
    assert keys(session, Doc.anything.is_null()) == ["none"]
    assert keys(session, Doc.anything["x"] == 1) == ["some"]
    assert keys(session, Doc.anything["x"].is_null()) == ["none", "null"]


MIXED: dict[str, Any] = {
    "a_text": "5",
    "b_int": 5,
    "c_float": 5.0,
    "d_half": 5.5,
    "e_true": True,
    "f_false": False,
    "g_null": None,
    "h_list": [5],
    "i_dict": {"y": 5},
    "j_word": "word",
    "k_one": 1,
    "l_zero": 0,
}


@pytest.fixture
def mixed(session: Session) -> Session:
    """A session whose documents hold one value of each kind at ``x``, and as ``anything``."""
    session.ensure(Doc(id=k, data={"x": v}, anything=v) for k, v in MIXED.items())
    session.commit()
    return session


@pytest.mark.parametrize("ref", [Doc.data["x"], Doc.anything], ids=["path", "field"])
def test_values_of_unknown_type_compare_within_their_kind(mixed: Session, ref: Any) -> None:
    assert keys(mixed, ref == 5) == ["b_int", "c_float"]
    assert keys(mixed, ref == 5.0) == ["b_int", "c_float"]
    assert keys(mixed, ref != 5) == ["d_half", "k_one", "l_zero"]
    assert keys(mixed, ~(ref == 5)) == ["d_half", "k_one", "l_zero"]
    assert keys(mixed, ref > 4.5) == ["b_int", "c_float", "d_half"]
    assert keys(mixed, ref <= 1) == ["k_one", "l_zero"]
    assert keys(mixed, ref == "5") == ["a_text"]
    assert keys(mixed, ref != "5") == ["j_word"]
    assert keys(mixed, ref >= "5") == ["a_text", "j_word"]
    assert keys(mixed, ref < "w") == ["a_text"]
    assert keys(mixed, ref.is_true()) == ["e_true"]
    assert keys(mixed, ref.is_false()) == ["f_false"]
    assert keys(mixed, ~ref.is_true()) == ["f_false"]
    assert keys(mixed, ~ref.is_false()) == ["e_true"]
    assert keys(mixed, ref.is_null()) == ["g_null"]


@pytest.mark.parametrize("ref", [Doc.data["x"], Doc.anything], ids=["path", "field"])
def test_in_at_a_path_of_unknown_type(mixed: Session, ref: Any) -> None:
    assert keys(mixed, ref.in_([5, "5"])) == ["a_text", "b_int", "c_float"]
    assert keys(mixed, ref.in_([0, 1])) == ["k_one", "l_zero"]
    assert keys(mixed, ~ref.in_([5])) == ["d_half", "k_one", "l_zero"]
    assert keys(mixed, ~ref.in_([5, "5"])) == [], "a number neither is nor is not among texts"
    assert keys(mixed, ref.in_([])) == []
    assert keys(mixed, ~ref.in_([])) == sorted(MIXED)


@pytest.mark.parametrize("ref", [Doc.data["x"], Doc.anything], ids=["path", "field"])
def test_text_matching_at_a_path_sees_only_texts(mixed: Session, ref: Any) -> None:
    assert keys(mixed, ref.startswith("5")) == ["a_text"]
    assert keys(mixed, ref.contains("5")) == ["a_text"]
    assert keys(mixed, ref.endswith("d")) == ["j_word"]
    assert keys(mixed, ~ref.contains("5")) == ["j_word"]
    assert keys(mixed, ref.contains("")) == ["a_text", "j_word"]


@pytest.mark.parametrize("size", [1_000, 50_000])
def test_in_takes_many_values_at_a_path(mixed: Session, size: int) -> None:
    values = [*range(5, 5 + size), "word"]
    found = mixed.query().entities(Doc).where(Doc.data["x"].in_(values))
    assert [d.id for d in found.collect()] == ["b_int", "c_float", "j_word"]
    rest = mixed.query().entities(Doc).where(~Doc.data["x"].in_(values[:-1]))
    assert [d.id for d in rest.collect()] == ["d_half", "k_one", "l_zero"]


def test_texts_at_a_path_are_compared_by_code_point(session: Session) -> None:
    store(session, a={"x": "\uffff"}, b={"x": "\U0001f600"}, c={"x": 'q"\\\n/'}, d={"x": ""})
    assert keys(session, Doc.data["x"] > "\uffff") == ["b"]
    assert keys(session, Doc.data["x"] == 'q"\\\n/') == ["c"]
    assert keys(session, Doc.data["x"] == "") == ["d"]
    assert keys(session, Doc.data["x"].endswith("\n/")) == ["c"]


def test_large_numbers_at_a_path_are_exact(session: Session) -> None:
    store(session, a={"x": 2**53}, b={"x": 2**53 + 1}, c={"x": float(2**53)}, d={"x": -(2**63)})
    assert keys(session, Doc.data["x"] == 2**53 + 1) == ["b"]
    assert keys(session, Doc.data["x"] == 2**53) == ["a", "c"]
    assert keys(session, Doc.data["x"] < -(2**62)) == ["d"]


def test_whole_documents_are_equal_by_content(session: Session) -> None:
    store(session, a={"x": 1, "y": [1, "é"]}, b={"x": 2})
    assert keys(session, Doc.data == {"y": [1, "é"], "x": 1}) == ["a"]
    assert keys(session, Doc.data != {"x": 2}) == ["a"]
    assert keys(session, Doc.data.in_([{"x": 2}, {}])) == ["b"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Geo:
    lat: float
    note: str | None = None


@dataclass
class Address:
    city: str
    geo: Geo | None = None
    paid: Decimal = Decimal(0)
    tags: list[str] = field(default_factory=list)
    flag: bool = False
    color: Color = Color.RED
    at: datetime | None = None
    raw: bytes = b""


class Shape(TypedDict):
    sides: int
    name: NotRequired[str]


class Contact(BaseModel):
    email: str
    ref: UUID
    born: date | None = None
    kind: Literal["home", "work"] = "home"


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    address: Field[Address | None] = Field(default=None)
    shape: Field[Shape | None] = Field(default=None)
    contact: Field[Contact | None] = Field(default=None)
    numbers: Field[dict[str, int]] = Field(default_factory=dict)
    prices: Field[list[Decimal]] = Field(default_factory=list)
    visits: Field[list[datetime]] = Field(default_factory=list)
    codes: Field[set[int]] = Field(default_factory=set)
    pair: Field[tuple[int, str]] = Field(default=(0, ""))
    many: Field[tuple[int, ...]] = Field(default=())
    blobs: Field[list[bytes]] = Field(default_factory=list)
    flags: Field[list[bool]] = Field(default_factory=list)
    gaps: Field[list[int | None]] = Field(default_factory=list)
    homes: Field[list[Address]] = Field(default_factory=list)
    grid: Field[list[list[int]]] = Field(default_factory=list)
    nicks: Field[list[str] | None] = Field(default=None)
    by_day: Field[dict[date, Decimal]] = Field(default_factory=dict)
    by_number: Field[dict[int, str]] = Field(default_factory=dict)


@pytest.fixture
def people(session: Session) -> Session:
    """A session with a person full of values, and one with none."""
    session.ensure(
        Person(
            id="full",
            address=Address(
                city="Bonn",
                geo=Geo(lat=50.5),
                paid=Decimal("1.50"),
                tags=["a", "b%"],
                flag=True,
                color=Color.BLUE,
                at=datetime(2024, 1, 1, tzinfo=UTC),
                raw=b"\x00\xff",
            ),
            shape={"sides": 3, "name": "tri"},
            contact=Contact(email="x@y.z", ref=UUID(int=7), born=date(2000, 2, 29), kind="work"),
            numbers={"one": 1, "minus": -1},
            prices=[Decimal("9.90"), Decimal("-10")],
            visits=[datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1)],
            codes={1, 2},
            pair=(4, "four"),
            many=(7, 8),
            blobs=[b"", b"\xff"],
            flags=[True],
            gaps=[1, None],
            homes=[
                Address(city="Bonn", paid=Decimal("2.0")),
                Address(city="Rom", geo=Geo(lat=1.0)),
            ],
            grid=[[1, 2], []],
            nicks=["n"],
            by_day={date(2024, 1, 1): Decimal("5.0")},
            by_number={12: "dozen"},
        )
    )
    session.ensure(Person(id="none"))
    session.commit()
    return session


MATCHES = {
    "text in a dataclass": Person.address["city"] == "Bonn",
    "prefix in a dataclass": Person.address["city"].startswith("B"),
    "two levels": Person.address.path("geo.lat") > 50,
    "decimal in a dataclass": Person.address["paid"] == Decimal("1.5"),
    "decimal order in a dataclass": Person.address["paid"] < 2,
    "bool in a dataclass": Person.address["flag"].is_true(),
    "enum in a dataclass": Person.address["color"] == Color.BLUE,
    "datetime in a dataclass": Person.address["at"] >= datetime(2024, 1, 1, tzinfo=UTC),
    "bytes in a dataclass": Person.address["raw"] == b"\x00\xff",
    "bytes order": Person.address["raw"] > b"\x00",
    "list in a dataclass": Person.address["tags"].any_path() == "b%",
    "whole list in a dataclass": Person.address["tags"] == ["a", "b%"],
    "whole dataclass": Person.address["geo"] == Geo(lat=50.5),
    "typed dict": Person.shape["sides"] == 3,
    "optional key": Person.shape["name"].in_(["tri", "x"]),
    "whole typed dict": Person.shape == {"sides": 3, "name": "tri"},
    "model": Person.contact["email"].endswith("y.z"),
    "uuid in a model": Person.contact["ref"] == UUID(int=7),
    "date in a model": Person.contact["born"] < date(2000, 3, 1),
    "literal in a model": Person.contact["kind"] == "work",
    "dict of int": Person.numbers["one"] == 1,
    "dict of int order": Person.numbers["minus"] < 0,
    "dict by date": Person.by_day["2024-01-01"] == 5,
    "dict by int": Person.by_number["12"] == "dozen",
    "decimal items": Person.prices.any_path() == Decimal("9.9"),
    "decimal items order": Person.prices.any_path() < Decimal("-9"),
    "decimal items in": Person.prices.any_path().in_([Decimal("-10.0"), Decimal(3)]),
    "aware items": Person.visits.any_path() == datetime(2024, 1, 1, tzinfo=UTC),
    "naive items": Person.visits.any_path() <= datetime(2024, 1, 1),
    "set": Person.codes.any_path() == 2,
    "tuple of fixed size": Person.pair.any_path() == "four",
    "tuple": Person.many.any_path() > 7,
    "bytes items": Person.blobs.any_path() == b"\xff",
    "bool items": Person.flags.any_path().is_true(),
    "null items": Person.gaps.any_path().is_null(),
    "items that are not null": Person.gaps.any_path().is_not_null(),
    "records": Person.homes.any_path("city") == "Rom",
    "decimals of records": Person.homes.any_path("paid") == 2,
    "deep in records": Person.homes.any_path("geo.lat") == 1.0,
    "brackets after any_path": Person.homes.any_path()["geo"]["lat"] < 2,
    "missing in a record": Person.homes.any_path("geo").is_null(),
    "lists of lists": Person.grid.any_path() == [1, 2],
    "optional list": Person.nicks.any_path() == "n",
    "whole set": Person.codes == {2, 1},
    "whole tuple": Person.pair == (4, "four"),
    "whole model": Person.contact
    == Contact(email="x@y.z", ref=UUID(int=7), born=date(2000, 2, 29), kind="work"),
    "whole dict": Person.by_number == {12: "dozen"},
    "whole list among others": Person.prices.in_([[Decimal("9.90"), Decimal("-10")], []])
    & Person.nicks.is_not_null(),
}


@pytest.mark.parametrize("case", MATCHES)
def test_typed_nested_values_compare_by_their_type(people: Session, case: str) -> None:
    assert keys(people, MATCHES[case], of=Person) == ["full"]


NO_MATCHES = {
    "text": Person.address["city"] == "bonn",
    "decimal": Person.address["paid"] > Decimal("1.5"),
    "enum": Person.address["color"] == Color.RED,
    "null member": Person.address.path("geo.note") != "x",
    "items": Person.prices.any_path() > 10,
    "false items": Person.flags.any_path().is_false(),
    "null among none": Person.nicks.any_path().is_null(),
    "null in a list without": Person.codes.any_path().is_null(),
    "no item": Person.homes.any_path("city") == "Paris",
    "aware and naive": Person.visits.any_path() > datetime(2024, 1, 1),
}


@pytest.mark.parametrize("case", NO_MATCHES)
def test_typed_nested_values_that_do_not_match(people: Session, case: str) -> None:
    assert keys(people, NO_MATCHES[case], of=Person) == []


def test_nested_values_of_known_type_sort_and_group(people: Session) -> None:
    people.ensure(Person(id="more", address=Address(city="Aachen", paid=Decimal("-3"))))
    people.commit()
    query = people.query().entities(Person)
    assert [p.id for p in query.order_by(Person.address["city"])] == ["none", "more", "full"]
    by_paid = query.order_by(Person.address["paid"].desc())
    assert [p.id for p in by_paid] == ["full", "more", "none"]
    assert query.sum(Person.address["paid"]) == Decimal("-1.50")
    assert query.max(Person.address["city"]) == "Bonn"
    assert query.avg_len(Person.address["tags"]) == 1.0
    assert query.avg_len(Person.codes) == 2 / 3
    assert query.avg_len(Person.pair) == 2.0


class Cart(Entity):
    id: Field[str] = Field(primary_key=True)
    lines: Field[list[dict[str, Any]]] = Field(default_factory=list)
    loose: Field[list[Any]] = Field(default_factory=list)
    extra: Field[dict[str, Any]] = Field(default_factory=dict)
    tags: Field[list[str] | None] = Field(default=None)


@pytest.fixture
def carts(session: Session) -> Session:
    """A session with carts of all kinds."""
    session.ensure(
        [
            Cart(id="a", lines=[{"sku": "x", "n": 1}, {"sku": "y", "n": 5}], tags=["red", "blue"]),
            Cart(id="b", lines=[{"sku": "x", "n": 5}], tags=[]),
            Cart(id="c", lines=[{"n": None}, {"deep": {"sku": "z"}}], loose=[1, "1", None, True]),
            Cart(id="d", loose=[{"sku": "x"}, "x", ["x"], 3.5], extra={"list": [1, {"k": "v"}]}),
            Cart(id="e", extra={"list": "text"}),
            Cart(id="f", extra={"list": {"k": "v"}}),
            Cart(id="g", extra={"list": None}),
        ]
    )
    session.commit()
    return session


def carts_with(session: Session, *filters: Any) -> str:
    return "".join(keys(session, *filters, of=Cart))


def test_any_path_holds_if_some_item_does(carts: Session) -> None:
    assert carts_with(carts, Cart.lines.any_path("sku") == "x") == "ab"
    assert carts_with(carts, Cart.lines.any_path("n") > 4) == "ab"
    assert carts_with(carts, Cart.lines.any_path("sku") != "x") == "a"
    assert carts_with(carts, Cart.lines.any_path("deep.sku") == "z") == "c"
    assert carts_with(carts, Cart.lines.any_path("sku").in_(["y", "z"])) == "a"
    assert carts_with(carts, Cart.lines.any_path("sku").startswith("y")) == "a"
    assert carts_with(carts, Cart.tags.any_path() == "blue") == "a"
    assert carts_with(carts, Cart.tags.any_path().contains("lu")) == "a"


def test_each_any_path_may_be_satisfied_by_another_item(carts: Session) -> None:
    x, five = Cart.lines.any_path("sku") == "x", Cart.lines.any_path("n") == 5
    assert carts_with(carts, x & five) == "ab"


def test_not_any_path_holds_if_no_item_does(carts: Session) -> None:
    assert carts_with(carts, ~(Cart.lines.any_path("sku") == "x")) == "cdefg"
    assert carts_with(carts, ~(Cart.tags.any_path() == "red")) == "bcdefg"
    assert carts_with(carts, ~(Cart.extra["list"].any_path() == 1)) == "abcefg"
    assert carts_with(carts, ~~(Cart.tags.any_path() == "red")) == "a"
    assert carts_with(carts, ~Cart.lines.any_path("sku").in_(["x"])) == "cdefg"


def test_any_path_finds_missing_members_of_items(carts: Session) -> None:
    assert carts_with(carts, Cart.lines.any_path("sku").is_null()) == "c"
    assert carts_with(carts, Cart.lines.any_path("n").is_null()) == "c"
    assert carts_with(carts, Cart.lines.any_path("n").is_not_null()) == "ab"
    assert carts_with(carts, Cart.lines.any_path().is_null()) == ""


def test_null_and_empty_lists_have_no_items(carts: Session) -> None:
    assert carts_with(carts, Cart.tags.any_path().is_null()) == ""
    assert carts_with(carts, Cart.tags.any_path().is_not_null()) == "a"
    assert carts_with(carts, ~Cart.tags.any_path().is_null()) == "abcdefg"
    assert carts_with(carts, Cart.tags.is_null()) == "cdefg"


def test_items_of_different_kinds(carts: Session) -> None:
    assert carts_with(carts, Cart.loose.any_path() == 1) == "c"
    assert carts_with(carts, Cart.loose.any_path() == "1") == "c"
    assert carts_with(carts, Cart.loose.any_path().is_true()) == "c"
    assert carts_with(carts, Cart.loose.any_path().is_null()) == "c"
    assert carts_with(carts, Cart.loose.any_path() == "x") == "d"
    assert carts_with(carts, Cart.loose.any_path("sku") == "x") == "d"
    assert carts_with(carts, Cart.loose.any_path() > 3) == "d"


def test_any_path_below_a_path_skips_what_is_not_a_list(carts: Session) -> None:
    assert carts_with(carts, Cart.extra["list"].any_path("k") == "v") == "d"
    assert carts_with(carts, Cart.extra["list"].any_path() == 1) == "d"
    assert carts_with(carts, Cart.extra["list"].any_path() == "text") == ""
    assert carts_with(carts, Cart.extra["list"].any_path().is_null()) == ""
    assert carts_with(carts, Cart.extra["list"].any_path("k").is_null()) == "d"


def test_whole_lists_are_equal_by_content(carts: Session) -> None:
    assert carts_with(carts, Cart.tags == ["red", "blue"]) == "a"
    assert carts_with(carts, Cart.tags == ["blue", "red"]) == ""
    assert carts_with(carts, Cart.tags != []) == "a"


class Owns(Relation[Person, Cart]):
    meta: Field[dict[str, Any]] = Field(default_factory=dict)


def test_paths_work_on_relations_and_endpoints(people: Session) -> None:
    people.ensure([Cart(id="k", lines=[{"sku": "x"}], tags=["t"])])
    people.ensure(Owns(left_key="full", right_key="k", meta={"since": {"year": 2020}}))
    people.ensure(Owns(left_key="none", right_key="gone"))
    people.commit()
    query = people.query().relations(Owns)
    for windowed in (query, query.as_of(2), query.with_history()):
        for condition in (
            Owns.meta.path("since.year") == 2020,
            left(Owns).address["city"] == "Bonn",
            left(Owns).homes.any_path("city") == "Rom",
            left(Owns).prices.any_path() == Decimal("9.9"),
        ):
            assert [r.left_key for r in windowed.where(condition)] == ["full"]
        missing = left(Owns).nicks.any_path() == "n"
        assert [r.left_key for r in windowed.where(~missing)] == ["none"]


BAD_PATHS = ["", ".", "a.", ".a", "a..b", 'a"b', "a\\b", "a\nb", "a\x00"]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_name_nothing_are_refused(path: str) -> None:
    with pytest.raises(QueryError, match="path segment"):
        Doc.data.path(path)


@pytest.mark.parametrize("key", ["", 0, None, 'a"b', "a\\b", "\x1f", slice(1)])
def test_keys_that_name_nothing_are_refused(key: Any) -> None:
    with pytest.raises(QueryError, match="path segment"):
        Doc.data[key]


def test_paths_are_text() -> None:
    with pytest.raises(QueryError, match="path"):
        Doc.data.path(5)
    with pytest.raises(QueryError, match="path"):
        Doc.data.any_path(5)


def test_paths_that_the_type_does_not_have_are_refused(session: Session) -> None:
    query = session.query().entities(Person)
    for bad in (
        Person.address["street"] == "x",
        Person.address.path("geo.altitude") == 1,
        Person.shape["corners"] == 1,
        Person.contact["phone"] == "x",
        Person.numbers["one"]["two"] == 1,
        Person.prices["first"] == 1,
        Person.homes.any_path("street") == "x",
        Person.id["x"] == "x",
    ):
        with pytest.raises(QueryError, match="there is nothing at"):
            query.where(bad)


def test_any_path_needs_a_list_and_only_one(session: Session) -> None:
    query = session.query().entities(Person)
    for bad in (
        Person.id.any_path() == "x",
        Person.address.any_path("city") == "x",
        Person.numbers.any_path() == 1,
        Person.address["city"].any_path() == "x",
    ):
        with pytest.raises(QueryError, match="needs a list"):
            query.where(bad)
    with pytest.raises(QueryError, match="already means any item"):
        Person.grid.any_path().any_path()


def test_nested_constants_must_have_the_nested_type(session: Session) -> None:
    query = session.query().entities(Person)
    for bad in (
        Person.address["city"] == 5,
        Person.address["paid"] == "1.5",
        Person.address["color"] == "green",
        Person.numbers["one"] == "1",
        Person.prices.any_path() == 1.5,
        Person.grid.any_path() == ["a"],
        Person.address["geo"] == {"lat": 1.0},
        Person.address["color"] > Color.RED,
        Person.address["tags"] > ["a"],
    ):
        with pytest.raises(QueryError):
            query.where(bad)
    with pytest.raises(QueryError):
        session.query().entities(Doc).where(Doc.data["x"] == Decimal(1))
