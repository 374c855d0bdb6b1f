"""Real processes on one file: killed at any moment, or writing side by side."""

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from support import writer
from support.writer import Order, Stock, write

import ontologia
from ontologia import Session

SIZE = 20
TESTS, SOURCE = Path(__file__).parent, Path(ontologia.__file__).parents[1]


@contextmanager
def writing(path: Path, name: str, count: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A writer that has opened the store and waits for a line to begin."""
    with subprocess.Popen(
        [sys.executable, writer.__file__, str(path), name, str(count), str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()


def kill_after(process: subprocess.Popen[str], commits: int) -> list[int]:
    """Kill -9 right after that many commits were acknowledged; all that were."""
    acknowledged = [int(process.stdout.readline()) for _ in range(commits)]
    process.kill()
    # What the writer printed before it died was acknowledged too; a torn last line was not.
    rest = process.stdout.read().split("\n")[:-1]
    return acknowledged + [int(line) for line in rest]


def check_whole(session: Session) -> int:
    """Every commit has all of its changes and its event; the number of commits."""
    commits = session.list_commits(limit=100_000)
    ids = [c.commit_id for c in commits]
    assert ids == list(range(len(ids), 0, -1))
    events = {e.commit_id: e for e in session.list_events(limit=100_000)}
    assert sorted(events) == sorted(ids)
    for commit_id in ids:
        keys = [c["key"] for c in session.list_commit_changes(commit_id) if c["type"] == "Order"]
        assert len(session.list_commit_changes(commit_id)) == SIZE + 1
        assert keys == [events[commit_id].payload["order_id"]]
    assert session.query().entities(Order).count() == len(ids)
    report = session.verify()
    assert report.ok, report.problems
    return len(ids)


def test_a_killed_writer_loses_nothing_and_leaves_nothing_half_done(tmp_path: Path):
    path = tmp_path / "app.db"
    moments = random.Random(7)
    acknowledged: list[int] = []
    for n in range(5):
        with writing(path, f"w{n}") as process:
            begin(process)
            acknowledged += kill_after(process, commits=moments.randint(0, 12))
        with Session(str(path), entity_types=[Stock, Order]) as session:
            before = check_whole(session)
            assert set(acknowledged) <= set(range(1, before + 1))
            # A new session can write at once.
            assert write(session, f"after{n}", 0, SIZE) == before + 1
            acknowledged.append(before + 1)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_writer_killed_among_others_does_not_stop_them(tmp_path: Path):
    path = tmp_path / "app.db"
    with writing(path, "steady", count=40) as steady, writing(path, "victim") as victim:
        for process in (steady, victim):
            begin(process)
        killed = kill_after(victim, commits=5)
        survived = [int(line) for line in steady.stdout]
        assert steady.wait() == 0
    assert len(survived) == 40
    assert not set(survived) & set(killed)
    with Session(str(path), entity_types=[Stock, Order]) as session:
        assert check_whole(session) >= len(survived) + len(killed)


def test_processes_write_side_by_side(tmp_path: Path):
    path, count = tmp_path / "app.db", 25
    with ExitStack() as stack:
        processes = [stack.enter_context(writing(path, f"p{n}", count)) for n in range(4)]
        for process in processes:
            begin(process)
        ids = [[int(line) for line in process.stdout] for process in processes]
        assert [process.wait() for process in processes] == [0] * 4
    for own in ids:
        assert own == sorted(own)
    assert sorted(i for own in ids for i in own) == list(range(1, 4 * count + 1))
    with Session(str(path), entity_types=[Stock, Order]) as session:
        assert check_whole(session) == 4 * count
        assert session.query().entities(Stock).count() == 4 * SIZE
        assert session.query().entities(Stock).with_history().count() == 4 * SIZE * count
        assert len({c.session_id for c in session.list_commits(limit=1000)}) == 4
