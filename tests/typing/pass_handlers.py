"""Handlers, and what they may do with their context."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, assert_type

from shop import Customer, OrderPlaced, OrderShipped

from ontologia import EventDeadLetter, EventHooks, HandlerContext, Schedule, Session, on_event


@on_event(OrderPlaced)
def place(ctx: HandlerContext[OrderPlaced]) -> None:
    assert_type(ctx.event, OrderPlaced)
    assert_type(ctx.event.order_id, str)
    assert_type(ctx.event.id, str | None)
    assert_type(ctx.session, Session)
    assert_type(ctx.lease_until, datetime)
    ctx.ensure(Customer(id="c1", name="Ada"))
    ctx.ensure([Customer(id="c1", name="Ada")])
    ctx.add_commit_meta("reason", "order")
    ctx.emit(OrderShipped(order_id=ctx.event.order_id), key="once")
    assert_type(ctx.commit(), int | None)
    ctx.commit(event=OrderShipped(order_id="o1"))
    ctx.commit(event=[OrderShipped(order_id="o1"), OrderPlaced(order_id="o2")], final=True)


@on_event(
    OrderShipped,
    200,
    start="now",
    lease_ms=60_000,
    renew_lease=True,
    max_attempts=3,
    handler_id="shipping",
    ordered_by=lambda e: e.order_id,
)
async def ship(ctx: HandlerContext[OrderShipped]) -> None:
    assert_type(ctx.event, OrderShipped)


@on_event(EventDeadLetter)
def bury(ctx: HandlerContext[EventDeadLetter]) -> None:
    assert_type(ctx.event.attempts, int)
    assert_type(ctx.event.last_error, str)


def run(session: Session, more: list[Callable[..., Any]]) -> None:
    handlers = [place, ship]
    session.run(handlers)
    handlers = [*handlers, bury, *more]
    session.run(handlers, until_idle=True, concurrency=4)
    session.run((place, ship, bury), max_iterations=1)
    daily = Schedule(event=OrderPlaced(order_id="o1"), cron="@daily", misfire="once")
    hooks = EventHooks(on_event_failed=lambda handler, event, error: print(handler, event.id))
    session.run(iter([place]), schedules=[daily], hooks=hooks)
    assert_type(session.events.replay("e1", handler_id="shipping"), int)
    session.events.replay_all(type=OrderPlaced, since=datetime.now().astimezone())
