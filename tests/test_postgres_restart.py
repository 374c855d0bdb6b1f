"""Runs of handlers that go on while PostgreSQL is restarted, or ends their connections."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import postgres
from support.counting_worker import Counted, Seen, Tally

from ontologia import (
    HandlerContext,
    InvalidDatastoreError,
    LockContentionError,
    OntologiaConfig,
    Session,
    StorageError,
    StorageUnavailableError,
    on_event,
)

EVENTS = 600
CONFIG = OntologiaConfig(event_claim_limit=20, event_poll_interval_ms=200, lock_timeout_ms=20_000)


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    """A server of its own, to be stopped and killed."""
    server = postgres.Server()
    yield server
    server.remove()


def run_through(uri: str, concurrency: int, trouble: Callable[[], None]) -> None:
    """Handle all events while there is trouble, each with its effects once."""
    begun, handled = threading.Event(), Counter[int]()

    @on_event(Counted, handler_id="count", lease_ms=2_000, max_attempts=50)
    def count(ctx: HandlerContext[Counted]) -> None:
        n = ctx.event.n
        handled[n] += 1
        if len(handled) > EVENTS // 10:
            begun.set()
        time.sleep(0.001)
        if n % 2:
            ctx.emit(Seen(n=n))
            return
        known = ctx.session.query().entities(Tally).get(n)
        ctx.ensure(Tally(n=n, times=1 if known is None else known.times + 1))
        ctx.commit(event=Seen(n=n), final=True)

    with (
        Session(uri, entity_types=[Tally], config=CONFIG) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        session.commit(event=[Counted(n=n) for n in range(EVENTS)])
        run = pool.submit(session.run, [count], concurrency=concurrency)
        assert begun.wait(20)
        trouble()
        deadline = time.monotonic() + 60
        while left(session) and not run.done():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not run.done()
        session.stop()
        run.result(30)
        assert set(handled) == set(range(EVENTS))
        tallies = session.query().entities(Tally).with_history().collect()
        assert Counter(t.n for t in tallies) == dict.fromkeys(range(0, EVENTS, 2), 1)
        assert {t.times for t in tallies} == {1}
        types = Counter(e.type for e in session.list_events(10_000))
        assert types == {"counted": EVENTS, "seen": EVENTS}
        assert session.events.dead_letters() == []
        assert session.verify().ok


def left(session: Session) -> int:
    return sum(h.pending + h.claimed for h in session.stats().handlers)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_goes_on_after_a_restart(
    server: postgres.Server,
    how: signal.Signals,
    concurrency: int,
    caplog: pytest.LogCaptureFixture,
):
    def trouble() -> None:
        for _ in range(2):
            server.stop(how)
            time.sleep(0.3)
            server.start()
            time.sleep(0.2)

    with caplog.at_level(logging.CRITICAL):
        run_through(server.uri, concurrency, trouble)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_run_goes_on_when_its_connections_are_ended(
    concurrency: int, caplog: pytest.LogCaptureFixture
):
    uri = postgres.new_uri()

    def trouble() -> None:
        for _ in range(10):
            postgres.rows(
                uri,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            time.sleep(0.05)

    with caplog.at_level(logging.CRITICAL):
        run_through(uri, concurrency, trouble)


def test_a_run_waits_for_a_server_that_stays_away_and_then_goes_on(
    server: postgres.Server, caplog: pytest.LogCaptureFixture
):
    """For longer than a connection is waited for."""

    def trouble() -> None:
        server.stop()
        time.sleep(7)
        server.start()

    patience = OntologiaConfig(event_poll_interval_ms=200, lock_timeout_ms=500)
    handled: list[int] = []

    @on_event(Counted, handler_id="count", lease_ms=1_000)
    def count(ctx: HandlerContext[Counted]) -> None:
        handled.append(ctx.event.n)

    with (
        caplog.at_level(logging.CRITICAL),
        Session(server.uri, config=patience) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        run = pool.submit(session.run, [count])
        session.commit(event=Counted(n=1))
        while not handled:
            time.sleep(0.01)
        trouble()
        session.commit(event=Counted(n=2))
        deadline = time.monotonic() + 20
        while handled[-1] != 2:
            assert not run.done()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        session.stop()
        run.result(30)


def test_a_run_ends_when_waiting_is_of_no_use():
    uri = postgres.new_uri()

    @on_event(Counted, handler_id="count")
    def count(ctx: HandlerContext[Counted]) -> None: ...

    with Session(uri, config=CONFIG) as session, ThreadPoolExecutor(1) as pool:
        run = pool.submit(session.run, [count])
        while not session.stats().handlers:
            time.sleep(0.01)
        postgres.rows(uri, "ALTER TABLE ontologia.event_claims RENAME TO away")
        try:
            with pytest.raises(InvalidDatastoreError):
                run.result(20)
        finally:
            postgres.rows(uri, "ALTER TABLE ontologia.away RENAME TO event_claims")


def test_errors_say_whether_they_pass():
    assert StorageUnavailableError.temporary
    assert LockContentionError.temporary
    assert not StorageError.temporary
    assert not InvalidDatastoreError.temporary
