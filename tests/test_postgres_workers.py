"""Worker processes on one PostgreSQL database, killed at random."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from support import counting_worker, postgres
from support.counting_worker import Counted, Tally
from support.events import Bus

import ontologia
from ontologia import Session

TESTS, SOURCE = Path(__file__).parent, Path(ontologia.__file__).parents[1]
EVENTS, WORKERS, KILLS = 20_000, 8, 8


def start(uri: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, counting_worker.__file__, uri],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"},
    )


def test_workers_that_are_killed_lose_nothing_and_do_nothing_twice():
    uri, dice = postgres.new_uri(), random.Random(8)
    with Session(uri, entity_types=[Tally]) as session:
        for first in range(0, EVENTS, 1000):
            session.commit(event=[Counted(n=n) for n in range(first, first + 1000)])
        bus = Bus(session._store, session.namespace)
        workers = [start(uri) for _ in range(WORKERS)]
        try:
            for worker in workers:
                assert worker.stdout.readline() == "ready\n"
            killed, deadline = 0, time.monotonic() + 240
            while left(session) and time.monotonic() < deadline:
                time.sleep(0.5)
                if killed < KILLS:
                    place, killed = dice.randrange(WORKERS), killed + 1
                    workers[place].kill()
                    workers[place].communicate()
                    workers[place] = start(uri)
        finally:
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.communicate()
        assert left(session) == 0
        assert killed == KILLS
        tallies = session.query().entities(Tally).with_history().collect()
        assert Counter(t.n for t in tallies) == dict.fromkeys(range(0, EVENTS, 10), 1)
        assert {t.times for t in tallies} == {1}
        types = Counter(e.type for e in session.list_events(100_000))
        assert types == {"counted": EVENTS, "seen": EVENTS // 10}
        assert bus.dead_letters(10) == []
        assert session.verify().ok


def left(session: Session) -> int:
    """How many events are not finished."""
    stats = session.stats().handlers
    known = [h for h in stats if h.type == "counted"]
    return sum(h.pending + h.claimed for h in known) if known else EVENTS
