"""What delivery costs on SQLite, counted in steps of its virtual machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.models import OrderPlaced
from support.sqlite import Driver, driver

from ontologia import HandlerContext, Session, on_event

__all__ = ["driver"]

Placed = HandlerContext[OrderPlaced]


@contextmanager
def steps(driver: Driver, every: int = 20) -> Iterator[list[int]]:
    """About how many steps all connections have made within."""
    found = [0]

    def count() -> None:
        found[0] += every

    for connection in driver.connections:
        connection.set_progress_handler(count, every)
    try:
        yield found
    finally:
        for connection in driver.connections:
            connection.set_progress_handler(None, 0)


def cost(driver: Driver, count: int, **options: Any) -> float:
    """Steps per event to handle so many, all of them with one key."""
    seen: list[int] = []

    @on_event(OrderPlaced, handler_id="h", **options)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.total)

    with Session(":memory:") as session:
        session.commit(event=[OrderPlaced(order_id="hot", total=n) for n in range(count)])
        with steps(driver) as made:
            session.run([handler], until_idle=True)
    driver.connections.clear()
    assert seen == list(range(count))
    return made[0] / count


def test_a_hot_key_costs_the_same_however_many_wait(driver: Driver):
    few, many = (cost(driver, n, ordered_by=lambda e: e.order_id) for n in (250, 5_000))
    assert many < 1.5 * few, (few, many)


def test_events_cost_the_same_however_many_wait(driver: Driver):
    few, many = (cost(driver, n) for n in (500, 10_000))
    assert many < 1.5 * few, (few, many)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_acknowledged_costs_nothing(driver: Driver, ordered: bool):
    options = {"ordered_by": lambda e: e.order_id} if ordered else {}
    costs: list[int] = []

    @on_event(OrderPlaced, handler_id="h", **options)
    def handler(ctx: Placed) -> None:
        pass

    with Session(":memory:") as session:
        for before in (20, 3_000):
            session.commit(event=[OrderPlaced(order_id=f"k{n % 7}") for n in range(before)])
            session.run([handler], until_idle=True)
            session.commit(event=OrderPlaced(order_id="k1"))
            with steps(driver, every=1) as made:
                session.run([handler], until_idle=True)
            costs += made
    assert costs[1] < 1.5 * costs[0], costs
