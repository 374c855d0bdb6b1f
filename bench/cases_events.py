"""Cases of the event bus."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic_ns, perf_counter, sleep
from typing import Any

from bench import raw, raw_events
from bench.cases import Bench, Case
from bench.data import Customer, OrderPlaced, Plain, chunks, customer
from bench.measure import FLAT, Action, Result, Side
from bench.stores import session
from ontologia import HandlerContext, Session, on_event

_CLAIM_LIMIT = 100


def _orders(n: int) -> list[Plain]:
    return [{"order_id": f"o{i}", "total": i * 1.5} for i in range(n)]


def _customer(order: Plain) -> Plain:
    return customer(int(order["order_id"][1:]))


def _ensure(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.ensure(Customer(**customer(int(ctx.event.order_id[1:]))))


@on_event(OrderPlaced)
def trivial(ctx: HandlerContext[OrderPlaced]) -> None:
    _ = ctx.event.total


@on_event(OrderPlaced)
def with_final_commit(ctx: HandlerContext[OrderPlaced]) -> None:
    _ensure(ctx)
    ctx.commit(final=True)


@on_event(OrderPlaced)
def with_commit(ctx: HandlerContext[OrderPlaced]) -> None:
    _ensure(ctx)
    ctx.commit()


def _side(bench: Bench, start: Path, open_: Callable[[Path], Any], act: Any) -> Side:
    """Act on a fresh copy of a store."""

    @contextmanager
    def side() -> Iterator[Sequence[Action]]:
        path = bench.stores.copy(start)
        with closing(open_(path)) as opened:
            yield act(opened)
        bench.stores.remove(path)

    return side


def enqueue_singles(bench: Bench) -> Iterator[Result]:
    """Commit events one by one; the time is per commit.

    Raw, per event: one transaction that inserts the event, its payload encoded with orjson, under
    a new UUIDv7.
    """
    n = bench.sizes.singles
    plain = _orders(n)
    parts = list(chunks(plain, n // 20))

    def ours(target: Session) -> list[Action]:
        def step(part: Sequence[Plain]) -> None:
            for order in part:
                target.commit(event=OrderPlaced(**order))

        return [partial(step, part) for part in parts]

    def floor(connection: Any) -> list[Action]:
        def step(part: Sequence[Plain]) -> None:
            for order in part:
                raw_events.enqueue_one(connection, order)

        return [partial(step, part) for part in parts]

    yield bench.clock.versus(
        "enqueue, one commit each",
        1.5,
        _side(bench, bench.stores.empty, session, ours),
        _side(bench, bench.stores.empty, raw.connect, floor),
        operations=n,
    )


def enqueue_batches(bench: Bench) -> Iterator[Result]:
    """Commit events in batches of 100, from objects that are built already.

    Raw: one transaction per batch that inserts its events with one executemany.
    """
    n = bench.sizes.events
    plain = list(chunks(_orders(n), 100))
    objects = [[OrderPlaced(**order) for order in part] for part in plain]

    def ours(target: Session) -> list[Action]:
        return [lambda: [target.commit(event=part) for part in objects]]

    def floor(connection: Any) -> list[Action]:
        return [lambda: [raw_events.enqueue(connection, part) for part in plain]]

    yield bench.clock.versus(
        f"enqueue {n:,} in batches of 100",
        2,
        _side(bench, bench.stores.empty, session, ours),
        _side(bench, bench.stores.empty, raw.connect, floor),
    )


def _waiting(bench: Bench, n: int) -> Path:
    """A store with events that nobody has handled."""
    path = bench.stores.copy(bench.stores.empty)
    with closing(raw.connect(path)) as connection:
        raw_events.enqueue(connection, _orders(n))
        raw_events.register(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def process_trivial(bench: Bench) -> Iterator[Result]:
    """Run a handler that reads a field, on events that wait; one worker, until idle.

    Raw: transactions that claim 100 events each with a token and a lease, payloads decoded with
    orjson, and one transaction that acknowledges the 100.
    """
    n = bench.sizes.events
    start = _waiting(bench, n)
    yield bench.clock.versus(
        f"process {n:,} events, trivial handler",
        4,
        _side(bench, start, session, lambda s: [partial(s.run, [trivial], until_idle=True)]),
        _side(
            bench,
            start,
            raw.connect,
            lambda c: [partial(raw_events.process, c, _CLAIM_LIMIT, lambda order: order["total"])],
        ),
    )
    bench.stores.remove(start)


def process_state(bench: Bench) -> Iterator[Result]:
    """Run a handler that ensures one new entity and commits.

    Raw: claims of 100 events; per event one transaction that reads the last commit id, inserts
    the commit row, the current row and the version, and acknowledges. Without ``final=True`` our
    side needs further transactions for the acknowledgements.
    """
    n = bench.sizes.state_events
    start = _waiting(bench, n)
    sides = {
        "ours final": _side(bench, start, session, _running(with_final_commit)),
        "ours": _side(bench, start, session, _running(with_commit)),
        "raw": _side(
            bench,
            start,
            raw.connect,
            lambda c: [partial(raw_events.process_state, c, _CLAIM_LIMIT, _customer)],
        ),
    }
    found = bench.clock.best(sides)
    case = f"process {n:,} events, handler commits an entity"
    yield Result(f"{case}, final=True", found["ours final"], found["raw"], 2)
    yield Result(case, found["ours"], found["raw"])
    bench.stores.remove(start)


def _running(handler: Any) -> Callable[[Session], list[Action]]:
    return lambda target: [partial(target.run, [handler], until_idle=True)]


@contextmanager
def _worker(target: Session) -> Iterator[Callable[[], float]]:
    """A run in another thread; gives a function that commits an event and times its handling."""
    started: list[float] = []
    there = threading.Event()

    @on_event(OrderPlaced, handler_id="waked")
    def waked(ctx: HandlerContext[OrderPlaced]) -> None:
        started.append(perf_counter())
        there.set()

    def once() -> float:
        there.clear()
        target.commit(event=OrderPlaced(order_id="o1", total=1.5))
        committed = perf_counter()
        there.wait()
        return started[-1] - committed

    thread = threading.Thread(target=target.run, args=([waked],))
    thread.start()
    try:
        yield once
    finally:
        target.stop()
        thread.join()


def wake_same_process(bench: Bench) -> Iterator[Result]:
    """From the return of commit() until the handler starts in an idle run of another thread.

    The median; negative if the handler is faster than the return.
    """
    path = bench.stores.copy(bench.stores.empty)
    with closing(session(path)) as target, _worker(target) as once:
        once()
        times = []
        for _ in range(bench.sizes.wakes):
            sleep(random.uniform(0.01, 0.03))
            times.append(once())
    bench.stores.remove(path)
    median = max(statistics.median(times), 0.0)
    yield Result("wake-up, same process (median)", median, at_most=0.003)


_OTHER = """
import sys, time
from bench.data import OrderPlaced
from bench.stores import session
from pathlib import Path
from ontologia import on_event

