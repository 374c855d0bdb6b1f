"""The types that random data is made of, and how the plain model names them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from ontologia import Entity, Field, Relation


@dataclass
class Box:
    n: int
    price: Decimal | None = None
    label: str | None = None


class Node(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str | None] = Field(default=None, index=True)
    whole: Field[int | None] = Field(default=None, index=True)
    real: Field[float | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None, index=True)
    day: Field[date | None] = Field(default=None)
    amount: Field[Decimal | None] = Field(default=None, index=True)
    raw: Field[bytes | None] = Field(default=None)
    choice: Field[Literal["x", "y"] | None] = Field(default=None)
    data: Field[dict[str, Any]] = Field(default_factory=dict)
    loose: Field[Any] = Field(default=None)
    tags: Field[list[str] | None] = Field(default=None)
    lines: Field[list[dict[str, Any]]] = Field(default_factory=list)
    prices: Field[list[Decimal]] = Field(default_factory=list)
    box: Field[Box | None] = Field(default=None)


class Place(Entity):
    id: Field[int] = Field(primary_key=True)
    city: Field[str | None] = Field(default=None)


class Edge(Relation[Node, Node]):
    slot: Field[int] = Field(instance_key=True)
    weight: Field[int | None] = Field(default=None)
    note: Field[str | None] = Field(default=None)


class LivesAt(Relation[Node, Place]):
    weight: Field[int | None] = Field(default=None)


KEYS: dict[Any, tuple[str, ...]] = {
    Node: ("id",),
    Place: ("id",),
    Edge: ("left_key", "right_key", "slot"),
    LivesAt: ("left_key", "right_key"),
}
ENDS: dict[Any, tuple[str, str] | None] = {
    Node: None,
    Place: None,
    Edge: ("Node", "Node"),
    LivesAt: ("Node", "Place"),
}


def key_of(obj: Any) -> tuple[Any, ...]:
    return tuple(getattr(obj, name) for name in KEYS[type(obj)])
