"""Odd handlers, hooks and input: they are refused, or count as failures; the run lives on."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.backends import OpenSession

from ontologia import (
    ConfigError,
    Entity,
    Event,
    EventHooks,
    Field,
    HandlerContext,
    HandlerError,
    LeaseExpiredError,
    LockContentionError,
    OntologiaConfig,
    OntologiaError,
    Schedule,
    ScheduleError,
    Session,
    on_event,
)
from ontologia.testing import FakeClock


class Made(Event):
    n: Field[int] = 1


class Note(Entity):
    id: Field[str] = Field(primary_key=True)


Context = HandlerContext[Made]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def notes(session: Session) -> list[str]:
    return [note.id for note in session.query().entities(Note).collect()]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    "error",
    [Unspeakable(), ValueError("\ud800"), ValueError("a\0b"), StopIteration(), MemoryError()],
)
def test_whatever_is_raised_is_a_failed_attempt(
    session: Session, error: Exception, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "ontologia")  # not every text can be printed

    @on_event(Made, max_attempts=1)
    def handler(ctx: Context) -> None:
        raise error

    session.commit(event=Made())
    session.run([handler], until_idle=True, concurrency=concurrency)
    (letter,) = session.events.dead_letters()
    assert letter.last_error.startswith(type(error).__name__)


def test_a_decorated_coroutine_is_awaited(session: Session) -> None:
    seen: list[int] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(ctx: Context) -> Any:
            return function(ctx)

        return wrapper

    @on_event(Made)
    @timed
    async def handler(ctx: Context) -> None:
        await asyncio.sleep(0)
        seen.append(ctx.event.n)

    async def main() -> None:
        session.run([handler], until_idle=True)

    session.commit(event=Made())
    session.run([handler], until_idle=True)
    assert seen == [1]
    session.commit(event=Made(n=2))
    asyncio.run(main())
    assert seen == [1, 2]


def test_what_cannot_be_a_handler_is_refused() -> None:
    mark = on_event(Made)

    def generator(ctx: Context):  # type: ignore[no-untyped-def]
        yield

    async def async_generator(ctx: Context):  # type: ignore[no-untyped-def]
        yield

    def two(ctx: Context, other: int) -> None: ...

    def nothing() -> None: ...

    class Methods:
        def handler(self, ctx: Context) -> None: ...

    for function in (generator, async_generator, two, nothing, Methods.handler, Methods(), 5):
        with pytest.raises(HandlerError):
            mark(function)  # type: ignore[arg-type]
    with pytest.raises(HandlerError, match="already"):
        mark(mark(lambda ctx: None))


def test_an_async_handler_inside_an_event_loop_is_refused(session: Session) -> None:
    seen: list[int] = []

    @on_event(Made)
    async def handler(ctx: Context) -> None:
        seen.append(ctx.event.n)

    async def main() -> None:
        with pytest.raises(HandlerError, match="to_thread"):
            session.run([handler], until_idle=True)
        await asyncio.to_thread(session.run, [handler], until_idle=True)

    session.commit(event=Made())
    asyncio.run(main())
    assert seen == [1]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_equal_handlers_take_turns(open_session: OpenSession, concurrency: int) -> None:
    seen: list[str] = []

    class Rare(Event):
        pass

    @on_event(Made, handler_id="a")
    def busy(ctx: Context) -> None:
        seen.append("busy")

    @on_event(Rare, handler_id="b")
    def rare(ctx: HandlerContext[Rare]) -> None:
        seen.append("rare")

    config = OntologiaConfig(
        event_claim_limit=10, max_events_per_iteration=10, event_poll_interval_ms=1
    )
    session = open_session(config=config)
    session.commit(event=[Made(n=n) for n in range(100)] + [Rare()])
    session.run([busy, rare], until_idle=True, concurrency=concurrency)
    assert len(seen) == 101
    assert seen.index("rare") <= 20


def test_a_task_left_behind_does_not_work_in_the_next_handler(session: Session) -> None:
    refused: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []

    @on_event(Made, max_attempts=1)
    async def handler(ctx: Context) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            try:
                ctx.session.ensure(Note(id="of a task that was left behind"))
                ctx.session.commit()
            except OntologiaError as error:
                refused.append(error)

        if ctx.event.n == 1:
            tasks.append(asyncio.create_task(later()))
            return
        ctx.ensure(Note(id="never committed"))
        await asyncio.sleep(0.01)
        raise ValueError("no")

    session.commit(event=[Made(n=1), Made(n=2)])
    session.run([handler], until_idle=True)
    assert len(refused) == 1
    assert notes(session) == []


def test_the_context_ends_with_the_handler(session: Session) -> None:
    kept: list[Context] = []

    @on_event(Made)
    def handler(ctx: Context) -> None:
        kept.append(ctx)

    session.commit(event=Made())
    session.run([handler], until_idle=True)
    (ctx,) = kept
    for verb in (
        lambda: ctx.ensure(Note(id="a")),
        lambda: ctx.emit(Made()),
        ctx.commit,
        lambda: ctx.add_commit_meta("a", "b"),
    ):
        with pytest.raises(OntologiaError, match="has ended"):
            verb()


def test_a_with_block_of_the_session_inside_a_handler_is_fenced(
    session: Session, clock: FakeClock
) -> None:
    errors: list[Exception] = []

    @on_event(Made)
    def handler(ctx: Context) -> None:
        with ctx.session as same:
            same.ensure(Note(id="in time"))
        clock.advance(seconds=1000)
        try:
            with ctx.session as same:
                same.ensure(Note(id="too late"))
        except LeaseExpiredError as error:
            errors.append(error)
            raise

    session.commit(event=Made())
    session.run([handler], max_iterations=1)
    assert len(errors) == 1
    assert notes(session) == ["in time"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_close_inside_a_handler_ends_the_run(open_session: OpenSession, concurrency: int) -> None:
    session, other = open_session(), open_session()
    seen: list[int] = []

    @on_event(Made, handler_id="h", ordered_by=lambda e: "one")
    def handler(ctx: Context) -> None:
        seen.append(ctx.event.n)
        ctx.session.close()

    other.commit(event=[Made(n=n) for n in range(5)])
    session.run([handler], concurrency=concurrency)
    assert seen == [0]
    (stats,) = other.stats().handlers
    assert (stats.pending, stats.claimed) == (4, 0)
    assert [s.state for s in other.events.sessions()] == ["stopped"]
    with pytest.raises(OntologiaError):
        session.commit(event=Made())


def test_a_session_is_stopped_with_its_last_run(session: Session) -> None:
    @on_event(Made)
    def handler(ctx: Context) -> None: ...

    begun = threading.Event()
    hooks = EventHooks(on_event_claimed=lambda handler_id, event: begun.set())
    session.commit(event=Made())
    thread = threading.Thread(target=session.run, args=([handler],), kwargs={"hooks": hooks})
    thread.start()
    assert begun.wait(30)
    session.run([handler], until_idle=True)
    assert [s.state for s in session.events.sessions()] == ["running"]
    session.stop()
    thread.join()
    assert [s.state for s in session.events.sessions()] == ["stopped"]


def test_an_exit_in_a_hook_hands_back(session: Session) -> None:
    @on_event(Made)
    def handler(ctx: Context) -> None: ...

    def leave(handler_id: str, event: object) -> None:
        raise SystemExit(3)

    session.commit(event=[Made(), Made()])
    with pytest.raises(SystemExit):
        session.run([handler], until_idle=True, hooks=EventHooks(on_event_claimed=leave))
    (stats,) = session.stats().handlers
    assert (stats.pending, stats.claimed) == (2, 0)


def test_a_tick_that_met_a_locked_store_is_not_lost(
    session: Session, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = session._store  # type: ignore[attr-defined]
    schedule = Schedule(event=Made(n=7), cron="* * * * *", name="s")
    seen: list[int] = []
    write, failures = store.write, [1, 1]

    class Nudge(Event):
        pass

    @on_event(Nudge, 200)
    def nudge(ctx: HandlerContext[Nudge]) -> None:
        ctx.commit(final=True)
        clock.advance(seconds=60)
        monkeypatch.setattr(store, "write", locked)

    def locked(namespace: str) -> Any:
        if failures:
            failures.pop()
            raise LockContentionError(1)
        return write(namespace)

    @on_event(Made)
    def handler(ctx: Context) -> None:
        seen.append(ctx.event.n)

    session.commit(event=Nudge())
    session.run([nudge, handler], schedules=[schedule], until_idle=True)
    assert (failures, seen) == ([], [7])


def test_a_run_that_is_held_up_makes_its_tick_after_another_session_is_further_on(
    open_session: OpenSession, clock: FakeClock
) -> None:
    one, other = open_session(), open_session()
    schedule = Schedule(event=Made(n=7), cron="* * * * *", name="s")

    class Nudge(Event):
        pass

    @on_event(Nudge)
    def held_up(ctx: HandlerContext[Nudge]) -> None:
        ctx.commit(final=True)
        clock.advance(seconds=90)

        @on_event(Nudge, handler_id="other")
        def again(ctx: HandlerContext[Nudge]) -> None:
            ctx.commit(final=True)
            clock.advance(seconds=60)

        other.run([again], schedules=[schedule], until_idle=True)

    one.commit(event=Nudge())
    one.run([held_up], schedules=[schedule], until_idle=True)
    ticks = [e for e in one.events.list(10) if e.type == "made"]
    assert len(ticks) == 2, "one was due before the other session began"


def test_ticks_in_the_hour_that_happens_twice() -> None:
    schedule = Schedule(event=Made(), cron="30 2 * * *", timezone="Europe/Berlin")
    inside = datetime(2026, 10, 25, 1, 12, tzinfo=UTC)
    assert schedule.next_after(inside) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert schedule.last_between(datetime(2026, 10, 25, 1, 0, tzinfo=UTC), inside) is None


@pytest.mark.parametrize("bad", [5, "x", b"x", [5], {}, 1.5, object(), True])
def test_bad_arguments_of_a_run_are_refused(session: Session, bad: Any) -> None:
    @on_event(Made)
    def handler(ctx: Context) -> None: ...

    session.commit(event=Made())
    calls: list[Callable[[], object]] = [
        lambda: session.run([handler], until_idle=True, hooks=bad),
        lambda: session.run([handler], until_idle=True, schedules=bad or 5),
        lambda: session.run(bad, until_idle=True) if bad != {} else session.run(5),  # type: ignore[arg-type]
        lambda: EventHooks(on_event_claimed=bad),
        lambda: (
            session.events.replay_all(type=bad)
            if bad != "x"
            else session.events.replay_all(type=Note)
        ),  # type: ignore[arg-type]
    ]
    if bad != 5:
        calls.append(lambda: session.run([handler], max_iterations=bad))
        calls.append(lambda: session.run([handler], concurrency=bad))
    for call in calls:
        with pytest.raises(OntologiaError):
            call()


@pytest.mark.parametrize("bad", [None, 5, "\ud800", "a\0b", [], 10**30], ids=ascii)
def test_bad_ids_are_refused(session: Session, bad: Any) -> None:
    events = session.events
    for ask in (
        events.inspect,
        events.chain,
        events.replay,
        events.backfill,
        events.forget_handler,
        lambda text: events.replay_dead_letter(text, "h"),
        lambda text: events.replay_dead_letter("e", text),
    ):
        with pytest.raises(OntologiaError):
            ask(bad)


@pytest.mark.parametrize("name", [5, "", [], "\ud800", "a\0b"], ids=ascii)
def test_bad_names_of_schedules_are_refused(name: Any) -> None:
    with pytest.raises(ScheduleError):
        Schedule(event=Made(), cron="@daily", name=name)


def test_durations_have_an_end() -> None:
    with pytest.raises(HandlerError):
        on_event(Made, lease_ms=10**16)
    for option in ("event_claim_lease_ms", "event_backoff_max_ms", "event_retention_ms"):
        with pytest.raises(ConfigError):
            OntologiaConfig(**{option: 2**50})


def test_times_without_a_zone_are_refused(session: Session) -> None:
    naive = datetime(2026, 1, 1)
    for call in (
        lambda: session.events.cleanup(naive),
        lambda: session.events.replay_all(since=naive),
        lambda: session.events.cleanup_sessions(naive),
    ):
        with pytest.raises(OntologiaError, match="time zone"):
            call()
