"""Looking at events, handing them out again, and cleaning up."""

from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime, timedelta

import pytest
from support.backends import OpenSession
from support.clock import FakeClock
from support.events import Bus

from ontologia import (
    Event,
    EventNotFoundError,
    Field,
    HandlerContext,
    HandlerError,
    OntologiaConfig,
    QueryError,
    Session,
    on_event,
)
from ontologia.bus import admin
from ontologia.bus.handlers import Handler

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


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


@on_event(Ordered, handler_id="ship")
def ship(ctx: HandlerContext[Ordered]) -> None:
    SEEN.append(f"ship {ctx.event.order}")


def test_replaying_an_event_to_one_handler(session: Session) -> None:
    event = Ordered(order="1")
    session.commit(event=[event, Ordered(order="2")])
    session.run([bill, ship], until_idle=True)
    SEEN.clear()
    assert session.events.replay(event.id or "", handler_id="ship") == 1
    assert session.events.replay(event.id or "", handler_id="nobody") == 0
    session.run([bill, ship], until_idle=True)
    assert SEEN == ["ship 1"]
    assert session.events.replay(event.id or "") == 2
    assert session.events.replay(event.id or "") == 0, "it is on its way already"


def test_an_event_being_handled_is_not_replayed(session: Session) -> None:
    counts: list[int] = []

    @on_event(Ordered, handler_id="h")
    def handler(ctx: HandlerContext[Ordered]) -> None:
        counts.append(ctx.session.events.replay(ctx.event.id or ""))

    session.commit(event=Ordered(order="1"))
    session.run([handler], until_idle=True)
    assert counts == [0]


def test_replaying_all_that_match(session: Session, clock: FakeClock) -> None:
    first = Ordered(order="1")
    session.commit(event=first)
    session.run([bill, ship], until_idle=True)
    middle = clock.advance(seconds=10)
    session.commit(event=Ordered(order="2"))
    session.run([bill, ship], until_idle=True)
    last = clock.advance(seconds=10)
    session.commit(event=[Ordered(order="3"), Billed(order="by hand")])

    @on_event(Billed, handler_id="pay")
    def pay(ctx: HandlerContext[Billed]) -> None:
        SEEN.append(f"pay {ctx.event.order}")

    handlers = [bill, ship, pay]
    session.run(handlers, until_idle=True)
    replay_all = session.events.replay_all

    def again(count: int, expected: str) -> None:
        SEEN.clear()
        session.run(handlers, until_idle=True)
        replayed = [s for s in SEEN if not (s.startswith("pay") and "pay" not in expected)]
        assert (count, sorted(replayed)) == (len(replayed), sorted(expected.split(", ")))

    again(replay_all(type=Ordered, handler_id="ship"), "ship 1, ship 2, ship 3")
    again(replay_all(type="ordered", handler_id="bill"), "1, 2, 3")
    again(replay_all(since=last, handler_id="ship"), "ship 3")
    again(replay_all(until=middle, handler_id="ship"), "ship 1")
    again(replay_all(since=middle, until=last, handler_id="ship"), "ship 2")
    again(replay_all(root_event_id=first.id, handler_id="ship"), "ship 1")
    again(replay_all(type=Ordered, until=middle), "1, ship 1")
    assert replay_all(type="nothing") == replay_all(root_event_id="nothing") == 0
    assert replay_all(handler_id="nobody") == replay_all(since=last, until=middle) == 0
    with pytest.raises(QueryError, match="fix:"):
        replay_all(since=middle.replace(tzinfo=None))


def test_replaying_stays_in_its_namespace(open_session: OpenSession) -> None:
    one, two = open_session("one"), open_session("two")
    event = Ordered(order="1")
    one.commit(event=event)
    one.run([bill], until_idle=True)
    assert two.events.replay_all() == two.events.replay_dead_letters() == 0
    with pytest.raises(HandlerError):
        two.events.backfill("bill")
    assert not two.events.forget_handler("bill")
    for ask in (two.events.inspect, two.events.replay):
        with pytest.raises(EventNotFoundError):
            ask(event.id or "")
    assert one.stats().pending == 0


