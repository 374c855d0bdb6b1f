"""Migrations: noticed, previewed, applied with a token, to all types or to none."""

from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from support import versions
from support.backends import OpenSession
from support.faults import Fault, break_store
from support.models import OrderPlaced
from support.versions import (
    CustomerV1,
    CustomerV2,
    CustomerV3,
    CustomerV4,
    learn,
    make_exact,
    migrate,
    rename,
)

from ontologia import (
    Entity,
    Field,
    MigrationError,
    MigrationTokenError,
    MissingUpgraderError,
    Relation,
    SchemaError,
    SchemaOutdatedError,
    Session,
    load_upgraders,
    upgrader,
)


@pytest.fixture
def stored(session: Session) -> Session:
    """A session on a store that holds two customers of version 1."""
    session.ensure([CustomerV1(id="1", name="Ada", age=36), CustomerV1(id="2", name="Bob")])
    session.commit()
    return session


def seen(session: Session, cls: type[Any]) -> Any:
    query = session.query().entities(cls)
    return [query.to_dicts(), query.with_history().to_dicts(), session.list_commits()]


# Noticing


def test_equal_types_validate(stored: Session):
    stored.validate()
    learn(stored, CustomerV1)
    stored.validate()
    assert stored.migrate().is_empty


def test_a_type_that_is_not_stored_yet_validates(session: Session):
    learn(session, CustomerV1)
    session.validate()
    assert session.migrate().is_empty


def test_validate_tells_what_changed_per_field(stored: Session):
    learn(stored, CustomerV4)
    with pytest.raises(SchemaOutdatedError) as caught:
        stored.validate()
    (diff,) = caught.value.diffs
    assert (diff.kind, diff.type_name, diff.stored_version) == ("entity", "Customer", 1)
    assert {(f.field, f.change) for f in diff.fields} == {
        ("age", "changed"),
        ("full_name", "added"),
        ("name", "removed"),
        ("tier", "added"),
    }
    assert "full_name" in str(caught.value)
    assert "fix:" in str(caught.value)


def test_types_given_to_the_session_are_validated(open_session: OpenSession):
    with open_session() as session:
        session.ensure(CustomerV1(id="1", name="Ada"))
        keeper = open_session()
        keeper.validate()
    with pytest.raises(SchemaOutdatedError):
        open_session(entity_types=[CustomerV2]).validate()


def test_an_outdated_type_can_neither_be_read_nor_written(stored: Session):
    query = stored.query().entities(CustomerV2)
    for read in (query.collect, query.count, query.as_of(1).first, lambda: query.get("1")):
        with pytest.raises(SchemaOutdatedError):
            read()
    stored.ensure(CustomerV2(id="1", name="Ada"))
    with pytest.raises(SchemaOutdatedError):
        stored.commit(event=OrderPlaced(order_id="1"))
    assert stored.pending == 1
    assert len(stored.list_commits()) == 1
    assert stored.list_events() == []


class Reordered(Entity, name="Customer"):
    age: Field[int] = Field(default=7, index=True, doc="in years")
    name: Field[str] = Field(default="nobody")
    id: Field[str] = Field(primary_key=True)


def test_order_defaults_indexes_and_docs_are_no_schema_change(stored: Session):
    learn(stored, Reordered)
    stored.validate()
    assert stored.query().entities(Reordered).where(Reordered.age == 36).first().name == "Ada"
    stored.ensure(Reordered(id="3"))
    assert stored.commit() == 2
    assert stored.query().entities(Reordered).where(Reordered.age == 7).count() == 1
    assert stored.verify().ok


# Preview and token


def test_a_preview_tells_what_would_happen_and_does_nothing(stored: Session):
    before = seen(stored, CustomerV1)
    learn(stored, CustomerV2)
    preview = stored.migrate()
    (step,) = preview.types
    assert (step.kind, step.type_name, step.from_version, step.to_version) == (
        "entity",
        "Customer",
        1,
        2,
    )
    assert [(c.field, c.change) for c in step.changes] == [("tier", "added")]
    assert step.missing_upgrader is None
    assert preview.token in str(preview)
    assert seen(stored, CustomerV1) == before


def test_a_preview_names_the_upgraders_that_are_missing(stored: Session):
    learn(stored, CustomerV3)
    (step,) = stored.migrate().types
    assert "full_name" in step.missing_upgrader


