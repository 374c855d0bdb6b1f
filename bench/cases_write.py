"""Cases that write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench import raw
from bench.cases import Bench, Case
from bench.data import Customer, Plain, changed, chunks, customer, customers
from bench.measure import FLAT, Action, Result, Side
from bench.stores import session
from ontologia import Session

Steps = Callable[[Any], Sequence[Action]]
"""What to do with an open session or connection."""


def _side(bench: Bench, start: Path, open_: Callable[[Path], Any], act: Steps, left: Any) -> Side:
    """Act on a fresh copy of a store; note once what it leaves there."""

    @contextmanager
    def side() -> Iterator[Sequence[Action]]:
        path = bench.stores.copy(start)
        with closing(open_(path)) as opened:
            yield act(opened)
        if not left:
            left.append(raw.content(path))
        bench.stores.remove(path)

    return side


def _contest(
    bench: Bench, label: str, start: Path, ours: Steps, floor: Steps, operations: int = 1
) -> Result:
    by_ours: list[Any] = []
    by_raw: list[Any] = []
    result = bench.clock.versus(
        label,
        1.5,
        _side(bench, start, session, ours, by_ours),
        _side(bench, start, raw.connect, floor, by_raw),
        operations=operations,
    )
    assert by_ours == by_raw, f"{label}: both sides must leave the same rows"
    return result


def _ensure(target: Session, objects: Iterable[Customer] | Customer) -> None:
    target.ensure(objects)
    target.commit()


def _one_by_one(run: Sequence[Any], act: Callable[[Any], None], steps: int) -> list[Action]:
    """The run in as many steps, each of which acts on its items one by one."""

    def step(part: Sequence[Any]) -> Action:
        def action() -> None:
            for item in part:
                act(item)

        return action

    return [step(part) for part in chunks(run, len(run) // steps)]


def commit_new(bench: Bench) -> Iterator[Result]:
    """Ensure and commit new entities in one commit.

    Raw, starting from dicts of the same values: one transaction that reads the last commit id,
    inserts the commit row, formats the datetime, encodes the payload with orjson, and inserts the
    current rows and the versions with one executemany each. It does not look for stored rows.
    """
    n = bench.sizes.batch
    plain = customers(0, n)
    objects = [Customer(**p) for p in plain]
    yield _contest(
        bench,
        f"commit {n:,} new entities",
        bench.stores.empty,
        lambda target: [partial(_ensure, target, objects)],
        lambda connection: [partial(raw.add, connection, plain)],
    )


def unchanged(bench: Bench) -> Iterator[Result]:
    """Ensure and commit what is stored already; nothing is written.

    Raw: one transaction that reads the stored rows of all keys with one statement (keys bound as
    one JSON array), formats the datetime, compares row by row, and ends the transaction.
    """
    yield _reconciled(bench, "unchanged", 0)


def some_changed(bench: Bench) -> Iterator[Result]:
    """Ensure and commit what is stored already, a tenth of it with two other values.

    Raw: reads and compares as for unchanged; then inserts the commit row, updates the current
    rows, ends the versions before, and inserts the new ones with one executemany each.
    """
    yield _reconciled(bench, "with 10 % changed", 10)


def _reconciled(bench: Bench, what: str, every: int) -> Result:
    n = bench.sizes.batch
    start = bench.stores.batch
    plain = [changed(p) if every and i % every == 0 else p for i, p in enumerate(customers(0, n))]
    objects = [Customer(**p) for p in plain]
    return _contest(
        bench,
        f"re-ensure {n:,} {what}",
        start,
        lambda target: [partial(_ensure, target, objects)],
        lambda connection: [partial(raw.reconcile, connection, plain)],
    )


def singles(bench: Bench) -> Iterator[Result]:
    """Commit new entities one by one; the time is per commit.

    Raw, per entity: one transaction that reads the last commit id and inserts the commit row, the
    current row and the version with one statement each. It does not look for a stored row.
    """
    n = bench.sizes.singles
    plain = customers(0, n)
    objects = [Customer(**p) for p in plain]
    yield _contest(
        bench,
        f"{n:,} single-entity commits",
        bench.stores.empty,
        lambda target: _one_by_one(objects, partial(_ensure, target), 20),
        lambda connection: _one_by_one(plain, partial(raw.add_one, connection), 20),
        operations=n,
    )


def growing(bench: Bench) -> Iterator[Result]:
    """Commit one new entity to an empty store, to a small and to a large one.

    Keys fall between the stored ones. The time is per commit, over runs that begin with an empty
    WAL and are long enough to contain a checkpoint; growth is against the store that was empty.
    Raw does the same as for single-entity commits, on a file of its own.
    """
    counts = (0, bench.sizes.small, bench.sizes.large)
    n = bench.sizes.singles // 4
    kinds: tuple[tuple[str, Any, Any, Any], ...] = (
        ("ours", session, lambda plain: Customer(**plain), _ensure),
        ("raw", raw.connect, dict, raw.add_one),
    )
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for stored in counts:
            for name, open_, make, act in kinds:
                path = bench.stores.copy(bench.stores.customers(stored))
                stack.callback(bench.stores.remove, path)
                opened = stack.enter_context(closing(open_(path)))
                runs = _between(stored, n, make)
                sides[f"{name} {stored}"] = _runs(path, runs, partial(act, opened))
        os.sync()  # the copies are on their way to the disk that the commits will wait for
        found = bench.clock.best(sides, operations=n)
    for stored in counts:
        yield Result(
            f"one-entity commit, {stored:,} stored",
            found[f"ours {stored}"],
            found[f"raw {stored}"],
            growth=found[f"ours {stored}"] / found["ours 0"] if stored else None,
            raw_growth=found[f"raw {stored}"] / found["raw 0"] if stored else None,
            growth_limit=FLAT if stored else None,
        )


def _between(stored: int, n: int, make: Callable[[Plain], Any]) -> Iterator[list[Any]]:
    """Runs of new customers spread over the stored ones, each run with keys of its own."""
    step = max(stored // n, 1)
    for run in count():
        plain = [customer(i * step) for i in range(n)]
        yield [make({**c, "id": f"{c['id']}-{run}"}) for c in plain]


def _runs(path: Path, runs: Iterator[list[Any]], act: Callable[[Any], None]) -> Side:
    """A side whose every round takes the next run, and starts with an empty WAL."""

    @contextmanager
    def side() -> Iterator[Sequence[Action]]:
        raw.checkpoint(path)
        yield _one_by_one(next(runs), act, 10)

    return side


CASES: dict[str, Case] = {
    "commit new entities": commit_new,
    "re-ensure unchanged": unchanged,
    "re-ensure with 10 % changed": some_changed,
    "single-entity commits": singles,
    "one-entity commit by stored entities": growing,
}
