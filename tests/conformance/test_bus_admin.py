"""Looking at events, handing them out again, and cleaning up."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.clock import FakeClock

from ontologia import (
    Event,
    EventNotFoundError,
    Field,
    HandlerContext,
    OntologiaConfig,
    QueryError,
    Session,
    on_event,
)
from ontologia.bus.handlers import Handler


class Ordered(Event):
    order: Field[str]


class Billed(Event):
    order: Field[str]


SEEN: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()


@on_event(Ordered, handler_id="bill")
def bill(ctx: HandlerContext[Ordered]) -> None:
    SEEN.append(ctx.event.order)
    ctx.commit(event=Billed(order=ctx.event.order))


@on_event(Ordered, handler_id="broken", max_attempts=1)
def broken(ctx: HandlerContext[Ordered]) -> None:
    raise ValueError("no paper")


def test_a_chain_can_be_read_back(session: Session) -> None:
    first = Ordered(order="1")
    session.commit(event=[first, Ordered(order="2")])
    session.run([bill], until_idle=True)
    chain = session.events.chain(first.id or "")
    assert [(e.type, e.chain_depth, e.causation_id) for e in chain] == [
        ("ordered", 0, None),
        ("billed", 1, first.id),
    ]


def test_an_event_can_be_inspected(session: Session) -> None:
    event = Ordered(order="1")
    session.commit(event=event)
    session.run([bill, broken], until_idle=True)
    found = session.events.inspect(event.id or "")
    assert found.event.payload == {"order": "1"}
    by_handler = {c.handler_id: c for c in found.claims}
    assert by_handler["bill"].ack_at is not None
    assert by_handler["broken"].dead_lettered_at is not None
    with pytest.raises(EventNotFoundError, match="fix:"):
        session.events.inspect("nothing")


def test_stats_tell_what_waits_and_what_was_given_up(session: Session, clock: FakeClock) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([bill, broken], until_idle=True)
    session.commit(event=[Ordered(order="2"), Ordered(order="3")])
    clock.advance(seconds=5)
    stats = session.stats()
    assert (stats.pending, stats.claimed, stats.dead) == (4, 0, 1)
    one = next(h for h in stats.handlers if h.handler_id == "bill")
    assert (one.type, one.pending, one.oldest_pending_seconds) == ("ordered", 2, 5.0)


def test_replaying_an_event_is_a_new_generation(session: Session) -> None:
    event = Ordered(order="1")
    session.commit(event=event)
    session.run([bill], until_idle=True)
    assert session.events.replay(event.id or "") == 1
    session.run([bill], until_idle=True)
    assert SEEN == ["1", "1"]
    (claim,) = session.events.inspect(event.id or "").claims
    assert (claim.generation, claim.attempts) == (1, 0)
    # What it emits is new as well, and belongs to the same chain.
    chain = session.events.chain(event.id or "")
    assert [e.type for e in chain] == ["ordered", "billed", "billed"]
    with pytest.raises(EventNotFoundError):
        session.events.replay("nothing")


def test_a_dead_letter_goes_to_its_handler_only(session: Session) -> None:
    event = Ordered(order="1")
    session.commit(event=event)
    session.run([bill, broken], until_idle=True)
    session.events.replay_dead_letter(event.id or "", "broken")
    assert session.stats().pending == 1
    session.run([bill, broken], until_idle=True)
    assert SEEN == ["1"]
    assert len(session.events.dead_letters()) == 2
    with pytest.raises(EventNotFoundError):
        session.events.replay_dead_letter(event.id or "", "nobody")


def test_backfill_hands_out_what_is_retained(session: Session) -> None:
    session.commit(event=Ordered(order="1"))

    @on_event(Ordered, handler_id="late", start="now")
    def late(ctx: HandlerContext[Ordered]) -> None:
        SEEN.append(f"late {ctx.event.order}")

    session.run([late], until_idle=True)
    session.commit(event=Ordered(order="2"))
    session.run([late], until_idle=True)
    assert SEEN == ["late 2"]
    assert session.events.backfill("late") == 1
    session.run([late], until_idle=True)
    assert SEEN == ["late 2", "late 1", "late 2"]


def test_cleanup_keeps_what_is_not_handled(session: Session, clock: FakeClock) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([bill], until_idle=True)
    session.commit(event=Ordered(order="2"))
    clock.advance(seconds=8 * 24 * 3600)
    # The first order and its bill, which nobody listens to, are finished; the second is not.
    assert session.events.cleanup() == 2
    session.run([bill], until_idle=True)
    assert SEEN == ["1", "2"]
    session.commit(event=Ordered(order="3"))
    clock.advance(seconds=1)
    assert session.events.cleanup(clock.now(), force=True) == 3
    session.run([bill], until_idle=True)
    assert SEEN == ["1", "2"]


def test_dead_letters_and_sessions_have_their_own_cleanup(
    session: Session, clock: FakeClock
) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([broken], until_idle=True)
    clock.advance(seconds=60)
    session.events.cleanup(clock.now(), force=True)
    assert len(session.events.dead_letters()) == 1
    assert session.events.cleanup_dead_letters(clock.now()) == 1
    assert session.events.cleanup_sessions(clock.now()) == 1
    assert session.events.sessions() == []


def test_sessions_are_running_stopped_or_dead(open_session: object, clock: FakeClock) -> None:
    session = open_session(config=OntologiaConfig(session_ttl_ms=1_000))  # type: ignore[operator]
    states: list[str] = []

    @on_event(Ordered)
    def look(ctx: HandlerContext[Ordered]) -> None:
        states.append(session.events.sessions()[0].state)
        clock.advance(seconds=2)
        states.append(session.events.sessions()[0].state)

    session.commit(event=Ordered(order="1"))
    session.run([look], until_idle=True)
    states.append(session.events.sessions()[0].state)
    assert states == ["running", "dead", "stopped"]
    assert session.events.sessions()[0].started_at <= clock.now() - timedelta(seconds=2)


def test_limits_are_checked(session: Session) -> None:
    for ask in (session.events.list, session.events.dead_letters):
        with pytest.raises(QueryError):
            ask(-1)


def test_a_handler_knows_its_type() -> None:
    found = bill.__ontologia_handler__  # type: ignore[attr-defined]
    assert isinstance(found, Handler)
    assert found.event_type == "ordered"
