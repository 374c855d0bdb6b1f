"""The data of the benchmarks: types, plain dicts, and the objects made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from ontologia import Entity, Event, Field, Relation

T = TypeVar("T")
Plain = dict[str, Any]

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Alan", "Radia")


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    city: Field[str]
    age: Field[int] = Field(index=True)
    balance: Field[float]
    active: Field[bool]
    joined: Field[datetime]
    note: Field[str | None] = Field(default=None)


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    title: Field[str]
    price: Field[float]
    stock: Field[int]


class Supplier(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    country: Field[str]


class Purchase(Relation[Customer, Product]):
    quantity: Field[int]
    price: Field[float]
    bought: Field[datetime]


class Supply(Relation[Product, Supplier]):
    cost: Field[float]
    days: Field[int]


class OrderPlaced(Event):
    order_id: Field[str]
    total: Field[float]


ENTITY_TYPES = (Customer, Product, Supplier)
RELATION_TYPES = (Purchase, Supply)


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    rounds: int = 7
    batch: int = 10_000
    singles: int = 1_000
    lookups: int = 2_000
    small: int = 10_000
    large: int = 1_000_000
    table: int = 100_000
    relations: int = 50_000
    sources: int = 1_000
    commits: int = 100
    changes: int = 1_000
    events: int = 10_000
    state_events: int = 5_000
    wakes: int = 60
    jobs: int = 5_000
    races: int = 3


FULL = Sizes()
QUICK = Sizes(
    rounds=3,
    batch=2_000,
    singles=100,
    lookups=500,
    small=2_000,
    large=50_000,
    table=10_000,
    relations=5_000,
    sources=200,
    commits=20,
    changes=200,
    events=2_000,
    state_events=500,
    wakes=20,
    jobs=500,
    races=1,
)


def customer_key(i: int) -> str:
    return f"customer-{i:07d}"


def customer(i: int) -> Plain:
    """Customer number ``i``: ages are uniform over 100 values, cities over 50."""
    mixed = i * 2_654_435_761 % 4_294_967_296
    return {
        "id": customer_key(i),
        "name": f"{_NAMES[mixed % 8]} {mixed:x}",
        "city": f"city-{mixed // 8 % 50:02d}",
        "age": i * 37 % 100,
        "balance": mixed % 1_000_000 / 100,
        "active": mixed % 3 > 0,
        "joined": _EPOCH + timedelta(seconds=mixed // 64, microseconds=i % 1_000_000),
        "note": None if i % 3 else f"called on day {mixed % 365}",
    }


def customers(start: int, stop: int) -> list[Plain]:
    return [customer(i) for i in range(start, stop)]


def changed(plain: Plain) -> Plain:
    """The same customer with another balance and note."""
    return {**plain, "balance": plain["balance"] + 1.25, "note": "changed"}


def product(i: int) -> Plain:
    return {
        "sku": f"product-{i:05d}",
        "title": f"Product {i * 7919 % 10_007}",
        "price": i * 7919 % 10_007 / 100,
        "stock": i * 31 % 500,
    }


def supplier(i: int) -> Plain:
    return {"id": f"supplier-{i:04d}", "name": f"Supplier {i}", "country": f"country-{i % 40:02d}"}


def purchases(n: int, buyers: int, products: int) -> Iterator[Plain]:
    """``n`` purchases, the same number by each of the first ``buyers`` customers."""
    for i in range(n):
        yield {
            "left_key": customer_key(i % buyers),
            "right_key": f"product-{(i % buyers * 13 + i // buyers * 101) % products:05d}",
            "quantity": i % 7 + 1,
            "price": i * 7919 % 10_007 / 100,
            "bought": _EPOCH + timedelta(minutes=i),
        }


def supplies(products: int, suppliers: int) -> Iterator[Plain]:
    """Two suppliers for each product, where there are two."""
    for i in range(products):
        for j in sorted({i % suppliers, (i * 7 + 1) % suppliers}):
            yield {
                "left_key": f"product-{i:05d}",
                "right_key": f"supplier-{j:04d}",
                "cost": i * 31 % 997 / 10,
                "days": (i + j) % 14,
            }


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
