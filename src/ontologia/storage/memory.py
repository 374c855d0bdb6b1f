"""The reference backend: everything in dicts, simple enough to be obviously right."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from uuid_utils.compat import uuid7

from ontologia.clock import SystemClock
from ontologia.errors import BindError, LockContentionError
from ontologia.model.canonical import loads
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query.plan import Window
from ontologia.storage.base import (
    Addition,
    Capabilities,
    ChangeRecord,
    CommitRecord,
    Replacement,
    SchemaVersion,
    StoredRow,
    StoredSchema,
    StoredType,
    StoredVersion,
    T,
    Transactions,
    TypeId,
)
from ontologia.storage.memory_events import EventLog, MemoryEvents
from ontologia.storage.watch import Signal, Watch


class _Table:
    """One type in one namespace."""

    def __init__(self) -> None:
        # As payloads: the order of fields is a matter of the code, not of the store.
        self.current: dict[Row, tuple[str, int]] = {}
        self.history: dict[Row, list[StoredVersion]] = {}


class MemoryStore:
    """A store that lives as long as the process."""

    capabilities = Capabilities(
        durable=False, concurrent_processes=False, concurrent_reads=False, query_engine=False
    )

    def __init__(self, lock_timeout_ms: int, on_close: Callable[[], None] | None = None) -> None:
        self.users = 0
        """Open sessions of a store that has a name."""

        self._timeout_ms, self._on_close = lock_timeout_ms, on_close
        self._lock = threading.RLock()
        self.signal, self.clock = Signal(), SystemClock()
        self.schema = StoredSchema("")
        self.commits: list[CommitRecord] = []
        self.events = EventLog()
        self.tables: dict[tuple[str, TypeId], _Table] = {}

    @contextmanager
    def _locked(self) -> Generator[None]:
        if not self._lock.acquire(timeout=self._timeout_ms / 1000):
            raise LockContentionError(self._timeout_ms)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def read(self, namespace: str) -> Generator[MemorySnapshot]:
        with self._locked():
            yield MemorySnapshot(self, namespace)

    @contextmanager
    def write(self, namespace: str, *, migrate: bool = False) -> Generator[MemoryTransaction]:
        with self._locked():
            transaction = MemoryTransaction(self, namespace)
            try:
                yield transaction
            except BaseException:
                transaction.undo()
                raise

    def transact(self, namespace: str, body: Callable[[Any], T]) -> T:
        with self.write(namespace) as tx:
            return body(tx)

    def bind(self, connection: object) -> Transactions:
        raise BindError(
            "a datastore in memory has no transactions to take part in.",
            fix="use an SQLite file or PostgreSQL.",
        )

    def watch(self) -> Watch:
        return Watch(self.signal)

    def close(self) -> None:
        if self._on_close is not None:
            self._on_close()


class MemorySnapshot:
    """A view of one namespace; the store's lock keeps it still."""

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace

    def _table(self, type_id: TypeId) -> _Table:
        return self._store.tables.get((self._namespace, type_id)) or _Table()

    def schema(self) -> StoredSchema:
        return self._store.schema

    def head(self) -> int:
        return len(self._store.commits)

    def settled(self) -> None:
        return None

    def engine(self) -> None:
        return None

    def current(self, spec: TypeSpec, keys: Iterable[Row] | None = None) -> list[StoredRow]:
        rows = self._table((spec.kind, spec.name)).current
        wanted = sorted(rows) if keys is None else [key for key in keys if key in rows]
        decode = spec.codec.row_from_json
        return [(*decode(loads(payload)), at) for payload, at in map(rows.__getitem__, wanted)]

    def versions(
        self, stored: StoredType, window: Window, keys: Iterable[Row] | None = None
    ) -> list[StoredVersion]:
        history = self._table((stored.kind, stored.name)).history
        wanted = history if keys is None else [key for key in keys if key in history]
        found = [v for key in wanted for v in history[key] if _visible(v, window)]
        return sorted(found, key=lambda v: (v.commit_id, v.key))

    def commit(self, commit_id: int) -> CommitRecord | None:
        if not 1 <= commit_id <= len(self._store.commits):
            return None
        record = self._store.commits[commit_id - 1]
        return record if record.namespace == self._namespace else None

    def settle(self, commit_id: int) -> None:
        pass  # one transaction at a time

    def commits(self, limit: int, since: int | None) -> list[CommitRecord]:
        own = [c for c in self._store.commits if c.namespace == self._namespace]
        if since is None:
            return own[::-1][:limit]
        return [c for c in own if c.commit_id > since][:limit]

    def commit_at(self, created_at: str) -> int:
        return bisect_right(self._store.commits, created_at, key=lambda c: c.created_at)

    def changes(self, stored: StoredType, after: int, until: int) -> list[ChangeRecord]:
        history = self._table((stored.kind, stored.name)).history
        found = []
        for key in sorted(history):
            written = [v.commit_id for v in history[key] if after < v.commit_id <= until]
            if written:
                found.append(ChangeRecord(key, added=history[key][0].commit_id in written))
        return found

    def census(self, stored: StoredType) -> dict[str, int]:
        return {
            namespace: len(table.current)
            for (namespace, type_id), table in self._store.tables.items()
            if type_id == (stored.kind, stored.name)
        }

    @property
    def events(self) -> MemoryEvents:
        return MemoryEvents(self._store.events, self._namespace)


