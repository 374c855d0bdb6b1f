"""Schedules: every tick once, at the right time, whoever runs."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.backends import OpenSession
from support.clock import FakeClock
from support.events import Bus
from support.faults import Fault, break_store

from ontologia import (
    Event,
    Field,
    HandlerContext,
    OntologiaConfig,
    Schedule,
    ScheduleError,
    Session,
    on_event,
)


class Tick(Event):
    name: Field[str] = Field(default="")


def bus(session: Session) -> Bus:
    return Bus(session._store, session.namespace)


def stored(session: Session) -> list[str]:
    """The names of the ticks there are, oldest first."""
    return [e.payload["name"] for e in reversed(session.list_events(10_000)) if e.type == "tick"]


def passing(session: Session, clock: FakeClock, seconds: float, **options: Any) -> None:
    """Run schedules while so much time passes."""

    class Nudge(Event):
        pass

    @on_event(Nudge, handler_id="nudge")
    def nudge(ctx: HandlerContext[Nudge]) -> None:
        ctx.commit(final=True)  # before its lease runs out
        clock.advance(seconds=seconds)

    session.commit(event=Nudge())
    session.run([nudge], until_idle=True, **options)


EVERY_MINUTE = Schedule(event=Tick(name="minute"), cron="* * * * *")


def test_a_schedule_enqueues_its_event_at_its_time(session: Session, clock: FakeClock):
    seen: list[tuple[str, int, int]] = []

    @on_event(Tick)
    def handler(ctx: HandlerContext[Tick]) -> None:
        seen.append((ctx.event.name, ctx.event.priority, ctx.event.chain_depth))
        assert ctx.event.root_event_id == ctx.event.id
        assert ctx.event.causation_id is None

    schedule = Schedule(event=Tick(name="half past", priority=7), cron="30 12 * * *")
    passing(session, clock, 29 * 60 + 59, schedules=[schedule])
    assert stored(session) == [], "12:29:59 is too early"
    passing(session, clock, 1, schedules=[schedule])
    session.run([handler], until_idle=True)
    assert seen == [("half past", 7, 0)]


def test_ticks_are_handled_in_the_run_that_makes_them(session: Session, clock: FakeClock):
    seen: list[datetime] = []

    @on_event(Tick, 200)  # before time goes on
    def handler(ctx: HandlerContext[Tick]) -> None:
        seen.append(clock.now())

    class Nudge(Event):
        pass

    @on_event(Nudge)
    def nudge(ctx: HandlerContext[Nudge]) -> None:
        if ctx.event.chain_depth < 5:
            ctx.emit(Nudge())
        ctx.commit(final=True)  # before its lease runs out
        clock.advance(seconds=60)

    session.commit(event=Nudge())
    session.run([handler, nudge], schedules=[EVERY_MINUTE], until_idle=True)
    assert len(seen) == 6
    assert all(b - a == timedelta(minutes=1) for a, b in pairwise(seen))


def test_schedules_work_independently(session: Session, clock: FakeClock):
    schedules = [
        EVERY_MINUTE,
        Schedule(event=Tick(name="third"), cron="*/3 * * * *"),
        Schedule(event=Tick(name="never"), cron="0 0 29 2 *"),
        Schedule(event=Tick(name="minute"), cron="* * * * *", name="another"),
    ]
    passing(session, clock, 6 * 60, schedules=schedules)
    assert sorted(stored(session)) == ["minute"] * 12 + ["third"] * 2


def test_three_sessions_make_each_of_100_ticks_once(open_session: Any, clock: FakeClock):
    config = OntologiaConfig(event_poll_interval_ms=2, event_claim_lease_ms=86_400_000)
    sessions = [open_session(config=config) for _ in range(3)]
    lock, seen = threading.Lock(), []

    @on_event(Tick, handler_id="h")
    def handler(ctx: HandlerContext[Tick]) -> None:
        with lock:
            seen.append(ctx.event.id)

    threads = [
        threading.Thread(target=s.run, args=([handler],), kwargs={"schedules": [EVERY_MINUTE]})
        for s in sessions
    ]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + 20
        while len(bus(sessions[0]).sessions()) < 3 and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.05)  # each has decided where it starts
        for n in range(1, 101):
            clock.advance(seconds=60)
            while len(seen) < n and time.monotonic() < until:
                time.sleep(0.001)
    finally:
        for session in sessions:
            session.stop()
        for thread in threads:
            thread.join(20)
    sessions[0].run([handler], until_idle=True)
    assert len(seen) == len(set(seen)) == 100
    assert len(stored(sessions[0])) == 100


def test_sessions_that_crash_and_restart_make_each_tick_once(
    open_session: OpenSession, clock: FakeClock
):
    """Ten minutes each: one goes on, one crashes after writing, one before, one starts anew."""
    schedule = Schedule(event=Tick(), cron="* * * * *", misfire="once")
    steady = open_session()
    passing(steady, clock, 0, schedules=[schedule])
    for n in range(10):
        passing(steady, clock, 60, schedules=[schedule])
        for fault in ("events.enqueue", "events.record_tick", "end"):
            clock.advance(seconds=180)
            with pytest.raises(Fault), break_store(steady, fault):
                steady.run([], schedules=[schedule], until_idle=True)
        for session in (open_session(), steady, open_session()):
            session.run([], schedules=[schedule], until_idle=True)
        assert len(stored(steady)) == 2 * (n + 1), "the last one makes up for those missed"
    keys = [e.dedupe_key for e in bus(steady).latest(1000) if e.type == "tick"]
    assert len(set(keys)) == len(keys) == 20


def test_a_session_that_comes_late_does_not_make_a_tick_again(
    open_session: OpenSession, clock: FakeClock
):
    """Not even if the event of the tick was handled and cleaned up in the meantime."""
    late, other = open_session(), open_session()
    made: list[int] = []

    class Start(Event):
        pass

    @on_event(Start)
    def held_up(ctx: HandlerContext[Start]) -> None:
        ctx.commit(final=True)
        passing(other, clock, 60, schedules=[EVERY_MINUTE])
        made.append(len(stored(other)))
        clock.advance(seconds=1)
        other.events.cleanup(clock.now(), force=True)

    late.commit(event=Start())
    late.run([held_up], schedules=[EVERY_MINUTE], until_idle=True)
    assert made == [1]
    assert stored(late) == []


def test_a_restart_at_the_same_time_makes_no_tick_again(open_session: Any, clock: FakeClock):
    one, two = open_session(), open_session()
    for misfire in ("skip", "once"):
        schedule = Schedule(event=Tick(), cron="* * * * *", name=misfire, misfire=misfire)
        passing(one, clock, 60, schedules=[schedule])
        made = len(stored(one))
        for session in (one, two, one):
            session.run([], schedules=[schedule], until_idle=True)
        assert len(stored(one)) == made


def test_a_failure_while_enqueueing_loses_no_tick(session: Session, clock: FakeClock):
    """The run ends with the error; the one after it makes up for the tick."""
    schedule = Schedule(event=Tick(), cron="* * * * *", misfire="once")
    passing(session, clock, 60, schedules=[schedule])
    clock.advance(seconds=60)
    with pytest.raises(Fault), break_store(session, "events.enqueue"):
        session.run([], schedules=[schedule], until_idle=True)
    assert len(stored(session)) == 1
    session.run([], schedules=[schedule], until_idle=True)
    assert len(stored(session)) == 2


@pytest.mark.parametrize(("misfire", "made"), [("skip", 0), ("once", 1)])
def test_what_was_missed(session: Session, clock: FakeClock, misfire: Any, made: int):
    schedule = Schedule(event=Tick(), cron="*/5 * * * *", misfire=misfire)
    clock.advance(seconds=86_400)
    session.run([], schedules=[schedule], until_idle=True)
    assert stored(session) == [], "what was never run has missed nothing"
    passing(session, clock, 300, schedules=[schedule])
    assert len(stored(session)) == 1
    clock.advance(seconds=40 * 86_400)  # nobody runs it
    session.run([], schedules=[schedule], until_idle=True)
    session.run([], schedules=[schedule], until_idle=True)
    assert len(stored(session)) == 1 + made
    passing(session, clock, 300, schedules=[schedule])
    assert len(stored(session)) == 2 + made, "and then it goes on as ever"


@pytest.mark.parametrize(("misfire", "made"), [("skip", 0), ("once", 1)])
def test_what_was_missed_before_the_first_tick(
    session: Session, clock: FakeClock, misfire: Any, made: int
):
    """It was started in the morning and was down at noon."""
    schedule = Schedule(event=Tick(), cron="0 0 * * *", misfire=misfire)
    session.run([], schedules=[schedule], until_idle=True)
    assert stored(session) == []
    clock.advance(seconds=13 * 3600)
    for _ in range(2):
        session.run([], schedules=[schedule], until_idle=True)
        assert len(stored(session)) == made


def test_what_was_missed_is_known_after_a_cleanup(session: Session, clock: FakeClock):
    schedule = Schedule(event=Tick(), cron="0 * * * *", misfire="once")
    passing(session, clock, 3600, schedules=[schedule])
    clock.advance(seconds=1)
    session.events.cleanup(clock.now(), force=True)
    assert stored(session) == []
    session.run([], schedules=[schedule], until_idle=True)
    assert stored(session) == [], "nothing was missed yet"
    clock.advance(seconds=2 * 3600)
    session.run([], schedules=[schedule], until_idle=True)
    assert len(stored(session)) == 1


def test_a_schedule_that_has_just_ticked_has_missed_nothing(session: Session, clock: FakeClock):
    schedule = Schedule(event=Tick(), cron="0 * * * *", misfire="once")
    passing(session, clock, 3600, schedules=[schedule])
    clock.advance(seconds=1800)
    session.run([], schedules=[schedule], until_idle=True)
    assert len(stored(session)) == 1


def test_names_that_begin_alike_are_two_schedules(session: Session, clock: FakeClock):
    schedules = [
        Schedule(event=Tick(name=n), cron="* * * * *", name=n, misfire="once")
        for n in ("a", "a:b", "a:2026", "a%", "A")
    ]
    passing(session, clock, 60, schedules=schedules)
    clock.advance(seconds=600)
    session.run([], schedules=schedules, until_idle=True)
    assert sorted(stored(session)) == sorted(["a", "a:b", "a:2026", "a%", "A"] * 2)


def test_the_same_schedule_twice_is_refused(session: Session):
    again = Schedule(event=Tick(name="minute"), cron="* * * * *")
    with pytest.raises(ScheduleError):
        session.run([], schedules=[EVERY_MINUTE, again], until_idle=True)


def test_schedules_belong_to_their_namespace(open_session: Any, clock: FakeClock):
    a, b = open_session("a"), open_session("b")
    passing(a, clock, 60, schedules=[EVERY_MINUTE])
    passing(b, clock, 60, schedules=[EVERY_MINUTE])
    assert (len(stored(a)), len(stored(b))) == (1, 1)


# Times


def ticks(cron: str, start: datetime, days: float, timezone: str = "UTC") -> list[datetime]:
    """All ticks in so many days, each asked for after the one before, in local time."""
    schedule, found = Schedule(event=Tick(), cron=cron, timezone=timezone), []
    moment, end = start, start + timedelta(days=days)
    while (following := schedule.next_after(moment)) is not None and following <= end:
        assert following > moment
        found.append(moment := following)
    return found


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


@pytest.mark.parametrize(
    ("cron", "days", "count"),
    [
        ("*/15 * * * *", 1, 96),
        ("0 9-17 * * MON-FRI", 7, 45),
        ("0 0 * * 7", 28, 4),
        ("0 0 * * sun,sat", 28, 8),
        ("0 0 1,15 jan *", 40, 1),
        ("0 0 29 2 *", 1000, 1),
        ("5/20 0 * * *", 1, 3),
        ("@hourly", 1, 24),
        ("@daily", 7, 7),
        ("@midnight", 7, 7),
        ("@weekly", 28, 4),
        ("@monthly", 59, 2),
        ("@yearly", 800, 2),
        ("@annually", 800, 2),
        (" @Daily ", 2, 2),
    ],
)
def test_cron_expressions(cron: str, days: float, count: int):
    assert len(ticks(cron, NEW_YEAR, days)) == count


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *",
     "* * * * 8", "a b c d e", "@never", "*/0 * * * *", "5-1 * * * *", "-1 * * * *",
     "0 0 31 2 *", None, 5],
)  # fmt: skip
def test_bad_cron_text_fails_when_the_schedule_is_built(cron: Any):
    with pytest.raises(ScheduleError):
        Schedule(event=Tick(), cron=cron)


@pytest.mark.parametrize(
    "options",
    [
        {"timezone": "Mars/Olympus"},
        {"timezone": ""},
        {"timezone": None},
        {"timezone": "../etc/passwd"},
        {"misfire": "all"},
        {"event": "tick"},
        {"event": Tick},
    ],
)
def test_bad_schedules_fail_when_they_are_built(options: Any):
    with pytest.raises(ScheduleError):
        Schedule(**{"event": Tick(), "cron": "@daily", **options})


BERLIN = ZoneInfo("Europe/Berlin")


def test_a_time_zone_keeps_its_wall_clock():
    found = ticks("0 9 * * *", datetime(2026, 3, 25, tzinfo=UTC), 8, "Europe/Berlin")
    assert [t.hour for t in found] == [8, 8, 8, 8, 7, 7, 7, 7]
    assert {t.astimezone(BERLIN).hour for t in found} == {9}


@pytest.mark.parametrize("month", [(2026, 3, 27), (2026, 10, 23)])
def test_a_daily_time_happens_once_a_day_over_clock_changes(month: tuple[int, int, int]):
    """02:30 does not exist on 29 March, and happens twice on 25 October."""
    start = datetime(*month, 0, 0, tzinfo=BERLIN).astimezone(UTC)
    found = ticks("30 2 * * *", start, 5, "Europe/Berlin")
    assert len({t.astimezone(BERLIN).date() for t in found}) == len(found) == 5


@pytest.mark.parametrize("month", [(2026, 3, 28), (2026, 10, 24)])
@pytest.mark.parametrize(("cron", "minutes"), [("*/30 * * * *", 30), ("0 * * * *", 60)])
def test_intervals_stay_even_over_clock_changes(
    month: tuple[int, int, int], cron: str, minutes: int
):
    start = datetime(*month, 0, 0, tzinfo=BERLIN).astimezone(UTC)
    found = ticks(cron, start, 3, "Europe/Berlin")
    assert {b - a for a, b in pairwise(found)} == {timedelta(minutes=minutes)}
    assert len(found) == 3 * 24 * 60 // minutes


def test_ticks_over_a_clock_change_are_stored_once_each(session: Session, clock: FakeClock):
    clock.advance((datetime(2026, 10, 25, tzinfo=UTC) - clock.now()).total_seconds())
    schedule = Schedule(event=Tick(), cron="30 * * * *", timezone="Europe/Berlin")
    passing(session, clock, 6 * 3600, schedules=[schedule])
    assert len(stored(session)) == 6
