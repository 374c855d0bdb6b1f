"""Mistakes in handlers: every line marked ``error`` must be one."""

from typing import assert_type

from shop import Customer, OrderPlaced, OrderShipped

from ontologia import HandlerContext, Schedule, Session, on_event

customer = Customer(id="c1", name="Ada")


@on_event(OrderPlaced)
def place(ctx: HandlerContext[OrderPlaced]) -> None:
    print(ctx.event.total)  # error
    assert_type(ctx.event, OrderShipped)  # error
    assert_type(ctx.event.order_id, int)  # error
    ctx.emit(customer)  # error
    ctx.emit("order.placed")  # error
    ctx.emit(OrderShipped)  # error
    ctx.emit([OrderShipped(order_id="o1")])  # error
    ctx.emit(OrderShipped(order_id=1))  # error
    ctx.emit(OrderShipped(order_id="o1"), key=7)  # error
    ctx.commit(event=customer)  # error
    ctx.commit(event=[customer])  # error
    ctx.commit(event={"order_id": "o1"})  # error
    ctx.commit(OrderShipped(order_id="o1"))  # error
    ctx.ensure(ctx.event)  # error
    ctx.add_commit_meta("n", 1)  # error
    ctx.lease_util  # error


@on_event(OrderPlaced)  # error
def another_event(ctx: HandlerContext[OrderShipped]) -> None: ...


@on_event(OrderPlaced)  # error
def two_arguments(ctx: HandlerContext[OrderPlaced], more: int) -> None: ...


@on_event(Customer)  # error
def no_event(ctx: HandlerContext[OrderPlaced]) -> None: ...


on_event("order.placed")  # error
on_event(OrderPlaced, start="later")  # error
on_event(OrderPlaced, lease_ms="60s")  # error
on_event(OrderPlaced, ordered_by="order_id")  # error
on_event(OrderPlaced, ordered_by=lambda e: e.total)  # error
Schedule(event=customer, cron="@daily")  # error
Schedule(event=OrderPlaced(order_id="o1"), cron="@daily", misfire="all")  # error


def run(session: Session) -> None:
    session.run(place)  # error
    session.run([place], concurrency="4")  # error
    session.run(["place"])  # error
    session.run([place], schedules=["@daily"])  # error
    session.events.replay(7)  # error
    session.events.replay_all(type=Customer)  # error