def _visible(version: StoredVersion, window: Window) -> bool:
    if window.mode == "history":
        ends = window.until is None or version.commit_id <= window.until
        return version.commit_id > window.commit_id and ends
    until = version.until_commit
    return version.commit_id <= window.commit_id and (until is None or until > window.commit_id)


class MemoryTransaction(MemorySnapshot):
    """A write transaction: changes apply at once and are undone on failure."""

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        super().__init__(store, namespace)
        self._undo: list[Callable[[], object]] = []

    def undo(self) -> None:
        for step in reversed(self._undo):
            step()

    def _set_schema(self, types: dict[TypeId, StoredType]) -> None:
        store, before = self._store, self._store.schema
        self._undo.append(lambda: setattr(store, "schema", before))
        store.schema = StoredSchema(str(uuid7()), types)

    # A transaction has the store to itself.

    def lock_types(self) -> None:
        pass

    def lock(self, identities: Mapping[TypeSpec, Collection[Row]]) -> None:
        pass

    def register(self, spec: TypeSpec, created_at: str) -> None:
        version = SchemaVersion(1, spec.fingerprint, spec.document, self.head())
        stored = StoredType(spec.kind, spec.name, (version,), _indexes(spec))
        self._set_schema({**self._store.schema.types, (spec.kind, spec.name): stored})

    def add_indexes(self, spec: TypeSpec) -> None:
        types = dict(self._store.schema.types)
        stored = types[spec.kind, spec.name]
        types[spec.kind, spec.name] = replace(stored, indexes=stored.indexes | _indexes(spec))
        self._set_schema(types)

    def add_commit(
        self, created_at: str, session_id: str, metadata: dict[str, str], types: Sequence[TypeId]
    ) -> int:
        commits = self._store.commits
        if commits:
            created_at = max(created_at, commits[-1].created_at)
        record = CommitRecord(
            len(commits) + 1, self._namespace, created_at, session_id, dict(metadata), list(types)
        )
        size = len(commits)
        # First how to undo it, then the change: an interrupt may come in between.
        self._undo.append(lambda: commits.__delitem__(slice(size, None)))
        commits.append(record)
        return record.commit_id

    def write(
        self,
        spec: TypeSpec,
        schema_version: int,
        commit_id: int,
        added: Sequence[Addition],
        replaced: Sequence[Replacement],
    ) -> None:
        table = self._store.tables.setdefault((self._namespace, (spec.kind, spec.name)), _Table())
        for row, payload in added:
            key = row[: spec.key_size]
            self._undo.append(
                lambda k=key: (table.current.pop(k, None), table.history.pop(k, None))  # type: ignore[misc]
            )
            table.current[key] = (payload, commit_id)
            table.history[key] = [StoredVersion(key, commit_id, None, schema_version, payload)]
        for row, payload, _ in replaced:
            key = row[: spec.key_size]
            self._replace(table, StoredVersion(key, commit_id, None, schema_version, payload))

    def _replace(self, table: _Table, version: StoredVersion) -> None:
        key = version.key
        before_row, before_history = table.current[key], table.history[key]

        def restore() -> None:
            table.current[key], table.history[key] = before_row, before_history

        self._undo.append(restore)
        ended = before_history[-1]._replace(until_commit=version.commit_id)
        table.current[key] = (version.payload, version.commit_id)
        table.history[key] = [*before_history[:-1], ended, version]

    @property
    def events(self) -> MemoryEvents:
        return MemoryEvents(self._store.events, self._namespace, self._undo.append)

    def all_rows(self, stored: StoredType) -> list[tuple[str, StoredVersion]]:
        return [
            (namespace, versions[-1])
            for (namespace, type_id), table in self._store.tables.items()
            if type_id == (stored.kind, stored.name)
            for versions in table.history.values()
        ]

    def replace_type(
        self, spec: TypeSpec, created_at: str, rows: Iterable[tuple[str, StoredRow]]
    ) -> None:
        type_id: TypeId = (spec.kind, spec.name)
        types = dict(self._store.schema.types)
        old = types[type_id]
        version = SchemaVersion(
            old.current.version + 1, spec.fingerprint, spec.document, self.head()
        )
        fresh: dict[str, dict[Row, tuple[str, int]]] = {}
        for namespace, stored_row in rows:
            payload = spec.codec.payload(stored_row[:-1])
            key = stored_row[: spec.key_size]
            fresh.setdefault(namespace, {})[key] = (payload, stored_row[-1])
        types[type_id] = StoredType(spec.kind, spec.name, (*old.versions, version), _indexes(spec))
        self._set_schema(types)
        for namespace, current in fresh.items():
            table = self._store.tables[namespace, type_id]
            self._undo.append(lambda t=table, c=table.current: setattr(t, "current", c))  # type: ignore[misc]
            table.current = current

    def drop(self, stored: StoredType) -> None:
        type_id: TypeId = (stored.kind, stored.name)
        types = dict(self._store.schema.types)
        del types[type_id]
        self._set_schema(types)
        tables = self._store.tables
        for place in [p for p in tables if p[1] == type_id]:
            table = tables[place]
            self._undo.append(lambda p=place, t=table: tables.__setitem__(p, t))  # type: ignore[misc]
            del tables[place]


def _indexes(spec: TypeSpec) -> frozenset[str]:
    return frozenset(f.name for f in spec.fields if f.index)
