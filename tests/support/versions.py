"""One stored type, ``Customer``, as the code declares it over time, and the way between."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ontologia import Entity, Field, Relation, Session, upgrader


class CustomerV1(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = Field(default=0)


class CustomerV2(Entity, name="Customer"):
    """A new field with a default: no upgrader is needed."""

    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = Field(default=0)
    tier: Field[str] = Field(default="free", index=True)


class CustomerV3(Entity, name="Customer"):
    """A field has another name."""

    id: Field[str] = Field(primary_key=True)
    full_name: Field[str]
    age: Field[int] = Field(default=0)
    tier: Field[str] = Field(default="free", index=True)


class CustomerV4(Entity, name="Customer"):
    """A field has another type."""

    id: Field[str] = Field(primary_key=True)
    full_name: Field[str]
    age: Field[Decimal] = Field(default=Decimal(0))
    tier: Field[str] = Field(default="free", index=True)


@upgrader("Customer", from_version=2)
def rename(data: dict[str, Any]) -> dict[str, Any]:
    data["full_name"] = data.pop("name")
    return data


@upgrader("Customer", from_version=3)
def make_exact(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "age": Decimal(data["age"])}


class Likes(Relation[CustomerV1, CustomerV1], name="Likes"):
    strength: Field[int] = Field(default=1)


class LikesV4(Relation[CustomerV4, CustomerV4], name="Likes"):
    strength: Field[int] = Field(default=1)


def learn(session: Session, *classes: type[Any]) -> None:
    """Tell a session what the code declares now."""
    for cls in classes:
        if issubclass(cls, Entity):
            session.query().entities(cls)
        else:
            session.query().relations(cls)


def migrate(session: Session, *classes: type[Any], upgraders: Any = None) -> None:
    """Preview and apply."""
    learn(session, *classes)
    preview = session.migrate(upgraders=upgraders)
    session.migrate(dry_run=False, token=preview.token, upgraders=upgraders)
