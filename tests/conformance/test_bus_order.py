"""Handlers with ``ordered_by``: events of one key one at a time, in the order of their commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from support.backends import OpenSession
from support.clock import FakeClock
from support.events import Bus
from support.faults import break_store
from support.models import Customer, OrderPlaced

from ontologia import Event, Field, HandlerContext, HandlerError, OntologiaConfig, Session, on_event

Placed = HandlerContext[OrderPlaced]


class Ping(Event):
    n: Field[int] = Field(default=0)


class Color(Enum):
    RED = 1


def bus(session: Session) -> Bus:
    return Bus(session._store, session.namespace)


def place(session: Session, *orders: str) -> list[str]:
    """Orders such as ``x1``: their key is ``x``."""
    events = [OrderPlaced(order_id=o) for o in orders]
    session.commit(event=events)
    return [e.id or "" for e in events]


def key_of(event: OrderPlaced) -> str:
    return event.order_id[0]


def numbered(keys: str, count: int) -> list[str]:
    return [f"{key}{n:03}" for n in range(count) for key in keys]


class Log:
    """What a handler was given, and whether two of one key ever ran at the same time."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.overlaps: list[str] = []
        self._active: set[str] = set()
        self._lock = threading.Lock()

    def handler(self, body: Callable[[Placed], None] | None = None, **options: Any) -> Any:
        @on_event(OrderPlaced, handler_id="h", **{"ordered_by": key_of, **options})
        def handler(ctx: Placed) -> None:
            order, key = ctx.event.order_id, ctx.event.order_id[0]
            with self._lock:
                self.seen.append(order)
                if key in self._active:
                    self.overlaps.append(order)
                self._active.add(key)
            try:
                if body is not None:
                    body(ctx)
            finally:
                with self._lock:
                    self._active.discard(key)

        return handler

    def of(self, key: str) -> list[str]:
        return [order for order in self.seen if order[0] == key]

    def check(self, *orders: str) -> None:
        """All of these, each once, each key in its order."""
        assert self.overlaps == []
        assert sorted(self.seen) == sorted(orders)
        for key in {order[0] for order in orders}:
            assert self.of(key) == [order for order in orders if order[0] == key]


