"""Who gets which event, when, in which order, and how often."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from support.clock import FakeClock
from support.events import Bus
from support.faults import break_store
from support.models import Customer, OrderPlaced

from ontologia import (
    ConfigError,
    Event,
    EventDeadLetter,
    EventHooks,
    Field,
    HandlerContext,
    HandlerError,
    LeaseExpiredError,
    OntologiaConfig,
    Session,
    SessionClosedError,
    on_event,
)

Placed = HandlerContext[OrderPlaced]


class Ping(Event):
    n: Field[int] = Field(default=0)


def bus(session: Session) -> Bus:
    return Bus(session._store, session.namespace)


def place(session: Session, *order_ids: str) -> list[str]:
    events = [OrderPlaced(order_id=o) for o in order_ids]
    session.commit(event=events)
    return [e.id or "" for e in events]


def recorder(seen: list[Any], name: str = "h", **options: Any) -> Any:
    """A handler that notes the order ids it was given."""

    @on_event(OrderPlaced, handler_id=name, **options)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)

    return handler


def wait_until(condition: Any, seconds: float = 5) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.002)


@contextmanager
def in_time(session: Session, seconds: float = 3) -> Iterator[None]:
    """Stop a run that would go on for ever, and fail."""
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        session.stop()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert not late, "the run did not end by itself"


# Order


def test_events_come_by_priority_and_then_in_order(session: Session):
    seen: list[str] = []
    for order_id, priority in [("a", 100), ("b", 5), ("c", 200), ("d", 100), ("e", 200)]:
        session.commit(event=OrderPlaced(order_id=order_id, priority=priority))
    session.run([recorder(seen)], until_idle=True)
    assert seen == ["c", "e", "a", "d", "b"]


def test_order_holds_over_batches(uri: str, clock: FakeClock):
    seen: list[str] = []
    with Session(uri, clock=clock, config=OntologiaConfig(event_claim_limit=2)) as session:
        place(session, *"abcdefg")
        session.commit(event=OrderPlaced(order_id="urgent", priority=101))
        session.run([recorder(seen)], until_idle=True)
    assert seen == ["urgent", *"abcdefg"]


def test_handlers_with_a_higher_priority_go_first(session: Session):
    seen: list[str] = []

    def handler(name: str, priority: int) -> Any:
        @on_event(OrderPlaced, priority, handler_id=name)
        def function(ctx: Placed) -> None:
            seen.append(name)

        return function

    place(session, "o1")
    session.run([handler("low", 1), handler("high", 200), handler("mid", 50)], until_idle=True)
    assert seen == ["high", "mid", "low"]


# Acknowledgement


def test_each_handler_acknowledges_for_itself(session: Session, clock: FakeClock):
    good: list[str] = []
    bad: list[str] = []

    @on_event(OrderPlaced, handler_id="bad")
    def failing(ctx: Placed) -> None:
        bad.append(ctx.event.order_id)
        raise RuntimeError("no")

    (event_id,) = place(session, "o1")
    for _ in range(3):
        session.run([recorder(good, "good"), failing], until_idle=True)
        clock.advance(seconds=60)
    assert good == ["o1"]
    assert bad == ["o1"] * 3
    assert bus(session).record(event_id, "good").ack_at is not None
    assert bus(session).record(event_id, "bad").ack_at is None
    assert bus(session).record(event_id, "bad").attempts == 3


def test_what_was_acknowledged_is_not_delivered_again(session: Session, clock: FakeClock):
    seen: list[str] = []
    place(session, "o1")
    for _ in range(3):
        session.run([recorder(seen)], until_idle=True)
        clock.advance(seconds=3600)
    place(session, "o2")
    session.run([recorder(seen)], until_idle=True)
    assert seen == ["o1", "o2"]


def test_a_renamed_function_with_a_pinned_id_replays_nothing(session: Session):
    seen: list[str] = []

    @on_event(OrderPlaced, handler_id="billing")
    def bill(ctx: Placed) -> None:
        seen.append(f"bill {ctx.event.order_id}")

    @on_event(OrderPlaced, handler_id="billing")
    def invoice(ctx: Placed) -> None:
        seen.append(f"invoice {ctx.event.order_id}")

    place(session, "o1")
    session.run([bill], until_idle=True)
    place(session, "o2")
    session.run([invoice], until_idle=True)
    assert seen == ["bill o1", "invoice o2"]


def test_a_new_handler_starts_with_what_is_retained_or_with_now(session: Session):
    old: list[str] = []
    new: list[str] = []
    handlers = [recorder(old, "old"), recorder(new, "new", start="now")]
    place(session, "before")
    session.run(handlers, until_idle=True)
    assert (old, new) == (["before"], [])
    place(session, "after")  # nobody runs
    session.run(handlers, until_idle=True)
    assert (old, new) == (["before", "after"], ["after"])


def test_handlers_get_only_events_of_their_type(session: Session):
    seen: list[str] = []
    session.commit(event=[Ping(n=1), OrderPlaced(order_id="o1")])
    session.run([recorder(seen)], until_idle=True)
    assert seen == ["o1"]


# Failure


def test_backoff_doubles_up_to_the_maximum(uri: str, clock: FakeClock):
    @on_event(OrderPlaced, handler_id="h")
    def failing(ctx: Placed) -> None:
        raise ValueError("no such order")

    config = OntologiaConfig(
        event_backoff_base_ms=1_000, event_backoff_max_ms=10_000, event_max_attempts=8
    )
    delays: list[float] = []
    with Session(uri, clock=clock, config=config) as session:
        (event_id,) = place(session, "o1")
        for attempt in range(1, 7):
            session.run([failing], until_idle=True)
            record = bus(session).record(event_id)
            assert record.attempts == attempt
            assert record.last_error == "ValueError: no such order"
            available = datetime.fromisoformat(record.available_at)
            delays.append((available - clock.now()).total_seconds())
            session.run([failing], until_idle=True)
            assert bus(session).record(event_id).attempts == attempt, "not before its time"
            clock.advance(seconds=delays[-1])
    expected = [2, 4, 8, 10, 10, 10]
    assert all(0 <= d - e <= 0.1001 for d, e in zip(delays, expected, strict=True)), delays


def test_jitter_spreads_what_failed_together(session: Session):
    @on_event(OrderPlaced, handler_id="h")
    def failing(ctx: Placed) -> None:
        raise ValueError("no")

    found = place(session, *map(str, range(20)))
    session.run([failing], until_idle=True)
    assert len({bus(session).record(e).available_at for e in found}) > 1


def test_a_failure_holds_up_neither_other_events_nor_other_handlers(session: Session):
    seen: list[str] = []
    others: list[str] = []

    @on_event(OrderPlaced, 200, handler_id="h")
    def failing(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)
        if ctx.event.order_id == "a":
            raise ValueError("no")

    place(session, "a", "b")
    session.run([failing, recorder(others, "other")], until_idle=True)
    assert seen == others == ["a", "b"]


def test_what_fails_too_often_becomes_a_dead_letter(session: Session, clock: FakeClock):
    runs: list[str] = []
    others: list[str] = []
    told: list[EventDeadLetter] = []

    @on_event(OrderPlaced, handler_id="h", max_attempts=3)
    def failing(ctx: Placed) -> None:
        runs.append(ctx.event.order_id)
        raise ValueError("no such order")

    @on_event(EventDeadLetter)
    def undertaker(ctx: HandlerContext[EventDeadLetter]) -> None:
        told.append(ctx.event)

    (event_id,) = place(session, "o1")
    for _ in range(5):
        session.run([failing, undertaker], until_idle=True)
        clock.advance(seconds=60)
    session.run([recorder(others, "other")], until_idle=True)
    assert runs == ["o1"] * 3
    assert others == ["o1"], "other handlers still get it"
    (letter,) = bus(session).dead_letters(10)
    assert letter.event_id == letter.root_event_id == event_id
    assert (letter.handler_id, letter.attempts, letter.chain_depth) == ("h", 3, 0)
    assert letter.last_error == "ValueError: no such order"
    assert (letter.event_type, letter.session_id) == ("order.placed", session.session_id)
    assert "o1" in letter.event_payload
    (event,) = told
    assert (event.event_id, event.handler_id, event.attempts) == (event_id, "h", 3)
    assert event.last_error == "ValueError: no such order"
    assert (event.root_event_id, event.causation_id) == (event_id, event_id)
    assert len(session.list_events()) == 2


def test_the_configuration_sets_the_attempts(uri: str, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced, handler_id="h")
    def failing(ctx: Placed) -> None:
        runs.append(1)
        raise ValueError("no")

    with Session(uri, clock=clock, config=OntologiaConfig(event_max_attempts=2)) as session:
        place(session, "o1")
        for _ in range(4):
            session.run([failing], until_idle=True)
            clock.advance(seconds=60)
        assert len(runs) == 2
        assert len(bus(session).dead_letters(10)) == 1


def test_a_dead_letter_handler_that_fails_starts_no_loop(session: Session, clock: FakeClock):
    told: list[str] = []

    @on_event(OrderPlaced, handler_id="h", max_attempts=1)
    def failing(ctx: Placed) -> None:
        raise ValueError("no")

    @on_event(EventDeadLetter, handler_id="undertaker", max_attempts=2)
    def undertaker(ctx: HandlerContext[EventDeadLetter]) -> None:
        told.append(ctx.event.handler_id)
        raise ValueError("neither")

    place(session, "o1")
    for _ in range(6):
        session.run([failing, undertaker], until_idle=True)
        clock.advance(seconds=60)
    assert told == ["h", "h"]
    assert sorted(d.handler_id for d in bus(session).dead_letters(10)) == ["h", "undertaker"]
    assert [e.type for e in session.list_events()] == ["event.dead_letter", "order.placed"]


def test_leases_that_run_out_end_as_a_dead_letter_too(session: Session, clock: FakeClock):
    runs: list[str] = []
    told: list[str] = []

    @on_event(OrderPlaced, 1, handler_id="h", max_attempts=3)
    def slow(ctx: Placed) -> None:
        runs.append(ctx.event.order_id)
        clock.advance(seconds=31)

    # It goes first, so that what is given up comes after its turn.
    @on_event(EventDeadLetter, 200)
    def undertaker(ctx: HandlerContext[EventDeadLetter]) -> None:
        told.append(ctx.event.event_id)

    (event_id,) = place(session, "o1")
    session.run([undertaker, slow], until_idle=True)
    assert len(runs) == 3
    (letter,) = bus(session).dead_letters(10)
    assert letter.attempts == 3
    assert "lease" in letter.last_error
    assert told == [event_id], "idle only when the dead letter was told as well"


def test_a_payload_that_no_longer_validates_is_a_failed_attempt(session: Session):
    seen: list[int] = []

    class Old(Event, type="measured"):
        value: Field[str]

    class New(Event, type="measured"):
        value: Field[int]

    @on_event(New, handler_id="h", max_attempts=1)
    def handler(ctx: HandlerContext[New]) -> None:
        seen.append(ctx.event.value)

    session.commit(event=Old(value="much"))
    session.commit(event=New(value=2))
    session.run([handler], until_idle=True)
    assert seen == [2]
    (letter,) = bus(session).dead_letters(10)
    assert letter.last_error.startswith("ValidationError")
    assert "value" in letter.last_error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_exit_in_a_handler_hands_back_and_stops(
    session: Session, error: type[BaseException], concurrency: int
):
    seen: list[str] = []
    others: list[str] = []

    @on_event(OrderPlaced, handler_id="h", ordered_by=lambda e: 1)
    def leaving(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)
        if len(seen) == 2:
            raise error

    found = place(session, *"abcd")
    with in_time(session), pytest.raises(error):
        session.run([leaving], concurrency=concurrency)
    assert seen == ["a", "b"]
    session.run([recorder(others)], until_idle=True)
    assert others == ["b", "c", "d"]
    assert [bus(session).record(e).attempts for e in found] == [0] * 4
    assert bus(session).sessions()[0].stopped_at is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_exit_in_a_coroutine_hands_back_and_stops(
    session: Session, error: type[BaseException], concurrency: int
):
    others: list[str] = []

    @on_event(OrderPlaced, handler_id="h")
    async def leaving(ctx: Placed) -> None:
        await asyncio.sleep(0)
        ctx.ensure(Customer(id="c1"))
        ctx.emit(Ping())
        raise error

    found = place(session, *"abcdefgh")
    with in_time(session), pytest.raises(error):
        session.run([leaving], concurrency=concurrency)
    session.run([recorder(others)], until_idle=True)
    assert sorted(others) == list("abcdefgh")
    assert [bus(session).record(e).attempts for e in found] == [0] * 8
    assert session.head == 0
    assert {e.type for e in session.list_events(99)} == {"order.placed"}


def test_a_failing_hook_harms_nobody_and_all_are_called(session: Session, clock: FakeClock):
    calls: list[tuple[Any, ...]] = []
    seen: list[str] = []

    def note(name: str) -> Any:
        def hook(handler_id: str, record: Any, *error: Any) -> None:
            calls.append((name, handler_id, record.type, *map(type, error)))
            raise RuntimeError("a hook that fails")

        return hook

    hooks = EventHooks(note("claimed"), note("succeeded"), note("failed"), note("dead"))

    @on_event(OrderPlaced, handler_id="h", max_attempts=2)
    def failing(ctx: Placed) -> None:
        raise ValueError("no")

    place(session, "o1")
    session.run([recorder(seen, "good")], until_idle=True, hooks=hooks)
    assert calls == [("claimed", "good", "order.placed"), ("succeeded", "good", "order.placed")]
    calls.clear()
    for _ in range(3):
        session.run([failing], until_idle=True, hooks=hooks)
        clock.advance(seconds=60)
    assert calls == [
        ("claimed", "h", "order.placed"),
        ("failed", "h", "order.placed", ValueError),
        ("claimed", "h", "order.placed"),
        ("dead", "h", "order.placed", ValueError),
    ]


def test_a_final_commit_tells_the_hooks_as_well(session: Session):
    calls: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.commit(final=True)

    place(session, "o1")
    hooks = EventHooks(on_event_succeeded=lambda handler_id, record: calls.append(record.id))
    session.run([handler], until_idle=True, hooks=hooks)
    assert len(calls) == 1


class Calls:
    """What the hooks were told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.hooks = EventHooks(*map(self._hook, ("claimed", "succeeded", "failed", "dead")))

    def _hook(self, name: str) -> Any:
        def hook(handler_id: str, event: Any, *error: Exception) -> None:
            self.told.append((name, handler_id, event.payload["order_id"], *map(type, error)))

        return hook


