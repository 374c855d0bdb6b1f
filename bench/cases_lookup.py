"""Cases that find one entity by its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from random import Random
from typing import Any

from bench import raw
from bench.cases import Bench, Case
from bench.data import Customer, customer_key
from bench.measure import FLAT, Result, Side, repeated
from bench.stores import session
from ontologia import Session

LIMIT = 20.0

Find = Callable[[Session, str, int], Any]


def get_latest(bench: Bench) -> Iterator[Result]:
    """``get(key)``; the time is per lookup.

    Raw: one select of all columns by namespace and key from the current table, and fetchone; the
    statement comes from the driver's cache.
    """
    yield from _lookups(
        bench, "get by key, latest", lambda s, key, _: s.query().entities(Customer).get(key), False
    )


def get_as_of(bench: Bench) -> Iterator[Result]:
    """``as_of(commit).get(key)`` of entities that were changed since; the time is per lookup.

    Raw: one select of the payload by namespace, key and commit interval from the history, and
    fetchone; the payload stays text.
    """
    yield from _lookups(
        bench,
        "get by key, as-of",
        lambda s, key, at: s.query().entities(Customer).as_of(at).get(key),
        True,
    )


def first_latest(bench: Bench) -> Iterator[Result]:
    """``where(pk == key).first()``; the time is per lookup. Raw as for get."""
    yield from _lookups(
        bench,
        "first by key, latest",
        lambda s, key, _: s.query().entities(Customer).where(Customer.id == key).first(),
        False,
    )


def first_as_of(bench: Bench) -> Iterator[Result]:
    """``as_of(commit).where(pk == key).first()``; the time is per lookup. Raw as for get."""
    yield from _lookups(
        bench,
        "first by key, as-of",
        lambda s, key, at: s.query().entities(Customer).as_of(at).where(Customer.id == key).first(),
        True,
    )


def _lookups(bench: Bench, label: str, find: Find, past: bool) -> Iterator[Result]:
    """Both sizes in turns, each on one file that both sides read."""
    sizes = bench.sizes
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for stored in (sizes.small, sizes.large):
            path = bench.stores.customers(stored)
            target = stack.enter_context(closing(session(path)))
            connection = stack.enter_context(closing(raw.connect(path)))
            # Every tenth customer was changed, in commits after this one.
            at = 1 + -(-stored // 10_000)
            keys = [customer_key(i) for i in _picked(stored, sizes.lookups)]
            sides[f"ours {stored}"] = repeated(_ours(target, find, keys, at))
            sides[f"raw {stored}"] = repeated(_raw(connection, keys, at if past else None))
            _check(target, connection, find, keys[0], at, past)
        found = bench.clock.best(sides, operations=sizes.lookups)
    for stored in (sizes.small, sizes.large):
        grown = stored == sizes.large
        yield Result(
            f"{label}, {stored:,} stored",
            found[f"ours {stored}"],
            found[f"raw {stored}"],
            LIMIT,
            growth=found[f"ours {stored}"] / found[f"ours {sizes.small}"] if grown else None,
            raw_growth=found[f"raw {stored}"] / found[f"raw {sizes.small}"] if grown else None,
            growth_limit=FLAT if grown else None,
        )


def _picked(stored: int, n: int) -> list[int]:
    random = Random(7)
    return [random.randrange(stored // 10) * 10 for _ in range(n)]


def _ours(target: Session, find: Find, keys: list[str], at: int) -> Callable[[], None]:
    def act() -> None:
        for key in keys:
            find(target, key, at)

    return act


def _raw(connection: Any, keys: list[str], at: int | None) -> Callable[[], None]:
    def latest() -> None:
        for key in keys:
            connection.execute(raw.SELECT_ONE, (raw.NAMESPACE, key)).fetchone()

    def as_of() -> None:
        for key in keys:
            connection.execute(raw.SELECT_ONE_AS_OF, (raw.NAMESPACE, key, at, at)).fetchone()

    return latest if at is None else as_of


def _check(target: Session, connection: Any, find: Find, key: str, at: int, past: bool) -> None:
    found = find(target, key, at)
    assert found is not None
    assert found.id == key
    assert (found.note == "changed") is not past
    if past:
        (text, _) = connection.execute(
            raw.SELECT_ONE_AS_OF, (raw.NAMESPACE, key, at, at)
        ).fetchone()
        assert '"changed"' not in text


CASES: dict[str, Case] = {
    "get by key, latest": get_latest,
    "get by key, as-of": get_as_of,
    "first by key, latest": first_latest,
    "first by key, as-of": first_as_of,
}