def together(sessions: list[Session], handler: Any, **options: Any) -> None:
    """Run in all sessions at the same time, until everything is handled."""
    threads = [
        threading.Thread(target=s.run, args=([handler],), kwargs={"until_idle": True, **options})
        for s in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # A session that found all keys taken has gone home early.
    sessions[0].run([handler], until_idle=True)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_one_at_a_time_and_in_order(session: Session, concurrency: int):
    log, orders = Log(), numbered("xxyz", 15)
    orders = [f"{o[0]}{n:03}" for n, o in enumerate(orders)]
    place(session, *orders)
    handler = log.handler(lambda ctx: time.sleep(0.001))
    session.run([handler], until_idle=True, concurrency=concurrency)
    log.check(*orders)


def test_over_several_sessions_and_threads(open_session: OpenSession):
    log, orders = Log(), numbered("xyz", 20)
    sessions = [open_session() for _ in range(3)]
    place(sessions[0], *orders)
    together(sessions, log.handler(lambda ctx: time.sleep(0.001)), concurrency=2)
    log.check(*orders)


def test_keys_run_side_by_side(session: Session):
    meeting = threading.Barrier(3)
    log = Log()
    place(session, "x1", "y1", "z1")
    session.run([log.handler(lambda ctx: meeting.wait(5) and None)], until_idle=True, concurrency=3)
    log.check("x1", "y1", "z1")


def test_commit_order_beats_priority_within_a_key(session: Session):
    log = Log()
    for order, priority in (("x1", 1), ("x2", 200), ("y1", 100)):
        session.commit(event=OrderPlaced(order_id=order, priority=priority))
    session.run([log.handler()], until_idle=True)
    assert log.seen == ["y1", "x1", "x2"]


def test_batches_do_not_matter(uri: str, clock: FakeClock):
    log, orders = Log(), numbered("xy", 7)
    config = OntologiaConfig(event_claim_limit=1, max_events_per_iteration=2)
    with Session(uri, clock=clock, config=config) as session:
        place(session, *orders)
        for _ in range(3):
            session.run([log.handler()], max_iterations=2)
        session.run([log.handler()], until_idle=True)
    log.check(*orders)


# Failure


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_failure_holds_up_its_key_only(session: Session, clock: FakeClock, concurrency: int):
    log = Log()

    def fail_twice(ctx: Placed) -> None:
        if ctx.event.order_id == "x1" and log.seen.count("x1") < 3:
            raise ValueError("not yet")

    handler = log.handler(fail_twice)
    place(session, "x1", "x2", "y1", "x3", "y2")
    session.run([handler], until_idle=True, concurrency=concurrency)
    assert log.of("x") == ["x1"]
    assert log.of("y") == ["y1", "y2"]
    place(session, "x4")
    for _ in range(2):
        clock.advance(seconds=60)
        session.run([handler], until_idle=True, concurrency=concurrency)
    assert log.of("x") == ["x1", "x1", "x1", "x2", "x3", "x4"]


def test_a_dead_letter_lets_its_key_go_on(session: Session):
    log = Log()

    def fail(ctx: Placed) -> None:
        if ctx.event.order_id == "x1":
            raise ValueError("never")

    place(session, "x1", "x2", "x3")
    session.run([log.handler(fail, max_attempts=1)], until_idle=True)
    assert log.seen == ["x1", "x2", "x3"]
    assert [d.attempts for d in session.events.dead_letters()] == [1]


def test_a_lapsed_lease_holds_up_its_key(session: Session, clock: FakeClock):
    log = Log()

    def dawdle(ctx: Placed) -> None:
        if log.seen == ["x1"]:
            clock.advance(seconds=31)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit(final=True)

    place(session, "x1", "x2")
    session.run([log.handler(dawdle)], until_idle=True)
    assert log.seen == ["x1", "x1", "x2"]


def test_a_crashed_session_holds_up_the_keys_it_worked_on(
    open_session: OpenSession, clock: FakeClock
):
    one, two, log = open_session(), open_session(), Log()

    def crash(ctx: Placed) -> None:
        raise KeyboardInterrupt

    place(one, "x1", "x2", "y1")
    # A crash writes nothing any more: neither an acknowledgement nor a release.
    with (
        pytest.raises(KeyboardInterrupt),
        break_store(one, "events.hand_back", KeyboardInterrupt),
    ):
        one.run([log.handler(crash)], until_idle=True)
    place(two, "y2", "z1")
    two.run([log.handler()], until_idle=True)
    assert log.seen == ["x1", "z1"]
    clock.advance(seconds=31)
    two.run([log.handler()], until_idle=True)
    assert log.of("x") == ["x1", "x1", "x2"]
    assert log.of("y") == ["y1", "y2"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_stopping_keeps_the_order(session: Session, concurrency: int):
    log = Log()

    def stop(ctx: Placed) -> None:
        if len(log.seen) % 3 == 2:
            ctx.session.stop()

    orders = numbered("xy", 5)
    place(session, *orders)
    for _ in range(len(orders)):
        session.run([log.handler(stop)], until_idle=True, concurrency=concurrency)
    log.check(*orders)


def test_a_blocked_key_does_not_stop_the_others(session: Session):
    """Many events wait for the one that is blocked; they must not take all the room."""
    release = threading.Event()
    seen: list[int] = []
    released: list[bool] = []

    @on_event(OrderPlaced, 200, ordered_by=lambda e: e.order_id)
    def blocked(ctx: Placed) -> None:
        released.append(release.wait(1))
        release.set()

    @on_event(Ping)
    def quick(ctx: HandlerContext[Ping]) -> None:
        seen.append(ctx.event.n)
        if ctx.event.n == 19:
            release.set()

    place(session, *["same"] * 30)
    session.commit(event=[Ping(n=n) for n in range(20)])
    session.run([blocked, quick], until_idle=True, concurrency=2)
    assert sorted(seen) == list(range(20))
    assert released == [True] * 30


# Again


def test_what_is_replayed_comes_in_order(session: Session):
    log, orders = Log(), numbered("xy", 3)
    found = place(session, *orders)
    session.run([log.handler()], until_idle=True)
    log.seen.clear()
    assert session.events.replay_all(handler_id="h") == 6
    session.run([log.handler()], until_idle=True)
    log.check(*orders)
    log.seen.clear()
    for event_id in (found[4], found[0]):
        session.events.replay(event_id)
    place(session, "x999")
    session.run([log.handler()], until_idle=True)
    log.check("x000", "x002", "x999")


def test_a_replay_waits_for_what_runs(session: Session):
    log = Log()
    first: list[str] = []

    def replay(ctx: Placed) -> None:
        if log.seen == ["x1", "x2"]:
            session.events.replay(first[0])
            time.sleep(0.05)  # time enough to start it

    first += place(session, "x1", "x2", "x3")
    session.run([log.handler(replay)], until_idle=True, concurrency=3)
    assert log.overlaps == []
    assert log.seen == ["x1", "x2", "x1", "x3"]


def test_a_replayed_dead_letter_goes_first(session: Session, clock: FakeClock):
    log = Log()

    def fail(ctx: Placed) -> None:
        if log.seen == ["x1"]:
            raise ValueError("no")

    (x1,) = place(session, "x1")
    session.run([log.handler(fail, max_attempts=1)], until_idle=True)
    place(session, "x2")
    session.events.replay_dead_letter(x1, "h")
    session.run([log.handler(fail)], until_idle=True)
    assert log.seen == ["x1", "x1", "x2"]


@pytest.mark.parametrize("before", [2, 1100])
def test_a_backfill_keeps_order(session: Session, before: int):
    """With many, they are looked at in several pieces."""
    log = Log()
    early = [f"x{n:04}" for n in range(before - 1)] + ["y0000"]
    place(session, *early)
    handler = log.handler(start="now")
    session.run([handler], until_idle=True)
    place(session, "x9998", "y9999")
    session.run([handler], until_idle=True)
    assert log.seen == ["x9998", "y9999"]
    assert session.events.backfill("h") == 2
    log.seen.clear()
    session.run([handler], until_idle=True)
    log.check(*early, "x9998", "y9999")


def test_cleanup_by_force_lets_a_key_go_on(session: Session, clock: FakeClock):
    log = Log()

    def fail(ctx: Placed) -> None:
        if ctx.event.order_id == "x1":
            raise ValueError("no")

    place(session, "x1")
    cut = clock.advance(seconds=1)
    place(session, "x2", "x3")
    session.run([log.handler(fail)], until_idle=True)
    assert log.seen == ["x1"]
    assert session.events.cleanup(cut, force=True) == 1
    session.run([log.handler(fail)], until_idle=True)
    assert log.seen == ["x1", "x2", "x3"]


def test_a_forgotten_handler_starts_over_in_order(session: Session):
    log = Log()

    def fail(ctx: Placed) -> None:
        if log.seen == ["x1"]:
            raise ValueError("no")

    place(session, "x1", "x2")
    session.run([log.handler(fail)], until_idle=True)
    assert session.events.forget_handler("h")
    place(session, "x3")
    session.run([log.handler(fail)], until_idle=True)
    assert log.seen == ["x1", "x1", "x2", "x3"]


def test_a_handler_forgotten_while_it_runs_goes_on(session: Session):
    log = Log()

    def forget(ctx: Placed) -> None:
        if log.seen == ["x1"]:
            session.events.forget_handler("h")

    place(session, "x1", "x2")
    session.run([log.handler(forget)], until_idle=True)
    assert log.seen[-1] == "x2"


# Keys


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "b"),
        (1, 2),
        (1, "1"),
        (1, True),
        (1.5, 2.5),
        (("a", 1), ("a", 2)),
        (("a", None), ("a",)),
        (("a", "b"), '["str:a","str:b"]'),
        (UUID(int=1), UUID(int=2)),
        (Color.RED, "RED"),
        (b"a", "a"),
        ("", "\n"),
    ],
    ids=repr,
)
def test_keys_of_many_kinds(session: Session, one: object, other: object):
    """The first of a key fails: it holds up those with an equal key, and nothing else."""
    seen: list[str] = []

    @on_event(OrderPlaced, ordered_by=lambda e: one if e.order_id[0] == "x" else other)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)
        if ctx.event.order_id == "x1":
            raise ValueError("no")

    place(session, "x1", "x2", "y1", "y2")
    session.run([handler], until_idle=True)
    assert seen == ["x1", "y1", "y2"]


