"""The ports that every backend implements, at the level of operations.

A backend stores rows, versions, commits, events and the schema registry. It knows nothing of
sessions, reconciliation or handlers; those talk to it through :class:`Store`.

Promises that every backend keeps:

* A write transaction is all or nothing, and durable when its context ends. Writers of the same
  identities or claims exclude each other, on some backends all writers do; one that waits too
  long raises ``LockContentionError``.
* A snapshot never changes while it is open, and never shows part of a transaction.
* Commit ids start at 1 and grow. Lists of commits and events end before what is still being
  written: who has seen a commit or event never finds a new one before it.
* Everything a transaction or snapshot reads and writes belongs to one namespace, except the schema
  registry, which belongs to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from ontologia.clock import Clock
from ontologia.model.codec import Row
from ontologia.model.spec import Kind, TypeSpec
from ontologia.query.plan import Grouping, Selection, Window
from ontologia.storage.events import EventReader, EventWriter
from ontologia.storage.watch import Signal, Watch

T = TypeVar("T")

TypeId = tuple[Kind, str]
"""What the registry knows a type by: its kind and its name."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do beyond the ports; tests ask these, never for a backend's name."""

    durable: bool
    """What was committed survives the process."""

    concurrent_processes: bool
    """Several processes may use the same store."""

    concurrent_reads: bool
    """A snapshot may stay open while others write; otherwise results are read at once."""

    query_engine: bool
    """Queries run inside the backend; ``explain()`` shows how."""


StoredRow = Row
"""A current row, followed by the id of the commit that wrote it."""


class StoredVersion(NamedTuple):
    """One version out of the history, as it was written."""

    key: Row
    commit_id: int
    until_commit: int | None
    schema_version: int
    payload: str


# Plain tuples: a commit makes one per row.
Addition = tuple[Row, str]
"""A row to write, and its payload for the history."""

Replacement = tuple[Row, str, int]
"""A row to write, its payload, and the commit that wrote the row it replaces."""


class CommitRecord(NamedTuple):
    """A commit as stored, with the types it touched."""

    commit_id: int
    namespace: str
    created_at: str
    session_id: str
    metadata: dict[str, str]
    types: list[TypeId]


class ChangeRecord(NamedTuple):
    """One identity touched by a commit."""

    key: Row
    added: bool


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a type, as the registry holds it."""

    version: int
    fingerprint: str
    description: Mapping[str, Any]
    commit_id: int
    """The last commit before this version came into force."""


@dataclass(frozen=True)
class StoredType:
    """A type in the registry: all its versions, oldest first, and its indexed fields."""

    kind: Kind
    name: str
    versions: tuple[SchemaVersion, ...]
    indexes: frozenset[str] = frozenset()

    @property
    def current(self) -> SchemaVersion:
        """The version that new rows are written in."""
        return self.versions[-1]


@dataclass(frozen=True)
class StoredSchema:
    """The whole registry at one moment; ``epoch`` is another text after every change."""

    epoch: str
    types: Mapping[TypeId, StoredType] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """How a query runs: the statement, its parameters, and the backend's plan."""

    sql: str
    parameters: tuple[Any, ...]
    plan: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {step}" for step in self.plan)
        return f"{self.sql}\nparameters: {list(self.parameters)!r}\nplan:\n{steps}"


class EngineDeclinedError(Exception):
    """A query engine could not finish a plan exactly; the evaluator takes over."""


class QueryEngine(Protocol):
    """Plans executed inside the backend, on rows that all have the current schema."""

    def one(self, spec: TypeSpec, window: Window, key: Row) -> Any:
        """The object with an identity, now or as of a commit; None if there is none."""
        ...

    def objects(self, plan: Selection) -> Iterator[list[Any]]:
        """The objects of a selection, in chunks, in order."""
        ...

    def groups(self, plan: Grouping) -> list[tuple[Any, ...]]:
        """Decoded keys and measures of a grouping, ordered by the keys, nulls first."""
        ...

    def explain(self, plan: Selection | Grouping) -> Explanation:
        """The statement and the plan, without running it."""
        ...