def test_dead_letters_are_handed_out_again(session: Session, clock: FakeClock) -> None:
    @on_event(Ordered, handler_id="other", max_attempts=1)
    def other(ctx: HandlerContext[Ordered]) -> None:
        raise ValueError("no ink")

    session.commit(event=[Ordered(order="1"), Ordered(order="2")])
    session.run([bill, broken, other], until_idle=True)
    assert session.events.replay_dead_letters(handler_id="nobody") == 0
    assert session.events.replay_dead_letters(handler_id="broken") == 2
    session.run([bill, broken, other], until_idle=True)
    found = [(d.handler_id, d.last_error) for d in session.events.dead_letters(99)]
    assert found.count(("broken", "ValueError: no paper")) == 4, "each failure has its record"
    assert found.count(("other", "ValueError: no ink")) == 2
    assert session.events.replay_dead_letters() == 4
    assert (session.stats().dead, session.stats().pending) == (0, 4)
    assert SEEN == ["1", "2"]


def test_a_replayed_dead_letter_has_all_its_attempts_again(
    session: Session, clock: FakeClock
) -> None:
    runs: list[int] = []

    @on_event(Ordered, handler_id="h", max_attempts=2)
    def failing(ctx: HandlerContext[Ordered]) -> None:
        runs.append(1)
        raise ValueError("no")

    event = Ordered(order="1")
    session.commit(event=event)
    for _ in range(2):
        for _ in range(3):
            session.run([failing], until_idle=True)
            clock.advance(seconds=60)
        session.events.replay_dead_letter(event.id or "", "h")
    assert len(runs) == 4


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


def test_backfill_is_a_new_generation_for_a_known_handler(session: Session) -> None:
    session.commit(event=Ordered(order="1"))
    with pytest.raises(HandlerError, match="fix:"):
        session.events.backfill("bill")
    session.run([bill], until_idle=True)
    assert session.events.backfill("bill") == 1
    session.run([bill], until_idle=True)
    assert SEEN == ["1", "1"]
    chain = [e.type for e in session.events.list(99)]
    assert chain.count("billed") == 2


def test_a_forgotten_handler_holds_nothing_up(session: Session, clock: FakeClock) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([bill, ship], until_idle=True)
    session.commit(event=Ordered(order="2"))
    session.run([bill], until_idle=True)
    clock.advance(seconds=1)
    assert session.events.cleanup(clock.now()) == 3, "not the one that ship has yet to handle"
    assert session.events.forget_handler("ship")
    assert not session.events.forget_handler("ship")
    assert [h.handler_id for h in session.stats().handlers] == ["bill"]
    assert session.events.cleanup(clock.now()) == 1


def test_a_forgotten_handler_is_gone_from_the_stats(session: Session) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([broken], until_idle=True)
    assert session.stats().dead == 1
    session.events.forget_handler("broken")
    assert session.stats().handlers == ()
    assert len(session.events.dead_letters()) == 1, "their records stay"


def test_a_forgotten_handler_that_comes_back_is_new(session: Session) -> None:
    session.commit(event=Ordered(order="1"))
    session.run([ship], until_idle=True)
    session.events.forget_handler("ship")
    session.commit(event=Ordered(order="2"))
    session.run([ship], until_idle=True)
    assert SEEN == ["ship 1", "ship 2"], "what it has finished stays finished"


def test_cleanup_keeps_what_an_idle_handler_has_yet_to_handle(
    session: Session, clock: FakeClock
) -> None:
    """It is known since it ran, even if there was nothing for it."""
    session.run([bill], until_idle=True)
    session.commit(event=Ordered(order="1"))
    clock.advance(seconds=8 * 24 * 3600)
    assert session.events.cleanup() == 0
    assert session.stats().pending == 1
    session.run([bill], until_idle=True)
    assert SEEN == ["1"]


def test_cleanup_keeps_what_fails_is_handled_or_was_handed_back(
    session: Session, clock: FakeClock
) -> None:
    removed: list[int] = []

    @on_event(Ordered, handler_id="h")
    def failing(ctx: HandlerContext[Ordered]) -> None:
        if ctx.event.order == "1":
            raise ValueError("no")
        clock.advance(seconds=1)
        removed.append(ctx.session.events.cleanup(clock.now()))
        ctx.session.stop()

    session.commit(event=[Ordered(order="1"), Ordered(order="2"), Ordered(order="3")])
    session.run([failing])
    assert removed == [0]
    clock.advance(seconds=1)
    assert session.events.cleanup(clock.now()) == 1, "only the one in the middle is done"