def test_the_token_depends_on_the_change_alone(open_session: OpenSession):
    def token(*classes: type[Any]) -> str:
        return open_session(entity_types=classes).migrate().token

    open_session().commit()
    with open_session() as session:
        session.ensure(CustomerV1(id="1", name="Ada"))
        keep = open_session()
    assert token(CustomerV2) == token(CustomerV2)
    assert len({token(), token(CustomerV2), token(CustomerV3)}) == 3
    keep.ensure(CustomerV1(id="2", name="Bob"))
    before = token(CustomerV2)
    keep.commit()
    assert token(CustomerV2) == before


@pytest.mark.parametrize("token", [None, "", "0" * 16, 5])
def test_without_the_right_token_nothing_happens(stored: Session, token: Any):
    before = seen(stored, CustomerV1)
    learn(stored, CustomerV2)
    with pytest.raises(MigrationTokenError) as caught:
        stored.migrate(dry_run=False, token=token)
    assert caught.value.given == token
    assert caught.value.expected == stored.migrate().token
    assert seen(stored, CustomerV1) == before


def test_a_token_is_void_once_the_store_has_changed(open_session: OpenSession):
    with open_session() as session:
        session.ensure(CustomerV1(id="1", name="Ada"))
        late = open_session(entity_types=[CustomerV3], upgraders=versions)
    token = late.migrate().token
    migrate(open_session(), CustomerV2)
    with pytest.raises(MigrationTokenError):
        late.migrate(dry_run=False, token=token)
    late.migrate(dry_run=False, token=late.migrate().token)
    assert late.query().entities(CustomerV3).first().full_name == "Ada"


def test_force_needs_no_token(stored: Session):
    learn(stored, CustomerV2)
    result = stored.migrate(dry_run=False, force=True)
    assert result.rows == {"Customer": 2}
    assert stored.query().entities(CustomerV2).get("1").tier == "free"


def test_there_may_be_nothing_to_migrate(stored: Session):
    result = stored.migrate(dry_run=False, token=stored.migrate().token)
    assert (result.types, result.rows) == ((), {})
    learn(stored, CustomerV2)
    migrate(stored, CustomerV2)
    assert stored.migrate().is_empty


# Upgrading


def test_new_fields_with_defaults_need_no_upgrader(stored: Session):
    class Customer(Entity):
        id: Field[str] = Field(primary_key=True)
        name: Field[str | None]
        age: Field[int] = 0
        tier: Field[str] = "free"
        tags: Field[list[str]] = Field(default_factory=lambda: ["new"])
        balance: Field[Decimal] = Decimal("0.00")
        note: Field[str | None] = None

    migrate(stored, Customer)
    found = stored.query().entities(Customer).get("1")
    assert found == Customer(id="1", name="Ada", age=36)
    assert str(found.balance) == "0.00"
    assert stored.verify().ok


def test_upgraders_get_json_and_may_return_json_or_python_values(stored: Session):
    given: list[dict[str, Any]] = []

    class Customer(Entity):
        id: Field[str] = Field(primary_key=True)
        name: Field[tuple[str, ...]]
        age: Field[Decimal]

    @upgrader("Customer", from_version=1)
    def split(data: dict[str, Any]) -> dict[str, Any]:
        given.append(dict(data))
        return {"id": data["id"], "name": [data["name"]], "age": Decimal(data["age"])}

    migrate(stored, Customer, upgraders=[split])
    assert {"id": "1", "name": "Ada", "age": 36} in given
    assert stored.query().entities(Customer).get("1") == Customer(
        id="1", name=("Ada",), age=Decimal(36)
    )


@pytest.mark.parametrize(
    "given",
    [
        [rename, make_exact],
        (rename, make_exact),
        versions,
        "support.versions",
        load_upgraders("support.versions"),
    ],
    ids=["list", "tuple", "module", "name", "loaded"],
)
def test_upgraders_come_as_functions_or_by_module(stored: Session, given: Any):
    migrate(stored, CustomerV2)
    migrate(stored, CustomerV3, upgraders=given)
    migrate(stored, CustomerV4)  # what was given once is remembered
    assert stored.query().entities(CustomerV4).get("1") == CustomerV4(
        id="1", full_name="Ada", age=Decimal(36)
    )