@pytest.mark.parametrize("concurrency", [1, 4])
def test_hooks_tell_each_delivery_once(session: Session, concurrency: int):
    calls, orders = Calls(), [str(n) for n in range(20)]
    place(session, *orders)
    handlers = [recorder([], "one"), recorder([], "two")]
    session.run(handlers, until_idle=True, concurrency=concurrency, hooks=calls.hooks)
    told = [(name, handler, o) for name in ("claimed", "succeeded") for handler in ("one", "two")
            for o in orders]  # fmt: skip
    assert sorted(calls.told) == sorted(told)


@pytest.mark.parametrize("final", [False, True])
def test_hooks_tell_of_a_lease_that_was_lost_at_the_end(
    session: Session, clock: FakeClock, final: bool
):
    calls = Calls()

    @on_event(OrderPlaced, handler_id="h")
    def slow(ctx: Placed) -> None:
        if len(calls.told) == 1:
            clock.advance(seconds=31)
        if final:
            ctx.commit(final=True)

    place(session, "o1")
    session.run([slow], until_idle=True, hooks=calls.hooks)
    assert calls.told == [
        ("claimed", "h", "o1"),
        ("failed", "h", "o1", LeaseExpiredError),
        ("claimed", "h", "o1"),
        ("succeeded", "h", "o1"),
    ]


