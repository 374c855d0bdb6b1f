"""Types that are declared more than once, or whose defaults need care."""

from __future__ import annotations

import enum
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from ontologia import (
    Entity,
    Field,
    MigrationError,
    MissingUpgraderError,
    ModelDefinitionError,
    QueryError,
    Relation,
    SchemaError,
    Session,
    commit_of,
    count_where,
    upgrader,
)


class Coerced(Entity):
    id: Field[str] = Field(primary_key=True)
    price: Field[Decimal] = Field(default=0)
    day: Field[date] = "2020-01-01"
    tags: Field[set[str]] = Field(default_factory=list)


def test_defaults_are_coerced_like_any_other_value(session: Session) -> None:
    session.ensure(Coerced(id="a"))
    session.commit()
    found = session.query().entities(Coerced).get("a")
    assert (found.price, found.day, found.tags) == (Decimal(0), date(2020, 1, 1), set())


def _order(*, turned: bool = False, wide: bool = False) -> type[Any]:
    if wide:

        class Order(Entity):
            id: Field[str] = Field(primary_key=True)
            n: Field[int] = 0
            text: Field[str] = ""
            more: Field[int] = 0

    elif turned:

        class Order(Entity):
            text: Field[str] = ""
            n: Field[int] = 0
            id: Field[str] = Field(primary_key=True)

    else:

        class Order(Entity):
            id: Field[str] = Field(primary_key=True)
            n: Field[int] = 0
            text: Field[str] = ""

    return Order


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_type_declared_again_is_the_same_type(
    session: Session, stored: bool, turned: bool
) -> None:
    first, second = _order(), _order(turned=turned)
    if stored:
        session.ensure(first(id="a", n=7))
        session.commit()
    session.ensure(first(id="a", n=1, text="one"))
    session.ensure(second(id="a", n=2, text="two"))
    commit = session.commit()
    history = session.query().entities(second).history_since(commit - 1).collect()
    assert history == [second(id="a", n=2, text="two")]
    assert commit_of(history[0]) == commit
    assert session.verify().ok


def test_two_shapes_of_a_type_do_not_share_a_commit(session: Session) -> None:
    session.ensure(_order()(id="a"))
    with pytest.raises(SchemaError, match="two different classes"):
        session.ensure(_order(wide=True)(id="b"))
    assert session.commit() == 1


def test_an_error_of_the_callers_generator_is_the_callers(session: Session) -> None:
    def objects() -> Any:
        yield Coerced(id="a")
        raise KeyError("my own bug")

    with pytest.raises(KeyError, match="my own bug"):
        session.ensure(objects())
    assert session.pending == 0


def test_reading_and_assigning_call_no_default_factory(session: Session) -> None:
    calls: list[int] = []

    class Counted(Entity):
        id: Field[str] = Field(primary_key=True)
        n: Field[int] = 0
        made: Field[UUID] = Field(default_factory=lambda: calls.append(1) or uuid4())

    session.ensure(Counted(id="a"))
    session.commit()
    calls.clear()
    found = session.query().entities(Counted).get("a")
    found.n = 5
    assert not calls


def test_entities_and_relations_share_their_names(session: Session) -> None:
    class Twin(Relation[Coerced, Coerced], name="Coerced"):
        pass

    session.ensure(Coerced(id="a"))
    with pytest.raises(SchemaError, match="two types"):
        session.ensure(Twin(left_key="a", right_key="a"))


@pytest.mark.parametrize("name", ["model_config", "model_fields", "model_dump"])
def test_names_of_the_validation_are_refused(name: str) -> None:
    with pytest.raises(ModelDefinitionError, match=name):
        type(Entity)(
            "Odd",
            (Entity,),
            {
                "id": Field(primary_key=True),
                name: Field(default=1),
                "__annotations__": {"id": Field[str], name: Field[int]},
            },
        )


def test_a_field_may_be_called_self(session: Session) -> None:
    class Person(Entity):
        id: Field[str] = Field(primary_key=True)
        self: Field[str]

    person = Person(id="a", self="me")
    session.ensure(person)
    session.commit()
    assert session.query().entities(Person).get("a") == person


# Upgrades that leave something out, or return what looks like something else