def test_cleanup_removes_claims_with_their_events(session: Session, clock: FakeClock) -> None:
    event = Ordered(order="1")
    session.commit(event=event)
    session.run([bill, broken], until_idle=True)
    clock.advance(seconds=1)
    session.events.cleanup(clock.now())
    bus = Bus(session._store, session.namespace)
    assert bus.claims(event.id) == []
    assert session.stats().dead == 0
    assert session.events.replay_all() == session.events.replay_dead_letters() == 0
    with pytest.raises(EventNotFoundError):
        session.events.replay_dead_letter(event.id or "", "broken")
    (letter,) = session.events.dead_letters()
    assert letter.event_payload == '{"order":"1"}', "what was given up can still be read"


def test_cleanup_goes_by_the_retention(open_session: OpenSession, clock: FakeClock) -> None:
    config = OntologiaConfig(
        event_retention_ms=10_000, dead_letter_retention_ms=20_000, session_retention_ms=30_000
    )
    session, tidy = open_session(config=config), open_session(config=config)
    session.commit(event=Ordered(order="1"))
    session.run([broken], until_idle=True)

    def cleaned() -> tuple[int, int, int]:
        events = tidy.events
        return events.cleanup(), events.cleanup_dead_letters(), events.cleanup_sessions()

    found = {}
    for seconds in (10, 11, 20, 21, 30, 31):
        clock.advance((START + timedelta(seconds=seconds) - clock.now()).total_seconds())
        found[seconds] = cleaned()
    nothing = (0, 0, 0)
    # The order, and the event that tells of its dead letter.
    assert found == {
        10: nothing, 11: (2, 0, 0), 20: nothing, 21: (0, 1, 0), 30: nothing, 31: (0, 0, 1)
    }  # fmt: skip


def test_cleanup_of_many_goes_in_pieces(
    session: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_PIECE", 10)
    session.commit(event=[Ordered(order=str(n)) for n in range(35)])
    session.run([ship], until_idle=True)
    session.commit(event=Ordered(order="new"))
    clock.advance(seconds=1)
    assert session.events.cleanup(clock.now()) == 35
    assert [e.payload["order"] for e in session.events.list()] == ["new"]


@pytest.mark.parametrize("what", ["cleanup", "cleanup_dead_letters", "cleanup_sessions"])
def test_cleanup_needs_a_moment_in_a_time_zone(session: Session, what: str) -> None:
    for before in (datetime(2026, 1, 1), "yesterday"):
        with pytest.raises(QueryError, match="fix:"):
            getattr(session.events, what)(before)


def test_stats_are_per_handler_and_type(session: Session, clock: FakeClock) -> None:
    during: list[tuple[int, ...]] = []

    @on_event(Billed, handler_id="bill")  # the same id handles another type
    def pay(ctx: HandlerContext[Billed]) -> None:
        stats = session.stats()
        during.append((stats.pending, stats.claimed, stats.dead))

    assert session.stats().handlers == ()
    session.commit(event=[Ordered(order="1"), Ordered(order="2")])
    session.run([bill, broken], until_idle=True)
    clock.advance(seconds=5)
    session.commit(event=Ordered(order="3"))
    session.run([pay], until_idle=True)
    assert during == [(2, 2, 2), (2, 2, 2)] or during == [(2, 2, 2), (2, 1, 2)]
    clock.advance(seconds=7)
    assert {h[:2]: h[2:] for h in map(astuple, session.stats().handlers)} == {
        ("bill", "billed"): (0, 0, 0, None),
        ("bill", "ordered"): (1, 0, 0, 7.0),
        ("broken", "ordered"): (1, 0, 2, 7.0),
    }


def test_what_waits_for_its_next_attempt_is_pending(session: Session, clock: FakeClock) -> None:
    @on_event(Ordered, handler_id="h", ordered_by=lambda e: 1)
    def failing(ctx: HandlerContext[Ordered]) -> None:
        raise ValueError("no")

    session.commit(event=[Ordered(order="1"), Ordered(order="2")])
    session.run([failing], until_idle=True)
    stats = session.stats()
    assert (stats.pending, stats.claimed, stats.dead) == (2, 0, 0)


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