def test_hooks_tell_of_dead_letters_that_lapsed_leases_made(session: Session, clock: FakeClock):
    calls = Calls()

    @on_event(OrderPlaced, handler_id="h", max_attempts=1)
    def crash(ctx: Placed) -> None:
        raise KeyboardInterrupt

    place(session, "o1")
    with (
        pytest.raises(KeyboardInterrupt),
        break_store(session, "events.hand_back", KeyboardInterrupt),
    ):
        session.run([crash])
    clock.advance(seconds=31)
    session.run([crash], until_idle=True, hooks=calls.hooks)
    assert calls.told == [("dead", "h", "o1", LeaseExpiredError)]


def test_hooks_tell_what_happened_not_what_the_handler_did_after_it(session: Session):
    """What fails after its final commit is acknowledged all the same."""
    calls = Calls()

    @on_event(OrderPlaced, handler_id="h")
    def handler(ctx: Placed) -> None:
        ctx.commit(final=True)
        raise RuntimeError("too late to matter")

    place(session, "o1")
    session.run([handler], until_idle=True, hooks=calls.hooks)
    assert calls.told == [("claimed", "h", "o1"), ("succeeded", "h", "o1")]


def test_a_failure_is_logged_with_its_traceback(session: Session, caplog: pytest.LogCaptureFixture):
    @on_event(OrderPlaced, handler_id="h")
    def failing(ctx: Placed) -> None:
        raise ValueError("no such order")

    place(session, "o1")
    with caplog.at_level(logging.WARNING, "ontologia"):
        session.run([failing], until_idle=True)
    assert "no such order" in caplog.text
    assert "Traceback" in caplog.text


