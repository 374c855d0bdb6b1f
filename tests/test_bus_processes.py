"""Workers in processes of their own, on one file: killed, stopped, or side by side."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import bus_worker
from support.bus_worker import (
    SHORT_MS,
    Bill,
    Billed,
    Counted,
    Placed,
    Receipt,
    bill,
    bill_at_once,
    bill_in_steps,
    receipt,
)
from support.events import Bus

import ontologia
from ontologia import OntologiaConfig, Session

TESTS, SOURCE = Path(__file__).parent, Path(ontologia.__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    config = OntologiaConfig(event_poll_interval_ms=20, lock_timeout_ms=20_000)
    with Session(path, config=config) as session:
        yield session


@contextmanager
def worker(path: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that has opened the store and waits for a line to begin."""
    with subprocess.Popen(
        [sys.executable, bus_worker.__file__, str(path), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def begin(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        tell(process)


def place(session: Session, count: int) -> None:
    session.commit(event=[Placed(order_id=f"o{n}") for n in range(count)])


def bus(session: Session) -> Bus:
    return Bus(session._store, session.namespace)


def of_type(session: Session, event_type: str) -> list[str]:
    found = [e for e in session.list_events(100_000) if e.type == event_type]
    return sorted(e.payload["order_id"] for e in found)


def finish(session: Session, done: Callable[[], bool], *handlers: Callable[..., object]) -> None:
    """Run handlers here until it is done, whatever leases are left from before."""
    until = time.monotonic() + 20
    while not done():
        assert time.monotonic() < until, session.stats()
        session.run(handlers, until_idle=True)
        time.sleep(0.01)


def idle(session: Session) -> bool:
    stats = session.stats()
    return stats.handlers != () and stats.pending + stats.claimed == 0


# Killed


@pytest.mark.parametrize(
    ("mode", "committed"),
    [
        ("kill-before-commit", {0}),
        ("kill-after-commit", {1}),
        ("kill-in-ack", {1, 2, 3}),  # acknowledgements are written together
        ("kill-in-final", {0}),
    ],
)
def test_a_killed_worker_leaves_every_effect_once(
    session: Session, path: Path, mode: str, committed: set[int]
):
    place(session, 3)
    with worker(path, mode) as process:
        begin(process)
        if "in" not in mode.split("-"):
            assert process.stdout.readline() == "there\n"
            process.kill()
        assert process.wait(10) == -signal.SIGKILL
    assert session.head in committed
    bills = [b.id for b in session.query().entities(Bill).collect()]
    assert of_type(session, "billed") == sorted(bills), "state and event together"
    assert len(bills) == session.head
    assert of_type(session, "counted") == [], "what was emitted goes with the acknowledgement"
    claims = [c for e in bus(session).latest(9) for c in bus(session).claims(e.id)]
    assert {c.ack_at for c in claims} == {None}
    again = bill_at_once if mode == "kill-in-final" else bill_in_steps
    finish(session, lambda: idle(session), again, receipt)
    for entity in (Bill, Receipt):
        found = session.query().entities(entity).with_history().collect()
        assert sorted(e.id for e in found) == ["o0", "o1", "o2"], "each state change once"
    for event in (Billed, Counted):
        assert of_type(session, event.__event_type__) == ["o0", "o1", "o2"]
    claims = [bus(session).record(e.id, "bill") for e in bus(session).latest(99)[-3:]]
    assert all(c.ack_at for c in claims)
    assert any("lease ran out" in (c.last_error or "") for c in claims)


def test_an_event_that_kills_its_worker_takes_no_others_along(session: Session, path: Path):
    place(session, 4)
    for _ in range(8):
        with worker(path, "poison") as process:
            begin(process)
            if process.wait(10) == 0 and idle(session):
                break
        time.sleep(SHORT_MS / 1000)
    (letter,) = session.events.dead_letters()
    assert ("o1" in letter.event_payload, letter.attempts) == (True, 2)
    assert of_type(session, "billed") == ["o0", "o2", "o3"]


def test_workers_killed_at_any_moment_leave_every_effect_once(session: Session, path: Path):
    count, chance = 400, random.Random(3)
    place(session, count)
    for _ in range(6):
        with ExitStack() as stack:
            processes = [stack.enter_context(worker(path, "work")) for _ in range(2)]
            begin(*processes)
            for process in processes:
                time.sleep(chance.uniform(0.01, 0.06))
                process.kill()
    assert not idle(session), "some is left to be taken over"
    finish(session, lambda: idle(session), bill_in_steps)
    orders = sorted(f"o{n}" for n in range(count))
    found = session.query().entities(Bill).with_history().collect()
    assert sorted(b.id for b in found) == orders
    assert session.head == count
    assert of_type(session, "billed") == of_type(session, "counted") == orders
    assert session.verify().ok


def test_a_zombie_changes_nothing(session: Session, path: Path):
    place(session, 1)
    with worker(path, "zombie") as process:
        begin(process)
        assert process.stdout.readline() == "there\n"
        time.sleep(SHORT_MS / 1000)
        finish(session, lambda: idle(session), bill)  # its event is handled elsewhere
        before, head = session.list_events(100), session.head
        tell(process)
        assert process.stdout.readline() == "lease_expired\n"
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(5) == 0
    assert [b.id for b in session.query().entities(Bill).collect()] == ["o0"]
    assert (session.list_events(100), session.head) == (before, head)
    (claim,) = bus(session).claims(before[-1].id)
    assert (claim.session_id, claim.attempts) == (session.session_id, 1)


# Side by side


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_workers_share_a_file_and_do_everything_once(session: Session, path: Path, workers: int):
    count = 10_000
    place(session, count)
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(path, "drain")) for _ in range(workers)]
        begin(*processes)
        handled = [int(process.stdout.readline()) for process in processes]
        assert [process.wait() for process in processes] == [0] * workers
    assert sum(handled) == 2 * count, "by two handlers"
    assert all(handled), "each worker had its share"
    left = [e.payload for e in session.list_events(100_000) if e.type == "counted"]
    runs = Counter((p["by"].split()[0], p["order_id"]) for p in left)
    assert runs == Counter((h, f"o{n}") for h in ("one", "two") for n in range(count))
    assert idle(session)
    records = bus(session).sessions()
    assert sorted(s.metadata["pid"] for s in records) == sorted(p.pid for p in processes)
    assert all(s.stopped_at for s in records)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_batch(session: Session, path: Path, number: signal.Signals):
    place(session, 10)
    with worker(path, "slow") as process:
        begin(process)
        started = [process.stdout.readline().strip() for _ in range(2)]
        process.send_signal(number)
        rest = process.stdout.read().split()
        assert process.wait() == 0
    assert rest == ["stopped"], "what ran was finished, nothing else was started"
    found = session.query().entities(Bill).collect()
    assert sorted(b.id for b in found) == started == ["o0", "o1"]
    (record,) = bus(session).sessions()
    assert record.stopped_at is not None
    # The rest was handed back: it is handled at once, and no attempt was used up.
    session.run([bill], until_idle=True)
    assert session.query().entities(Bill).count() == 10
    claims = [bus(session).record(e.id, "bill") for e in bus(session).latest(99)[-10:]]
    assert [c.attempts for c in claims] == [0] * 10


def test_a_second_signal_exits_at_once(session: Session, path: Path):
    place(session, 1)
    with worker(path, "kill-after-commit") as process:
        begin(process)
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)  # the handler is still running
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 128 + signal.SIGTERM


# Waking up


def test_an_idle_worker_notices_the_commit_of_another_process(session: Session, path: Path):
    with worker(path, "slow") as process:
        begin(process)
        until = time.monotonic() + 5
        while not bus(session).sessions() and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.1)  # it looks once, and waits
        waited = time.monotonic()
        place(session, 1)
        assert process.stdout.readline() == "o0\n"
        assert time.monotonic() - waited < 0.5, "well before the next poll, a second later"
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
