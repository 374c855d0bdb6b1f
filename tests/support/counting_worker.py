"""Handles numbers through a session of its own, until it is killed: ``counting_worker.py URI``."""

from __future__ import annotations

import sys

from ontologia import Entity, Event, Field, HandlerContext, OntologiaConfig, Session, on_event


class Counted(Event):
    n: Field[int]


class Seen(Event):
    n: Field[int]


class Tally(Entity):
    n: Field[int] = Field(primary_key=True)
    times: Field[int] = Field(default=0)


@on_event(Counted, handler_id="count", lease_ms=3_000)
def count(ctx: HandlerContext[Counted]) -> None:
    """Every tenth changes state, and says so; not as what should be true, but as one more."""
    n = ctx.event.n
    if n % 10:
        return
    known = ctx.session.query().entities(Tally).get(n)
    ctx.ensure(Tally(n=n, times=1 if known is None else known.times + 1))
    ctx.commit(event=Seen(n=n), final=True)


def main(uri: str) -> None:
    config = OntologiaConfig(event_claim_limit=100, lock_timeout_ms=20_000)
    with Session(uri, config=config) as session:
        print("ready", flush=True)
        session.run([count])


if __name__ == "__main__":
    main(*sys.argv[1:])