class Old(Entity, name="File"):
    id: Field[str] = Field(primary_key=True)


class WithData(Entity, name="File"):
    id: Field[str] = Field(primary_key=True)
    data: Field[bytes]


class WithToken(Entity, name="File"):
    id: Field[str] = Field(primary_key=True)
    token: Field[UUID] = Field(default_factory=uuid4)


@pytest.fixture
def filed(session: Session) -> Session:
    session.ensure(Old(id="a"))
    session.commit()
    return session


@pytest.mark.parametrize("value", [b"abcd", b"hi!", b""])
def test_bytes_from_an_upgrader_are_kept_as_they_are(filed: Session, value: bytes) -> None:
    @upgrader("File", from_version=1)
    def add(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "data": value}

    filed.query().entities(WithData)
    filed.migrate(False, force=True, upgraders=[add])
    assert filed.query().entities(WithData).get("a").data == value
    assert filed.query().entities(WithData).as_of(1).get("a").data == value


def test_an_upgrader_must_give_what_no_fixed_default_gives(filed: Session) -> None:
    @upgrader("File", from_version=1)
    def forget(data: dict[str, Any]) -> dict[str, Any]:
        return data

    filed.query().entities(WithToken)
    with pytest.raises(MigrationError, match="token"):
        filed.migrate(False, force=True, upgraders=[forget])
    assert filed.query().entities(Old).get("a") == Old(id="a")


# What an adversarial reader tried


def test_fields_of_a_plain_mixin_are_not_ignored() -> None:
    class Mixin:
        made: Field[str] = Field(default="x")

    with pytest.raises(ModelDefinitionError, match="abstract=True"):

        class Thing(Mixin, Entity):
            id: Field[str] = Field(primary_key=True)


def test_flags_are_refused() -> None:
    class Rights(enum.Flag):
        READ = 1
        WRITE = 2

    with pytest.raises(ModelDefinitionError, match="Flag"):

        class Thing(Entity):
            id: Field[str] = Field(primary_key=True)
            rights: Field[Rights]


class Small(enum.Enum):
    A = "a"


class Large(enum.Enum):
    A = "a"
    B = "b"


class Before(Entity, name="Ticket"):
    id: Field[str] = Field(primary_key=True)
    state: Field[Small] = Field(default=Small.A)


class After(Entity, name="Ticket"):
    id: Field[str] = Field(primary_key=True)
    state: Field[Large] = Field(default=Large.B)


def test_more_members_need_no_upgrader_and_fewer_do(session: Session) -> None:
    session.ensure(Before(id="1"))
    session.commit()
    session.query().entities(After)
    session.migrate(False, force=True)
    assert session.query().entities(After).get("1").state is Large.A
    assert session.query().entities(After).as_of(1).get("1").state is Large.A
    session.query().entities(Before)
    with pytest.raises(MissingUpgraderError):
        session.migrate(False, force=True)


def test_dropping_shows_what_would_be_gone(session: Session) -> None:
    session.ensure([Old(id="a"), Old(id="b")])
    session.commit()
    preview = session.drop(Old)
    assert preview.rows == {session.namespace: 2}
    assert not preview.applied


def test_filters_nested_without_end_are_refused(session: Session) -> None:
    deep = Old.id == "a"
    for n in range(500):
        deep = (Old.id == str(n)) | (deep if n % 2 else ~deep)
        deep = (Old.id != "x") & deep
    query = session.query().entities(Old)
    for ask in (
        lambda: query.where(deep),
        lambda: query.count_where(deep),
        lambda: query.group_by(Old.id).agg(n=count_where(deep)),
        lambda: query.group_by(Old.id).having(count_where(deep) > 1),
    ):
        with pytest.raises(QueryError, match="deep"):
            ask()


def test_many_bytes_are_one_list(session: Session) -> None:
    session.ensure([WithData(id=str(n), data=bytes([n])) for n in range(3)])
    session.commit()
    many = [n.to_bytes(4, "big") for n in range(40_000)]
    query = session.query().entities(WithData)
    assert query.where(WithData.data.in_([*many, b"\x01"])).count() == 1
    assert query.where(~WithData.data.in_([*many, b"\x01"])).count() == 2