class RandomDefault(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = 0
    token: Field[UUID] = Field(default_factory=uuid4)


class Required(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = 0
    tier: Field[str]


class Narrowed(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class OtherKey(Entity, name="Customer"):
    id: Field[str] = ""
    name: Field[str] = Field(primary_key=True)
    age: Field[int] = 0


@pytest.mark.parametrize("cls", [RandomDefault, Required, Narrowed, CustomerV3, OtherKey])
def test_other_changes_need_an_upgrader(stored: Session, cls: type[Any]):
    before = seen(stored, CustomerV1)
    learn(stored, cls)
    with pytest.raises(MissingUpgraderError) as caught:
        stored.migrate(dry_run=False, token=stored.migrate().token)
    assert (caught.value.type_name, caught.value.from_version) == ("Customer", 1)
    assert "@upgrader('Customer', from_version=1)" in str(caught.value)
    assert seen(stored, CustomerV1) == before


def _raises(data: dict[str, Any]) -> Any:
    if data["id"] == "2":
        raise KeyError("no tier")
    return {**data, "tier": "x"}


@pytest.mark.parametrize(
    "function",
    [
        _raises,
        lambda data: {**data, "tier": None if data["id"] == "2" else "x"},
        lambda data: {**data, "tier": "\0"} if data["id"] == "2" else {**data, "tier": "x"},
        lambda data: None if data["id"] == "2" else {**data, "tier": "x"},
        lambda data: data if data["id"] == "2" else {**data, "tier": "x"},
        lambda data: (
            {**data, "tier": "x", "extra": 1} if data["id"] == "2" else {**data, "tier": "x"}
        ),
        lambda data: {**data, "tier": "x", "id": "1"},
    ],
    ids=["raises", "none", "nul", "no-dict", "missing", "extra", "key"],
)
def test_an_upgrader_that_fails_names_the_row_and_changes_nothing(stored: Session, function: Any):
    before = seen(stored, CustomerV1)
    learn(stored, Required)
    with pytest.raises(MigrationError) as caught:
        stored.migrate(
            dry_run=False,
            force=True,
            upgraders=[upgrader("Customer", from_version=1)(lambda data: function(data))],
        )
    assert (caught.value.type_name, caught.value.key) == ("Customer", "2")
    assert caught.value.data["name"] == "Bob"
    assert "'2'" in str(caught.value)
    assert seen(stored, CustomerV1) == before
    stored.ensure(CustomerV1(id="1", name="Ada", age=37))
    assert stored.commit() == 2


class Product(Entity):
    sku: Field[int] = Field(primary_key=True)


class PricedProduct(Entity, name="Product"):
    sku: Field[int] = Field(primary_key=True)
    price: Field[float] = 1.0


class Zone(Entity):
    id: Field[str] = Field(primary_key=True)


class SizedZone(Entity, name="Zone"):
    id: Field[str] = Field(primary_key=True)
    size: Field[int]


def test_one_failing_type_leaves_all_types_untouched(session: Session):
    session.ensure([CustomerV1(id="1", name="Ada"), Product(sku=1), Zone(id="z")])
    session.commit()
    learn(session, CustomerV2, PricedProduct, SizedZone)
    broken = upgrader("Zone", from_version=1)(lambda data: {**data, "size": "big"})
    token = session.migrate(upgraders=[broken]).token
    with pytest.raises(MigrationError):
        session.migrate(dry_run=False, token=token, upgraders=[broken])
    with pytest.raises(MissingUpgraderError):
        session.migrate(dry_run=False, token=token)
    learn(session, CustomerV1, Product, Zone)
    session.validate()
    assert session.query().entities(Product).collect() == [Product(sku=1)]

    learn(session, CustomerV2, PricedProduct, SizedZone)
    fixed = upgrader("Zone", from_version=1)(lambda data: {**data, "size": 3})
    result = session.migrate(dry_run=False, token=token, upgraders=[fixed])
    assert result.rows == {"Customer": 1, "Product": 1, "Zone": 1}
    session.validate()
    assert session.query().entities(SizedZone).first().size == 3
    assert session.verify().ok


def test_a_store_that_breaks_during_a_migration_is_untouched(stored: Session):
    before = seen(stored, CustomerV1)
    learn(stored, CustomerV2)
    for place in ("replace_type", "end"):
        with break_store(stored, place), pytest.raises(Fault):
            stored.migrate(dry_run=False, force=True)
    assert seen(stored, CustomerV1) == before
    migrate(stored, CustomerV2)
    assert stored.query().entities(CustomerV2).count() == 2


def test_all_namespaces_are_migrated(open_session: OpenSession):
    for namespace in ("red", "blue"):
        session = open_session(namespace)
        session.ensure(CustomerV1(id="1", name=namespace))
        session.commit()
    migrate(open_session("green"), CustomerV2)
    for namespace in ("red", "blue"):
        session = open_session(namespace)
        assert session.query().entities(CustomerV2).collect() == [
            CustomerV2(id="1", name=namespace)
        ]
        assert session.verify().ok


def test_a_migration_is_no_commit_and_reensuring_is_a_no_op(stored: Session):
    migrate(stored, CustomerV2)
    assert len(stored.list_commits()) == 1
    stored.ensure([CustomerV2(id="1", name="Ada", age=36), CustomerV2(id="2", name="Bob")])
    assert stored.commit() is None
    stored.ensure(CustomerV2(id="1", name="Ada", age=36, tier="gold"))
    assert stored.commit() == 2
    assert stored.diff(1, 2).changed[0].fields == {"tier": ("free", "gold")}


def test_commit_checks_again_when_another_session_migrated_in_between(open_session: OpenSession):
    old, new = open_session(), open_session()
    old.ensure(CustomerV1(id="1", name="Ada"))
    old.commit()
    old.ensure(CustomerV1(id="1", name="Ada", age=1))
    migrate(new, CustomerV2)
    with pytest.raises(SchemaOutdatedError) as caught:
        old.commit(event=OrderPlaced(order_id="1"))
    assert [(f.field, f.change) for f in caught.value.diffs[0].fields] == [("tier", "removed")]
    with pytest.raises(SchemaOutdatedError):
        old.query().entities(CustomerV1).collect()
    assert old.pending == 1
    assert len(new.list_commits()) == 1
    assert new.list_events() == []
    assert new.query().entities(CustomerV2).get("1").age == 0


# Relations


class Person(Entity):
    id: Field[str] = Field(primary_key=True)


class Knows(Relation[Person, Person]):
    pass


class KnowsSince(Relation[Person, Person], name="Knows"):
    year: Field[int] = 2000


class KnowsOften(Relation[Person, Person], name="Knows"):
    day: Field[str] = Field(default="monday", instance_key=True)


def test_relations_are_migrated_like_entities(session: Session):
    session.ensure([Person(id="a"), Person(id="b"), Knows(left_key="a", right_key="b")])
    session.commit()
    migrate(session, KnowsSince)
    found = session.query().relations(KnowsSince).get("a", "b")
    assert (found.year, found.left.id, found.right.id) == (2000, "a", "b")
    assert session.query().relations(KnowsSince).as_of(1).first().year == 2000
    assert session.verify().ok


def test_what_identifies_a_relation_cannot_change(session: Session):
    session.ensure(Knows(left_key="a", right_key="b"))
    session.commit()
    learn(session, KnowsOften)
    with pytest.raises(SchemaError):
        session.migrate(
            dry_run=False,
            force=True,
            upgraders=[upgrader("Knows", from_version=1)(lambda data: {**data, "day": "monday"})],
        )
    assert session.query().relations(Knows).collect() == [Knows(left_key="a", right_key="b")]


class Numbered(Entity, name="Person"):
    id: Field[int] = Field(primary_key=True)


class Coded(Entity, name="Person"):
    code: Field[str] = Field(primary_key=True)


@pytest.mark.parametrize("objects", [[Person(id="1")], [Knows(left_key="a", right_key="b")]])
def test_the_type_of_a_key_cannot_change(open_session: OpenSession, objects: Any):
    session = open_session()
    session.ensure(objects)
    session.commit()
    other = open_session(entity_types=[Numbered])
    same = upgrader("Person", from_version=1)(lambda data: data)
    with pytest.raises(SchemaError):
        other.migrate(dry_run=False, force=True, upgraders=[same])
    session.validate()


def test_the_key_may_get_another_name(session: Session):
    session.ensure(Person(id="a"))
    session.commit()
    code = upgrader("Person", from_version=1)(lambda data: {"code": data["id"]})
    migrate(session, Coded, upgraders=[code])
    session.ensure(Coded(code="a"))
    assert session.commit() is None
    people = session.query().entities(Coded)
    assert people.get("a") == people.as_of(1).get("a") == Coded(code="a")
    assert session.verify().ok


# Registering


def test_upgraders_that_make_no_sense_are_refused(stored: Session):
    with pytest.raises(SchemaError, match="from_version"):
        upgrader("Customer", from_version=0)
    with pytest.raises(SchemaError, match="cannot be imported"):
        load_upgraders("no.such.module")
    with pytest.raises(SchemaError, match="not an upgrader"):
        stored.migrate(upgraders=[lambda data: data])
    with pytest.raises(SchemaError, match="two upgraders"):
        stored.migrate(upgraders=[rename, upgrader("Customer", from_version=2)(lambda data: data)])


class customer(Entity):  # noqa: N801
    id: Field[str] = Field(primary_key=True)


def test_types_whose_names_differ_only_in_case_are_refused(open_session: OpenSession):
    with open_session() as session:
        session.ensure(CustomerV1(id="1", name="Ada"))
        other = open_session()
    other.ensure(customer(id="1"))
    with pytest.raises(SchemaError, match="case"):
        other.commit()