def test_none_keeps_no_order(session: Session):
    seen: list[str] = []
    meeting = threading.Barrier(2)

    @on_event(OrderPlaced, ordered_by=lambda e: None)
    def handler(ctx: Placed) -> None:
        meeting.wait(5)
        seen.append(ctx.event.order_id)

    place(session, "x1", "x2")
    session.run([handler], until_idle=True, concurrency=2)
    assert sorted(seen) == ["x1", "x2"]


def explode(event: OrderPlaced) -> str:
    raise LookupError("no key")


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize(
    ("ordered_by", "error"),
    [
        (lambda e: [e.order_id], "HandlerError: ordered_by returned ['x1']"),
        (lambda e: {"a"}, "HandlerError: ordered_by returned {'a'}"),
        (lambda e: (1, object), "HandlerError: ordered_by returned"),
        (lambda e: "\ud800", "HandlerError: "),
        (lambda e: e.missing, "AttributeError: "),
        (explode, "LookupError: no key"),
    ],
    ids=["list", "set", "in a tuple", "surrogate", "attribute", "raises"],
)
def test_a_bad_key_is_a_failed_attempt(
    session: Session, ordered_by: Any, error: str, concurrency: int
):
    seen: list[str] = []

    @on_event(OrderPlaced, handler_id="h", ordered_by=ordered_by)
    def handler(ctx: Placed) -> None:
        seen.append(ctx.event.order_id)

    (event_id,) = place(session, "x1")
    session.run([handler], until_idle=True, concurrency=concurrency)
    record = bus(session).record(event_id)
    assert (seen, record.ack_at, record.attempts) == ([], None, 1)
    assert (record.last_error or "").startswith(error)


def test_ordered_by_is_a_function():
    with pytest.raises(HandlerError, match="fix:"):
        on_event(OrderPlaced, ordered_by="order_id")  # type: ignore[arg-type]
