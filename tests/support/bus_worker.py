"""Handles orders through a session of its own: ``bus_worker.py PATH MODE``.

It says ``ready``, waits for a line, and then, depending on the mode:

``drain``
    handles everything there is, and says how many orders.
``kill-before-commit``, ``kill-after-commit``
    says so when it is there, and waits to be killed (or stopped).
``kill-in-ack``, ``kill-in-final``
    kills itself inside the transaction of the acknowledgement, or of the final commit.
``poison``
    handles what there is, but is killed by the order ``o1`` whenever it meets it.
``zombie``
    waits for a line, long after its lease, and says what its commit did.
``slow``
    says which order it works on, until stopped.
``work``
    goes on until it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ontologia import (
    Entity,
    Event,
    Field,
    HandlerContext,
    LeaseExpiredError,
    OntologiaConfig,
    Session,
    on_event,
)
from support.faults import break_store


class Placed(Event):
    order_id: Field[str]


class Billed(Event):
    order_id: Field[str]


class Counted(Event):
    """Different at each run of a handler, so that no run can hide behind another."""

    order_id: Field[str]
    by: Field[str]


class Bill(Entity):
    id: Field[str] = Field(primary_key=True)


class Receipt(Entity):
    id: Field[str] = Field(primary_key=True)


Order = HandlerContext[Placed]
SHORT_MS = 250
"""A lease that a test can wait for."""

handled: list[str] = []


@on_event(Placed, handler_id="bill", lease_ms=30_000)
def bill(ctx: Order) -> None:
    handled.append(ctx.event.order_id)
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit(event=Billed(order_id=ctx.event.order_id), final=True)


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS)
def bill_in_steps(ctx: Order) -> None:
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit(event=Billed(order_id=ctx.event.order_id))
    ctx.emit(Counted(order_id=ctx.event.order_id, by="bill"))


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS)
def bill_at_once(ctx: Order) -> None:
    ctx.emit(Counted(order_id=ctx.event.order_id, by="bill"))
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit(event=Billed(order_id=ctx.event.order_id), final=True)


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS, max_attempts=2)
def bill_or_die(ctx: Order) -> None:
    if ctx.event.order_id == "o1":
        die()
    bill_in_steps(ctx)


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS)
def stop_before_commit(ctx: Order) -> None:
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.emit(Counted(order_id=ctx.event.order_id, by="bill"))
    print("there", flush=True)
    time.sleep(60)


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS)
def stop_after_commit(ctx: Order) -> None:
    bill_in_steps(ctx)
    print("there", flush=True)
    time.sleep(60)


@on_event(Placed, handler_id="bill", lease_ms=SHORT_MS)
def come_back_late(ctx: Order) -> None:
    ctx.ensure(Bill(id="late"))
    ctx.emit(Counted(order_id=ctx.event.order_id, by="late"))
    print("there", flush=True)
    sys.stdin.readline()
    try:
        ctx.commit(event=Billed(order_id="late"))
    except LeaseExpiredError as error:
        print(error.code, flush=True)
    ctx.session.stop()


@on_event(Placed, handler_id="bill", lease_ms=30_000)
def bill_slowly(ctx: Order) -> None:
    print(ctx.event.order_id, flush=True)
    time.sleep(0.1)
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit()


def counting(name: str) -> Callable[..., Any]:
    """A handler that leaves one more event whenever it runs."""

    @on_event(Placed, handler_id=name)
    def count(ctx: Order) -> None:
        handled.append(ctx.event.order_id)
        by = f"{name} {os.getpid()} {len(handled)}"
        ctx.emit(Counted(order_id=ctx.event.order_id, by=by))

    return count


@on_event(Billed, handler_id="receipt")
def receipt(ctx: HandlerContext[Billed]) -> None:
    ctx.ensure(Receipt(id=ctx.event.order_id))
    ctx.commit(final=True)


def die(*_: object) -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


MODES: dict[str, Callable[..., Any]] = {
    "kill-before-commit": stop_before_commit,
    "kill-after-commit": stop_after_commit,
    "kill-in-ack": bill_in_steps,
    "kill-in-final": bill_at_once,
    "zombie": come_back_late,
    "slow": bill_slowly,
    "work": bill_in_steps,
}


def main(path: str, mode: str) -> None:
    config = OntologiaConfig(event_claim_limit=50, lock_timeout_ms=20_000)
    with Session(path, config=config) as session:
        print("ready", flush=True)
        sys.stdin.readline()
        if mode == "drain":
            session.run([counting("one"), counting("two")], until_idle=True)
            print(len(handled), flush=True)
        elif mode == "poison":
            session.run([bill_or_die], until_idle=True)
        elif mode in ("kill-in-ack", "kill-in-final"):
            with break_store(session, "events.ack", die):  # type: ignore[arg-type]
                session.run([MODES[mode]])
        else:
            session.run([MODES[mode]])
            print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