# Iterations


def test_an_iteration_is_limited_and_the_loop_goes_on(uri: str, clock: FakeClock):
    seen: list[str] = []
    config = OntologiaConfig(
        max_events_per_iteration=3, event_claim_limit=2, event_poll_interval_ms=1
    )
    with Session(uri, clock=clock, config=config) as session:
        place(session, *"abcdefgh")
        handlers = [recorder(seen, "one"), recorder(seen, "two")]
        session.run(handlers, max_iterations=1)
        assert seen == ["a", "b", "a"], "two for the first, the one that is left for the second"
        session.run(handlers, max_iterations=1)
        assert len(seen) == 6
        session.run(handlers, until_idle=True)
        assert sorted(seen) == sorted("abcdefgh" * 2)


def test_the_safety_valve_pauses(uri: str, clock: FakeClock):
    times: list[float] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        times.append(time.monotonic())

    config = OntologiaConfig(max_events_per_iteration=1, event_poll_interval_ms=50)
    with Session(uri, clock=clock, config=config) as session:
        place(session, *"abc")
        session.run([handler], until_idle=True)
    assert all(b - a >= 0.045 for a, b in pairwise(times))


def test_without_the_limit_there_is_no_pause(uri: str, clock: FakeClock):
    seen: list[str] = []
    config = OntologiaConfig(event_claim_limit=1, event_poll_interval_ms=60_000)
    with Session(uri, clock=clock, config=config) as session:
        place(session, *"abcdef")
        started = time.monotonic()
        session.run([recorder(seen)], until_idle=True)
        assert time.monotonic() - started < 10
    assert seen == list("abcdef")


