"""Workers in processes of their own, on one file: killed, stopped, or side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import bus_worker
from support.bus_worker import Bill, Billed, Placed, Receipt, bill, receipt
from support.events import Bus

import ontologia
from ontologia import Session

TESTS, SOURCE = Path(__file__).parent, Path(ontologia.__file__).parents[1]


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


def begin(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def place(session: Session, count: int) -> None:
    session.commit(event=[Placed(order_id=f"o{n}") for n in range(count)])


def of_type(session: Session, event_type: str) -> list[str]:
    found = [e for e in session.list_events(100_000) if e.type == event_type]
    return sorted(e.payload["order_id"] for e in found)


def test_a_worker_killed_between_commit_and_acknowledgement(tmp_path: Path):
    path = tmp_path / "app.db"
    with Session(str(path)) as session:
        place(session, 3)
        with worker(path, "crash") as process:
            begin(process)
            assert process.stdout.readline() == "committed\n"
            process.kill()
        assert session.query().entities(Bill).count() == 1, "it was killed after its first commit"
        until = time.monotonic() + 10
        while session.query().entities(Receipt).count() < 3 and time.monotonic() < until:
            session.run([bill, receipt], until_idle=True)
            time.sleep(0.01)
        for entity in (Bill, Receipt):
            found = session.query().entities(entity).with_history().collect()
            assert sorted(e.id for e in found) == ["o0", "o1", "o2"], "each effect once"
        assert of_type(session, Billed.__event_type__) == ["o0", "o1", "o2"]
        bus = Bus(session._store, session.namespace)
        claims = [bus.record(e.id, "bill") for e in bus.latest(100) if e.type == "placed"]
        assert all(c.ack_at for c in claims)
        assert sum(c.attempts for c in claims) >= 1, "the crash was an attempt"


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_a_file_and_do_everything_once(tmp_path: Path, workers: int):
    path, count = tmp_path / "app.db", 1000
    with Session(str(path)) as session:
        place(session, count)
        with ExitStack() as stack:
            processes = [stack.enter_context(worker(path, "drain")) for _ in range(workers)]
            begin(*processes)
            handled = [int(process.stdout.readline()) for process in processes]
            assert [process.wait() for process in processes] == [0] * workers
        assert sum(handled) == count
        assert all(handled), "each had its share"
        assert session.head == count, "one commit each"
        assert session.query().entities(Bill).with_history().count() == count
        assert of_type(session, "billed") == sorted(f"o{n}" for n in range(count))
        assert len(session.list_events(100_000)) == 2 * count
        records = Bus(session._store, session.namespace).sessions()
        assert sorted(s.metadata["pid"] for s in records) == sorted(p.pid for p in processes)
        assert all(s.stopped_at for s in records)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_batch(tmp_path: Path, number: signal.Signals):
    path = tmp_path / "app.db"
    with Session(str(path)) as session:
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
        bus = Bus(session._store, session.namespace)
        (record,) = bus.sessions()
        assert record.stopped_at is not None
        # The rest was handed back: it is handled at once, and no attempt was used up.
        session.run([bill], until_idle=True)
        assert session.query().entities(Bill).count() == 10
        claims = [bus.record(e.id, "bill") for e in bus.latest(100) if e.type == "placed"]
        assert [c.attempts for c in claims] == [0] * 10


def test_a_second_signal_exits_at_once(tmp_path: Path):
    path = tmp_path / "app.db"
    with Session(str(path)) as session:
        place(session, 1)
        with worker(path, "crash") as process:
            begin(process)
            assert process.stdout.readline() == "committed\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)  # the handler is still running
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 128 + signal.SIGTERM


def test_an_idle_worker_notices_the_commit_of_another_process(tmp_path: Path):
    path = tmp_path / "app.db"
    with Session(str(path)) as session, worker(path, "slow") as process:
        begin(process)
        bus = Bus(session._store, session.namespace)
        until = time.monotonic() + 5
        while not bus.sessions() and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.1)  # it looks once, and waits
        waited = time.monotonic()
        place(session, 1)
        assert process.stdout.readline() == "o0\n"
        assert time.monotonic() - waited < 0.5, "well before the next poll, a second later"
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
