"""Types that many tests use."""

from __future__ import annotations

from ontologia import Entity, Event, Field, Relation


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str] = Field(default="")
    age: Field[int] = Field(default=0, index=True)
    tags: Field[list[str]] = Field(default_factory=list)
    nick: Field[str | None] = Field(default=None)


class Product(Entity):
    sku: Field[int] = Field(primary_key=True)
    price: Field[float] = Field(default=1.0)


class Subscription(Relation[Customer, Product]):
    """At most one between a customer and a product."""

    plan: Field[str] = Field(default="free")


class Seat(Relation[Customer, Product]):
    """Several between a customer and a product, told apart by their number."""

    number: Field[int] = Field(instance_key=True)
    note: Field[str] = Field(default="")


class OrderPlaced(Event):
    order_id: Field[str]
    total: Field[int] = Field(default=0)