def test_a_commit_wakes_an_idle_loop(uri: str, clock: FakeClock):
    seen: list[str] = []
    config = OntologiaConfig(event_poll_interval_ms=60_000)
    with Session(uri, clock=clock, config=config) as session:
        thread = threading.Thread(target=session.run, args=([recorder(seen)],))
        thread.start()
        try:
            for n in range(5):
                place(session, str(n))
                wait_until(lambda n=n: len(seen) == n + 1)
        finally:
            session.stop()
            thread.join(10)
        assert not thread.is_alive()


# Stopping


@pytest.mark.parametrize("concurrency", [1, 2])
def test_stop_hands_back_the_rest_without_using_an_attempt(session: Session, concurrency: int):
    seen: list[str] = []
    others: list[str] = []

    @on_event(OrderPlaced, handler_id="h", ordered_by=lambda e: 1)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()
        if len(seen) == 2:
            ctx.session.stop()

    found = place(session, *"abcde")
    with in_time(session):
        session.run([handler], concurrency=concurrency)
    assert seen == ["a", "b"]
    # Nothing waits for a lease to run out: the clock stands still.
    session.run([recorder(others)], until_idle=True)
    assert others == ["c", "d", "e"]
    assert [bus(session).record(e).attempts for e in found] == [0] * 5


