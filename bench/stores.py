"""Database files: an empty store as Ontologia makes it, filled and copied as cases need it."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import raw
from bench.data import (
    ENTITY_TYPES,
    RELATION_TYPES,
    Customer,
    Product,
    Purchase,
    Sizes,
    Supplier,
    Supply,
    changed,
    chunks,
    customer,
    customers,
    product,
    purchases,
    supplier,
    supplies,
)
from ontologia import Session

if TYPE_CHECKING:
    from bench.postgres import Databases

_BATCH = 10_000


def session(path: Path) -> Session:
    """A session that knows all types."""
    return Session(str(path), entity_types=ENTITY_TYPES, relation_types=RELATION_TYPES)


class Stores:
    """A directory of stores, made on demand and removed at the end."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._directory = Path(tempfile.mkdtemp(prefix="ontologia-bench-"))
        self._numbers = count()
        self._customers: dict[int, Path] = {}

    def close(self) -> None:
        shutil.rmtree(self._directory)
        if "databases" in self.__dict__:
            self.databases.close()

    @cached_property
    def databases(self) -> Databases:
        """A PostgreSQL server, started when the first case needs it."""
        from bench.postgres import Databases

        return Databases()

    def _new(self) -> Path:
        return self._directory / f"{next(self._numbers)}.db"

    def copy(self, path: Path) -> Path:
        """A copy of a store that nobody has open."""
        return Path(shutil.copyfile(path, self._new()))

    def remove(self, path: Path) -> None:
        """Delete a store, to keep the disk small."""
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    @cached_property
    def empty(self) -> Path:
        """All tables; the one object of each type belongs to another namespace."""
        path = self._new()
        with Session(str(path), "setup") as setup:
            setup.ensure(Customer(**customer(0)))
            setup.ensure(Product(**product(0)))
            setup.ensure(Supplier(**supplier(0)))
            setup.ensure(Purchase(**next(purchases(1, 1, 1))))
            setup.ensure(Supply(**next(supplies(1, 1))))
        return path

    def customers(self, n: int) -> Path:
        """``n`` customers; every tenth was changed by the last commits.

        Written with raw SQL, in commits of 10,000.
        """
        if n not in self._customers:
            path = self._customers[n] = self.copy(self.empty)
            self._fill(path, n)
        return self._customers[n]

    def _fill(self, path: Path, n: int) -> None:
        connection = _quick(path)
        for start in range(0, n, _BATCH):
            raw.add(connection, customers(start, min(n, start + _BATCH)))
        for part in chunks(range(0, n, 10), _BATCH):
            raw.reconcile(connection, [changed(customer(i)) for i in part])
        connection.close()

    @cached_property
    def batch(self) -> Path:
        """As many customers as one commit takes, written by one commit."""
        path = self.copy(self.empty)
        connection = _quick(path)
        raw.add(connection, customers(0, self.sizes.batch))
        connection.close()
        return path

    @cached_property
    def shop(self) -> Path:
        """Customers, and purchases by a tenth of them, of products that have two suppliers."""
        sizes = self.sizes
        path = self.copy(self.empty)
        connection = _quick(path)
        for start in range(0, sizes.table, _BATCH):
            raw.add(connection, customers(start, min(sizes.table, start + _BATCH)))
        connection.close()
        products, suppliers = sizes.table // 50, max(sizes.table // 500, 2)
        bought = purchases(sizes.relations, sizes.table // 10, products)
        with session(path) as target:
            _commit(target, (Product(**product(i)) for i in range(products)))
            _commit(target, (Supplier(**supplier(i)) for i in range(suppliers)))
            _commit(target, (Supply(**s) for s in supplies(products, suppliers)))
            _commit(target, (Purchase(**p) for p in bought))
        return path

    @cached_property
    def versions(self) -> Path:
        """Many commits, each of the same number of changes to a pool ten times as large."""
        sizes = self.sizes
        path = self.copy(self.empty)
        connection = _quick(path)
        state = customers(0, sizes.changes * 10)
        for i in range(sizes.commits):
            start = i % 10 * sizes.changes
            part = range(start, start + sizes.changes)
            if i < 10:
                raw.add(connection, [state[j] for j in part])
            else:
                for j in part:
                    state[j] = changed(state[j])
                raw.reconcile(connection, [state[j] for j in part])
        connection.close()
        return path


def _quick(path: Path) -> sqlite3.Connection:
    """A connection for filling a store: durability can wait."""
    connection = raw.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _commit(target: Session, objects: Iterable[Any]) -> None:
    for part in chunks(objects, _BATCH):
        target.ensure(part)
        target.commit()