class Snapshot(Protocol):
    """A consistent view of one namespace."""

    def schema(self) -> StoredSchema:
        """The registry."""
        ...

    def head(self) -> int:
        """The id of the newest commit of the store, 0 if there is none."""
        ...

    def settle(self, commit_id: int) -> None:
        """Wait until no commit before this one is still being written: the past is complete."""
        ...

    def settled(self) -> int | None:
        """The newest commit that no commit can still appear before; None: no bound is needed."""
        ...

    def engine(self) -> QueryEngine | None:
        """The backend's own query engine, if it has one."""
        ...

    def current(self, spec: TypeSpec, keys: Iterable[Row] | None = None) -> Iterable[StoredRow]:
        """Current rows, in key order if ``keys`` is None; one read however many keys."""
        ...

    def versions(
        self, stored: StoredType, window: Window, keys: Iterable[Row] | None = None
    ) -> Iterable[StoredVersion]:
        """Versions of a type that a window (never ``latest``) shows."""
        ...

    def commit(self, commit_id: int) -> CommitRecord | None:
        """One commit of this namespace."""
        ...

    def commits(self, limit: int, since: int | None) -> list[CommitRecord]:
        """Newest first; with ``since``, those after it, oldest first."""
        ...

    def commit_at(self, created_at: str) -> int:
        """The newest commit at or before a time, 0 if there is none."""
        ...

    def changes(self, stored: StoredType, after: int, until: int) -> list[ChangeRecord]:
        """Identities of a type written by commits in ``(after, until]``, in key order."""
        ...

    def census(self, stored: StoredType) -> dict[str, int]:
        """The number of identities of a type in every namespace."""
        ...

    @property
    def events(self) -> EventReader:
        """The events of the namespace."""
        ...


class Transaction(Snapshot, Protocol):
    """A write transaction on one namespace."""

    def lock_types(self) -> None:
        """Keep others from registering types until the end; look at the schema again after it."""
        ...

    def lock(self, identities: Mapping[TypeSpec, Collection[Row]]) -> None:
        """Keep others from writing these identities until the end; read them after it."""
        ...

    def register(self, spec: TypeSpec, created_at: str) -> None:
        """Add a new type to the registry, as version 1, and make room for its rows."""
        ...

    def add_indexes(self, spec: TypeSpec) -> None:
        """Create the indexes that the spec asks for and the store lacks."""
        ...

    def add_commit(
        self, created_at: str, session_id: str, metadata: dict[str, str], types: Sequence[TypeId]
    ) -> int:
        """Record a commit and return its id; its time never precedes that of an earlier one."""
        ...

    def write(
        self,
        spec: TypeSpec,
        schema_version: int,
        commit_id: int,
        added: Sequence[Addition],
        replaced: Sequence[Replacement],
    ) -> None:
        """Write rows and their versions, and end the versions that were replaced."""
        ...

    @property
    def events(self) -> EventWriter:
        """The events of the namespace, and their delivery."""
        ...

    def all_rows(self, stored: StoredType) -> Iterable[tuple[str, StoredVersion]]:
        """The newest version of every identity in every namespace, with its namespace."""
        ...

    def replace_type(
        self, spec: TypeSpec, created_at: str, rows: Iterable[tuple[str, StoredRow]]
    ) -> None:
        """Install a new version of a type together with its upgraded current rows."""
        ...

    def drop(self, stored: StoredType) -> None:
        """Remove a type, its rows and its history, in every namespace."""
        ...


class Transactions(Protocol):
    """What reading and committing need: of a store, or of a connection that a caller lends."""

    capabilities: Capabilities

    @property
    def signal(self) -> Signal:
        """Tells this process of changes that somebody may wait for."""
        ...

    def read(self, namespace: str) -> AbstractContextManager[Snapshot]:
        """Open a snapshot."""
        ...

    def transact(self, namespace: str, body: Callable[[Transaction], T]) -> T:
        """Run a function in a write transaction, again if it met a passing fault.

        It may be called several times, and takes effect once.
        """
        ...


class Store(Transactions, Protocol):
    """A datastore."""

    def watch(self) -> Watch:
        """A way to wait for changes, also those of other processes."""
        ...

    def write(
        self, namespace: str, *, migrate: bool = False
    ) -> AbstractContextManager[Transaction]:
        """Open a write transaction: committed on a clean exit, otherwise undone.

        One that replaces or drops types says so, and has the store to itself.
        """
        ...

    def bind(self, connection: object) -> Transactions:
        """Transactions that are parts of the one open on a connection to the same database.

        Each takes effect with the caller's transaction, or is undone alone if it fails. Nothing
        is ever committed, rolled back or closed for the caller. Raises BindError.
        """
        ...

    @property
    def clock(self) -> Clock:
        """The clock that leases go by."""
        ...

    def close(self) -> None:
        """Release what the store holds; idempotent."""
        ...