def test_a_stopped_session_runs_again(session: Session):
    seen: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)
        session.stop()

    session.stop()  # nothing runs: no effect
    place(session, "a", "b")
    with in_time(session):
        session.run([handler])
        session.run([handler])
    assert seen == ["a", "b"]


# Several at a time


def test_concurrency_runs_handlers_side_by_side(session: Session):
    together = threading.Barrier(3)

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        together.wait(5)  # breaks unless three are here
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()

    place(session, *"abcdef")
    session.run([handler], until_idle=True, concurrency=3)
    assert session.query().entities(Customer).count() == 6


def test_a_blocked_handler_does_not_stop_the_others(session: Session):
    release = threading.Event()
    seen: list[int] = []

    @on_event(OrderPlaced, 200)
    def blocked(ctx: Placed) -> None:
        assert release.wait(5)
        seen.append(-1)

    @on_event(Ping)
    def quick(ctx: HandlerContext[Ping]) -> None:
        seen.append(ctx.event.n)
        if ctx.event.n == 19:
            release.set()

    place(session, "o1")
    session.commit(event=[Ping(n=n) for n in range(20)])
    session.run([blocked, quick], until_idle=True, concurrency=2)
    assert seen == [*range(20), -1]


@pytest.mark.parametrize("events", [2, 30])
def test_a_handler_that_never_returns_gives_its_threads_up(uri: str, events: int):
    """It has as many events as there are threads, or more, and goes first."""
    release, done = threading.Event(), threading.Event()
    seen: list[int] = []

    @on_event(OrderPlaced, 200, lease_ms=40)
    def stuck(ctx: Placed) -> None:
        release.wait(30)

    @on_event(Ping)
    def quick(ctx: HandlerContext[Ping]) -> None:
        seen.append(ctx.event.n)
        if len(seen) == 20:
            done.set()

    config = OntologiaConfig(event_poll_interval_ms=10)
    with Session(uri, config=config) as session:
        place(session, *["o1"] * events)
        session.commit(event=[Ping(n=n) for n in range(20)])
        run = {"concurrency": 2}
        thread = threading.Thread(target=session.run, args=([stuck, quick],), kwargs=run)
        thread.start()
        try:
            assert done.wait(10), f"only {len(seen)} in 250 leases"
        finally:
            release.set()
            session.stop()
            thread.join(10)
            wait_until(lambda: not any(t.name == "ontologia-worker" for t in threading.enumerate()))
        assert sorted(seen) == list(range(20))


