"""Commits through a session of its own, and says so: ``writer.py PATH NAME COUNT SIZE``.

Each commit changes the same SIZE products, adds one order, and carries one event. Its id is
printed once ``commit()`` has returned. COUNT 0 means: until killed.
"""

from __future__ import annotations

import itertools
import sys

from ontologia import Entity, Event, Field, Session


class Stock(Entity):
    id: Field[str] = Field(primary_key=True)
    round: Field[int]


class Order(Entity):
    id: Field[str] = Field(primary_key=True)


class OrderPlaced(Event):
    order_id: Field[str]


def write(session: Session, name: str, n: int, size: int) -> int | None:
    """One commit of SIZE + 1 changes and one event."""
    session.ensure(Stock(id=f"{name}-{i}", round=n) for i in range(size))
    session.ensure(Order(id=f"{name}-{n}"))
    return session.commit(event=OrderPlaced(order_id=f"{name}-{n}"))


def main(path: str, name: str, count: str, size: str) -> None:
    with Session(path) as session:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(int(count)) if int(count) else itertools.count():
            print(write(session, name, n, int(size)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
