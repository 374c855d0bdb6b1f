"""Handles orders through a session of its own: ``bus_worker.py PATH MODE``.

``drain``: until nothing is left, and print how many it handled. ``crash``: commit, say so, and wait
to be killed before the acknowledgement. ``slow``: say which order it works on, until stopped.
"""

from __future__ import annotations

import sys
import time

from ontologia import Entity, Event, Field, HandlerContext, OntologiaConfig, Session, on_event


class Placed(Event):
    order_id: Field[str]


class Billed(Event):
    order_id: Field[str]


class Bill(Entity):
    id: Field[str] = Field(primary_key=True)


class Receipt(Entity):
    id: Field[str] = Field(primary_key=True)


LEASE_MS = 300
handled: list[str] = []


@on_event(Placed, handler_id="bill", lease_ms=30_000)
def bill(ctx: HandlerContext[Placed]) -> None:
    handled.append(ctx.event.order_id)
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit(event=Billed(order_id=ctx.event.order_id), final=True)


@on_event(Placed, handler_id="bill", lease_ms=LEASE_MS)
def bill_and_die(ctx: HandlerContext[Placed]) -> None:
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit(event=Billed(order_id=ctx.event.order_id))
    print("committed", flush=True)
    time.sleep(60)


@on_event(Placed, handler_id="bill", lease_ms=30_000)
def bill_slowly(ctx: HandlerContext[Placed]) -> None:
    print(ctx.event.order_id, flush=True)
    time.sleep(0.1)
    ctx.ensure(Bill(id=ctx.event.order_id))
    ctx.commit()


@on_event(Billed, handler_id="receipt")
def receipt(ctx: HandlerContext[Billed]) -> None:
    ctx.ensure(Receipt(id=ctx.event.order_id))
    ctx.commit(final=True)


def main(path: str, mode: str) -> None:
    config = OntologiaConfig(event_claim_limit=20, lock_timeout_ms=20_000)
    with Session(path, config=config) as session:
        print("ready", flush=True)
        sys.stdin.readline()
        if mode == "crash":
            session.run([bill_and_die])
        elif mode == "slow":
            session.run([bill_slowly])
            print("stopped", flush=True)
        else:
            session.run([bill], until_idle=True)
            print(len(handled), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