def test_what_a_thread_does_after_it_was_given_up_changes_nothing(uri: str, clock: FakeClock):
    release, late = threading.Event(), threading.Event()
    runs: list[int] = []
    errors: list[str] = []
    config = OntologiaConfig(event_poll_interval_ms=5)

    @on_event(OrderPlaced, handler_id="h")
    def stuck(ctx: Placed) -> None:
        runs.append(1)
        if len(runs) > 1:
            ctx.ensure(Customer(id="second"))
            ctx.commit()
            release.set()
            assert late.wait(5)  # what the first does cannot end the run before it
            return
        clock.advance(seconds=31)
        assert release.wait(5)
        ctx.ensure(Customer(id="first"))
        try:
            ctx.commit(event=Ping())
        except LeaseExpiredError as error:
            errors.append(error.code)
        ctx.session.ensure(Customer(id="leaked"))
        late.set()

    with Session(uri, clock=clock, config=config) as session:
        (event_id,) = place(session, "o1")
        with in_time(session, 10):
            session.run([stuck], until_idle=True, concurrency=2)
        assert errors == ["lease_expired"]
        assert [c.id for c in session.query().entities(Customer).collect()] == ["second"]
        assert session.pending == 0
        assert bus(session).record(event_id).ack_at is not None
        assert len(session.list_events()) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_coroutines_are_run_like_functions(session: Session, concurrency: int):
    together = threading.Barrier(concurrency)
    loops: set[int] = set()

    @on_event(OrderPlaced)
    async def handler(ctx: Placed) -> None:
        together.wait(5)
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0.001)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.emit(Ping(n=int(ctx.event.order_id)))
        ctx.commit()

    place(session, *map(str, range(8)))
    with in_time(session, 10):
        session.run([handler], until_idle=True, concurrency=concurrency)
    assert session.query().entities(Customer).count() == 8
    assert sorted(e.payload["n"] for e in session.list_events(8)) == list(range(8))
    assert len(loops) == concurrency, "one event loop per thread"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cancelled_coroutine_is_a_failed_attempt(session: Session, concurrency: int):
    @on_event(OrderPlaced, handler_id="h", max_attempts=1)
    async def handler(ctx: Placed) -> None:
        raise asyncio.CancelledError

    place(session, "o1", "o2")
    with in_time(session):
        session.run([handler], until_idle=True, concurrency=concurrency)
    assert [d.attempts for d in session.events.dead_letters()] == [1, 1]


@pytest.mark.needs("shared")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_closing_from_another_thread_ends_the_run(uri: str, concurrency: int):
    started, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    others: list[str] = []
    keeper = Session(uri)  # so that a store in memory is still there

    @on_event(OrderPlaced, handler_id="h", ordered_by=lambda e: 1)
    def handler(ctx: Placed) -> None:
        started.set()
        assert go_on.wait(5)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()

    session = Session(uri)
    place(session, *"abc")

    def run() -> None:
        try:
            session.run([handler], concurrency=concurrency)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(5)
    closing = threading.Thread(target=session.close)
    closing.start()
    go_on.set()
    for each in (closing, thread):
        each.join(10)
        assert not each.is_alive()
    assert errors == []
    with pytest.raises(SessionClosedError):
        session.stats()
    with keeper:
        assert [c.id for c in keeper.query().entities(Customer).collect()] == ["a"]
        keeper.run([recorder(others)], until_idle=True)
        assert others == ["b", "c"], "what was running was finished, the rest handed back"


# Namespaces and sessions


def test_namespaces_are_isolated(open_session: Any):
    orders, payments = open_session("orders"), open_session("payments")
    seen: list[str] = []

    @on_event(OrderPlaced, handler_id="h")
    def handler(ctx: Placed) -> None:
        seen.append(f"{ctx.session.namespace} {ctx.event.order_id}")
        ctx.emit(Ping())
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()

    place(orders, "o1")
    payments.run([handler], until_idle=True)
    assert seen == []
    orders.run([handler], until_idle=True)
    assert seen == ["orders o1"]
    assert payments.list_events() == []
    assert payments.query().entities(Customer).count() == 0
    place(payments, "p1")
    payments.run([handler], until_idle=True)
    assert seen == ["orders o1", "payments p1"]
    assert len(orders.list_events()) == 2
    assert {s.session_id for s in bus(orders).sessions()} == {orders.session_id}


def test_the_default_namespace(open_session: Any):
    seen: list[str] = []
    config = OntologiaConfig(default_namespace="shop")
    named, configured, default = open_session("shop"), open_session(config=config), open_session()
    assert (configured.namespace, default.namespace) == ("shop", "default")
    place(named, "o1")
    default.run([recorder(seen)], until_idle=True)
    assert seen == []
    configured.run([recorder(seen)], until_idle=True)
    assert seen == ["o1"]