@on_event(OrderPlaced, handler_id="waked")
def waked(ctx):
    print(time.monotonic_ns(), flush=True)

print("ready", flush=True)
session(Path(sys.argv[1])).run([waked])
"""


def wake_other_process(bench: Bench) -> Iterator[Result]:
    """From the return of commit() until the handler starts in an idle process; the median."""
    path = bench.stores.copy(bench.stores.empty)
    place = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(place)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as child,
        closing(session(path)) as target,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        times = []
        for i in range(bench.sizes.wakes + 1):
            sleep(random.uniform(0.05, 0.1))
            target.commit(event=OrderPlaced(order_id=f"o{i}", total=1.5))
            committed = monotonic_ns()
            times.append((int(child.stdout.readline()) - committed) / 1e9)
        child.terminate()
    bench.stores.remove(path)
    yield Result("wake-up, another process (median)", statistics.median(times[1:]), at_most=0.030)


def flat(bench: Bench) -> Iterator[Result]:
    """Enqueue one event and have it handled by a run in another thread, by how many are done.

    The time is from the start of the commit to the start of the handler; growth is against a
    store without acknowledged events. Raw: one transaction enqueues, one claims.
    """
    counts = (0, bench.sizes.small, bench.sizes.large)
    n = max(bench.sizes.singles // 20, 20)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for stored in counts:
            start = bench.stores.copy(bench.stores.empty)
            with closing(raw.connect(start)) as connection:
                connection.execute("PRAGMA synchronous = OFF")
                raw_events.fill_acked(connection, ("waked", raw_events.HANDLER), stored)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            other = bench.stores.copy(start)
            for path in (start, other):
                stack.callback(bench.stores.remove, path)
            target = stack.enter_context(closing(session(start)))
            once = stack.enter_context(_worker(target))
            sides[f"ours {stored}"] = _repeated(once, n)
            floor = stack.enter_context(closing(raw.connect(other)))
            sides[f"raw {stored}"] = _repeated(partial(_raw_once, floor), n)
        os.sync()
        found = bench.clock.best(sides, operations=n)
    for stored in counts:
        yield Result(
            f"one event enqueued and handled, {stored:,} acknowledged",
            found[f"ours {stored}"],
            found[f"raw {stored}"],
            growth=found[f"ours {stored}"] / found["ours 0"] if stored else None,
            raw_growth=found[f"raw {stored}"] / found["raw 0"] if stored else None,
            growth_limit=FLAT if stored else None,
        )


def _raw_once(connection: Any) -> None:
    raw_events.enqueue_one(connection, {"order_id": "o1", "total": 1.5})
    raw_events.claim(connection, _CLAIM_LIMIT)


def _repeated(once: Callable[[], object], n: int) -> Side:
    @contextmanager
    def side() -> Iterator[Sequence[Action]]:
        def ten() -> None:
            for _ in range(n // 10):
                once()

        yield [ten] * 10

    return side


CASES: dict[str, Case] = {
    "enqueue singles": enqueue_singles,
    "enqueue batches": enqueue_batches,
    "process events, trivial handler": process_trivial,
    "process events, handler commits": process_state,
    "wake-up in the same process": wake_same_process,
    "wake-up in another process": wake_other_process,
    "one event by acknowledged events": flat,
}
