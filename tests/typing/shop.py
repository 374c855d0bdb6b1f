"""The declarations that the other files of this directory use."""

from datetime import datetime

from ontologia import Entity, Event, Field, Relation


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int] = Field(default=0, index=True)
    nick: Field[str | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    since: Field[datetime | None] = Field(default=None)
    active: Field[bool] = Field(default=True)


class Product(Entity, name="Article"):
    sku: Field[int] = Field(primary_key=True, doc="stock keeping unit")
    price: Field[float]


class Subscription(Relation[Customer, Product]):
    seat: Field[str] = Field(instance_key=True)
    plan: Field[str] = Field(default="free")


class OrderPlaced(Event):
    order_id: Field[str]
    priority: int = 50


class OrderShipped(Event, type="order.sent"):
    order_id: Field[str]