def test_sessions_share_the_work(open_session: Any):
    sessions = [open_session() for _ in range(3)]
    lock, seen = threading.Lock(), []

    @on_event(OrderPlaced, handler_id="h")
    def handler(ctx: Placed) -> None:
        with lock:
            seen.append(ctx.event.order_id)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit(final=True)

    place(sessions[0], *map(str, range(90)))
    threads = [
        threading.Thread(target=s.run, args=([handler],), kwargs={"until_idle": True})
        for s in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # Nothing is left, and nothing was done twice.
    sessions[0].run([handler], until_idle=True)
    assert sorted(map(int, seen)) == list(range(90))
    assert len(sessions[0].list_commits(1000)) == 90


def test_a_session_is_registered_while_it_runs(open_session: Any, clock: FakeClock):
    session = open_session(instance_metadata={"role": "worker"})
    during: list[Any] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        during.extend(bus(session).sessions())

    for _ in range(2):
        place(session, "o1")
        started = clock.advance(seconds=5)
        session.run([handler], until_idle=True)
    first, second = during
    for record in (first, second):
        assert record.session_id == session.session_id
        assert record.stopped_at is None
        assert record.metadata["role"] == "worker"
        assert record.metadata["pid"] == os.getpid()
        assert record.metadata["hostname"]
    assert datetime.fromisoformat(second.last_heartbeat) == started
    (after,) = bus(session).sessions()
    assert datetime.fromisoformat(after.stopped_at) == started


def test_heartbeats_go_on_during_a_long_handler(uri: str, clock: FakeClock):
    beats: list[str] = []
    config = OntologiaConfig(session_heartbeat_interval_ms=5)

    @on_event(OrderPlaced)
    def long(ctx: Placed) -> None:
        now = clock.advance(seconds=10)
        wait_until(
            lambda: datetime.fromisoformat(bus(ctx.session).sessions()[0].last_heartbeat) == now
        )
        beats.append("alive")

    with Session(uri, clock=clock, config=config) as session:
        place(session, "o1")
        session.run([long], until_idle=True)
    assert beats == ["alive"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_renewed_lease_keeps_a_long_handler_alive(uri: str, clock: FakeClock, concurrency: int):
    runs: list[int] = []
    config = OntologiaConfig(session_heartbeat_interval_ms=5)

    @on_event(OrderPlaced, handler_id="h", renew_lease=True)
    def long(ctx: Placed) -> None:
        runs.append(1)
        for _ in range(4):
            now = clock.advance(seconds=20)
            wait_until(
                lambda now=now: (
                    (
                        datetime.fromisoformat(bus(ctx.session).record(ctx.event.id).lease_until)
                        - now
                    ).total_seconds()
                    >= 30
                )
            )
        ctx.ensure(Customer(id="c1"))
        ctx.commit()

    with Session(uri, clock=clock, config=config) as session:
        place(session, "o1")
        session.run([long], until_idle=True, concurrency=concurrency)
        assert session.query().entities(Customer).count() == 1
    assert len(runs) == 1


# What is not accepted


def test_bad_handlers_are_refused(session: Session):
    def plain(ctx: Any) -> None: ...

    with pytest.raises(HandlerError):
        session.run([plain], until_idle=True)
    with pytest.raises(HandlerError):
        session.run([recorder([], "same"), recorder([], "same")], until_idle=True)
    with pytest.raises(HandlerError):
        on_event(Customer)
    with pytest.raises(HandlerError):
        on_event(OrderPlaced(order_id="o1"))
    for options in (
        {"start": "later"},
        {"lease_ms": 0},
        {"lease_ms": 1.5},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"priority": "high"},
    ):
        with pytest.raises(HandlerError):
            on_event(OrderPlaced, **options)


def test_bad_runs_are_refused(session: Session):
    for concurrency in (0, -1, 1.5, True):
        with pytest.raises(ConfigError):
            session.run([recorder([])], until_idle=True, concurrency=concurrency)
    session.close()
    with pytest.raises(SessionClosedError):
        session.run([recorder([])], until_idle=True)
