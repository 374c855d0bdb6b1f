"""Session: the facade that users hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath, getpid
from socket import gethostname
from types import TracebackType
from typing import Any, Literal, Self, overload

from uuid_utils.compat import uuid7

from ontologia.bound import BoundSession
from ontologia.bus.admin import Events, Stats
from ontologia.bus.context import CURRENT, Ambient, HandlerContext
from ontologia.bus.handlers import collect
from ontologia.bus.hooks import EventHooks
from ontologia.bus.loop import Loop
from ontologia.bus.runtime import Runtime
from ontologia.bus.scheduler import Scheduler
from ontologia.bus.schedules import Schedule
from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import (
    BindError,
    ConfigError,
    SchemaOutdatedError,
    SessionClosedError,
)
from ontologia.model import Entity, Event, Relation
from ontologia.model.canonical import datetime_text, text
from ontologia.query.builder import Query
from ontologia.state.commit import Committer, UnitOfWork, outgoing
from ontologia.state.events import StoredEvent
from ontologia.state.history import Commit, Diff, History
from ontologia.state.migration import (
    DropPreview,
    MigrationPreview,
    MigrationResult,
    Migrator,
    find_type,
)
from ontologia.state.reading import Reader
from ontologia.state.schema import Types
from ontologia.state.upgrades import Upgraders
from ontologia.state.verify import VerifyReport, verify
from ontologia.storage.base import Capabilities, Transactions
from ontologia.storage.events import SessionRecord
from ontologia.storage.uri import open_store

Stateful = Entity | Relation[Any, Any]


class Session:
    """A datastore, seen through one namespace.

    >>> with Session("sqlite:///app.db") as session:
    ...     session.ensure(Customer(id="c1", name="Ada"))

    As a context manager it commits on a clean exit and discards on an exception. It may be used
    from several threads: what a thread queues belongs to that thread's next commit.
    """

    def __init__(
        self,
        datastore_uri: str | PathLike[str],
        namespace: str | None = None,
        *,
        entity_types: Iterable[type[Entity]] | None = None,
        relation_types: Iterable[type[Relation[Any, Any]]] | None = None,
        instance_metadata: dict[str, Any] | None = None,
        config: OntologiaConfig | None = None,
        upgraders: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = OntologiaConfig() if config is None else config
        if not isinstance(self.config, OntologiaConfig):
            raise ConfigError(f"config is {config!r}.", fix="pass an OntologiaConfig.")
        self.namespace = _check_namespace(
            self.config.default_namespace if namespace is None else namespace
        )
        self.session_id = str(uuid7())
        self.datastore_uri = (
            fspath(datastore_uri) if isinstance(datastore_uri, PathLike) else (datastore_uri)
        )
        if not isinstance(instance_metadata, dict | None):
            raise ConfigError(f"instance_metadata is {instance_metadata!r}.", fix="pass a dict.")
        self.instance_metadata = dict(instance_metadata or {})
        self._types = Types()
        for cls in _classes("entity_types", entity_types, Entity):
            self._types.add(cls)
        for cls in _classes("relation_types", relation_types, Relation):
            self._types.add(cls)
        self._closed = self._closing = False
        self._loops: list[Loop] = []
        self._loops_lock = threading.Lock()
        self._ambient = Ambient()
        self._local = threading.local()
        self._units: list[tuple[threading.Thread, UnitOfWork]] = []
        self._units_lock = threading.Lock()
        known = Upgraders().extended(upgraders)
        self._store = open_store(self.datastore_uri, self.config)
        self._clock: Clock = self._store.clock if clock is None else clock
        self._reader = Reader(self._store, self.namespace, self._types, known)
        self._history = History(self._reader, self._types, self.namespace)
        self._migrator = Migrator(self._store, self.namespace, self._types)
        self._committer = self._committer_on(self._store)

    def __repr__(self) -> str:
        return f"Session({self.datastore_uri!r}, namespace={self.namespace!r})"

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do."""
        return self._store.capabilities

    @property
    def _context(self) -> HandlerContext[Any] | None:
        """The handler of this session that is running here, if one is."""
        context = CURRENT.get()
        while context is not None and context.session is not self:
            context = context.outer  # a handler may run another session
        return context

    # Units of work

    def _unit(self) -> UnitOfWork:
        if self._closed:
            raise SessionClosedError
        context = self._context
        if context is not None:
            return context.unit  # inside a handler, its unit of work
        unit: UnitOfWork | None = getattr(self._local, "unit", None)
        if unit is None:
            unit = self._local.unit = UnitOfWork()
            with self._units_lock:
                self._units.append((threading.current_thread(), unit))
        return unit

    def _adopt(self, *, everything: bool = False) -> UnitOfWork:
        """This thread's unit, with what threads that have ended left behind."""
        unit = self._unit()
        if self._context is not None:
            return unit
        with self._units_lock:
            for entry in list(self._units):
                thread, other = entry
                if other is not unit and (everything or not thread.is_alive()):
                    unit.absorb(other)
                    if not thread.is_alive():
                        self._units.remove(entry)
        return unit

    def ensure(self, obj: Stateful | Iterable[Stateful]) -> None:
        """Queue what should be true, as it is now; the next commit writes what differs."""
        self._unit().add(self._types, obj)

    def add_commit_meta(self, key: str, value: str) -> None:
        """Attach metadata to the next commit."""
        self._unit().annotate(key, value)

    @property
    def pending(self) -> int:
        """The number of objects queued for the next commit."""
        return len(self._adopt())

    def discard(self) -> None:
        """Forget what is queued."""
        self._adopt().clear()

    def commit(self, *, event: Event | Sequence[Event] | None = None) -> int | None:
        """Write what differs, and the events, in one transaction.

        Returns the commit id, or None if no state changed. On failure nothing is written and
        everything stays queued. Inside a handler it is the commit of its context.
        """
        context = self._context
        if context is not None:
            return context.commit(event=event)
        return self._committer.commit(self._adopt(), outgoing(event))

    # Transactions of the application

    def bind(self, connection: object) -> BoundSession:
        """Take part in the transaction that is open on a connection to the same database.

        A connection of psycopg or sqlite3, a Connection or Session of SQLAlchemy, or Django's
        ``connection``. What is done through the bound session appears when the caller commits.
        """
        self._check_bindable()
        bound = self._store.bind(connection)
        reader = Reader(bound, self.namespace, self._types, self._reader.upgraders)
        return BoundSession(reader, self._committer_on(bound), self._types, self._check_bindable)

    def _check_bindable(self) -> None:
        if self._closed:
            raise SessionClosedError
        if self._context is not None:
            raise BindError(
                "a handler cannot take part in another transaction.",
                why="that would commit even if the event is no longer the handler's, and twice "
                "if it is handled again.",
                fix="use the verbs of the handler's context.",
            )

    def _committer_on(self, store: Transactions) -> Committer:
        return Committer(
            store,
            self.namespace,
            self._types,
            session_id=self.session_id,
            clock=self._clock,
            max_batch_size=self.config.max_batch_size,
        )

    # Reading

    def query(self) -> Query:
        """Start a query."""
        if self._closed:
            raise SessionClosedError
        return Query(self._reader, self._types)

    @property
    def head(self) -> int:
        """The id of the newest commit of this namespace, 0 if there is none."""
        newest = self._history.commits(1, None)
        return newest[0].commit_id if newest else 0

    def list_commits(self, limit: int = 10, since_commit_id: int | None = None) -> list[Commit]:
        """The newest commits first; with ``since_commit_id``, those after it, oldest first."""
        return self._history.commits(limit, since_commit_id)

    def get_commit(self, commit_id: int) -> Commit:
        """One commit; raises CommitNotFoundError."""
        return self._history.commit(commit_id)

    def list_commit_changes(self, commit_id: int) -> list[dict[str, Any]]:
        """The entities and relations that a commit added or changed."""
        return self._history.changes(commit_id)

    def diff(self, a: int, b: int) -> Diff:
        """What was added and changed after commit ``a``, up to and including ``b``."""
        return self._history.diff(a, b)

    def list_events(self, limit: int = 10) -> list[StoredEvent]:
        """The newest events of this namespace first."""
        return self.events.list(limit)

    # Events

    def run(
        self,
        handlers: Iterable[Callable[..., Any]],
        *,
        schedules: Iterable[Schedule] | None = None,
        max_iterations: int | None = None,
        until_idle: bool = False,
        concurrency: int = 1,
        hooks: EventHooks | None = None,
    ) -> None:
        """Deliver events to handlers, until stopped.

        ``until_idle`` returns when nothing is due, ``max_iterations`` after so many rounds.
        ``concurrency`` handlers run at a time. SIGINT and SIGTERM stop it like :meth:`stop`.
        """
        if self._closed:
            raise SessionClosedError
        for name, number in (("concurrency", concurrency), ("max_iterations", max_iterations)):
            optional = name == "max_iterations" and number is None
            if not optional and (type(number) is not int or number < 1):
                raise ConfigError(f"{name} is {number!r}.", fix="pass 1 or more.")
        if not isinstance(hooks, EventHooks | None):
            raise ConfigError(f"hooks is {hooks!r}.", fix="pass EventHooks(...).")
        found = collect(handlers)
        runtime = Runtime(
            self,
            self._store,
            self._committer,
            self._types,
            self._clock,
            self.config,
            EventHooks() if hooks is None else hooks,
            self._ambient,
        )
        now = datetime_text(self._clock.now())
        metadata = {"hostname": gethostname(), "pid": getpid(), **self.instance_metadata}
        record = SessionRecord(self.session_id, self.namespace, now, now, metadata, None)
        scheduler = Scheduler(self._store, self.namespace, self._clock, schedules)
        loop = Loop(
            runtime,
            self._store,
            self.namespace,
            record,
            self._clock,
            self.config,
            found,
            scheduler,
            concurrency,
        )
        with self._loops_lock:
            self._loops.append(loop)
        outside, self._ambient.running = self._ambient.running, True
        try:
            loop.run(max_iterations, until_idle)
        finally:
            self._ambient.running = outside
            with self._loops_lock:
                self._loops.remove(loop)
                last = not self._loops
                if last:
                    loop.leave()
            if last and self._closing:
                self.close()

    @property
    def events(self) -> Events:
        """The events of this namespace: looking at them, and handing them out again."""
        return Events(self._store, self._reader, self.namespace, self._clock, self.config)

    def stats(self) -> Stats:
        """How much waits, is worked on and was given up, by handler and type."""
        return self.events.stats()

    def stop(self) -> None:
        """End every run of this session: what runs is finished, the rest handed back."""
        for loop in list(self._loops):
            loop.stop()

    # Schema

    def validate(self) -> None:
        """Raise SchemaOutdatedError if the known types differ from the stored ones."""
        with self._reader.view() as view:
            diffs = self._types.diffs(view.snapshot.schema())
        if diffs:
            raise SchemaOutdatedError(diffs)

    @overload
    def migrate(
        self, dry_run: Literal[True] = True, *, upgraders: Any = None
    ) -> MigrationPreview: ...
    @overload
    def migrate(
        self,
        dry_run: Literal[False],
        token: str | None = None,
        upgraders: Any = None,
        force: bool = False,
    ) -> MigrationResult: ...
    def migrate(
        self,
        dry_run: bool = True,
        token: str | None = None,
        upgraders: Any = None,
        force: bool = False,
    ) -> MigrationPreview | MigrationResult:
        """Preview the migration of the known types, or apply the one with this token.

        All types are migrated, or none. ``force`` applies without a token.
        """
        if self._closed:
            raise SessionClosedError
        known = self._reader.upgraders.extended(upgraders)
        if dry_run:
            return self._migrator.preview(known)
        result = self._migrator.apply(token, known, force, datetime_text(self._clock.now()))
        # What was needed to migrate is needed to read the versions from before.
        self._reader.upgraders = known
        return result

    def drop(
        self, target: type[Stateful] | str, *, dry_run: bool = True, token: str | None = None
    ) -> DropPreview:
        """Preview the removal of a type with its rows and history, or carry it out."""
        with self._reader.view() as view:
            type_id = find_type(self._types, view.snapshot.schema(), target)
        return self._migrator.drop(type_id, token, dry_run)

    def verify(self) -> VerifyReport:
        """Rebuild current state from history, and report every difference."""
        return verify(self._reader, self._types)

    # Life cycle

    def close(self) -> None:
        """Release the datastore; what is queued is forgotten. Idempotent.

        Runs are stopped first; from inside a run, the datastore is released when it has ended.
        """
        if self._closed:
            return
        self.stop()
        if self._ambient.running and self._loops:
            self._closing = True
            return
        for loop in list(self._loops):
            loop.join()
        self._closed = self._reader.closed = True
        self._store.close()

    def __enter__(self) -> Self:
        if self._closed:
            raise SessionClosedError
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._context is not None:  # a handler's session goes on after the handler
            if kind is None:
                self.commit()
            return
        try:
            if kind is None and not self._closed:
                self._committer.commit(self._adopt(everything=True), ())
        finally:
            self.close()


def _classes(option: str, given: Any, base: type) -> list[Any]:
    found = list(given or ()) if isinstance(given, Iterable | None) else [given]
    for cls in found:
        if isinstance(given, type) or not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(
                f"{option} got {cls!r}.", fix=f"pass a list of {base.__name__} classes."
            )
    return found


def _check_namespace(namespace: object) -> str:
    try:
        if isinstance(namespace, str) and namespace:
            return text(namespace)
    except ValueError:
        pass
    raise ConfigError(
        f"the namespace {namespace!r} is not usable.", fix="pass text that is not empty."
    )
