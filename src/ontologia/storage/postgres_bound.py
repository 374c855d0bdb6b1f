"""PostgreSQL inside a transaction of the caller: parts of it, on the caller's connection."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakSet

import psycopg
from psycopg import errors, pq
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from ontologia.config import OntologiaConfig
from ontologia.errors import BindError, OntologiaError
from ontologia.storage.base import Capabilities, T
from ontologia.storage.postgres_dialect import Adaptation, PostgresConnection, translate
from ontologia.storage.postgres_listen import channel_name
from ontologia.storage.postgres_schema import schema_name
from ontologia.storage.sql.store import READ_EPOCH, Catalog, SQLTransaction
from ontologia.storage.unwrap import ACCEPTED, kind_of, unwrapped
from ontologia.storage.watch import Signal

_SAVEPOINT = "ontologia_bound"
_UNDO = (f"ROLLBACK TO {_SAVEPOINT}", f"RELEASE {_SAVEPOINT}")
_ONE_SNAPSHOT = ("repeatable read", "serializable")
_SHARE = "LOCK TABLE schema_types IN ACCESS SHARE MODE"

IDENTITY = (
    "SELECT system_identifier::text, extract(epoch FROM pg_postmaster_start_time())::text, "
    "(SELECT oid::text FROM pg_database WHERE datname = current_database()) "
    "FROM pg_control_system()"
)
"""The running server and the database: the same on all connections that lead there."""

# Names are looked up as they are now, the catalogue as the snapshot of the transaction shows it.
_REPLACED = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = "
    "(SELECT oid FROM pg_namespace WHERE nspname = ?) AND "
    "to_regclass(format('%I.%I', ?::text, relname))::oid IS DISTINCT FROM oid"
)


class BoundCursor(psycopg.Cursor[Any]):
    """A cursor on a connection of the caller that converts values as we do."""

    _ours = Adaptation().adapters

    @property
    def adapters(self) -> AdaptersMap:
        return self._ours


class BoundConnection(PostgresConnection):
    """A connection of the caller: its row factories, adapters and cursors are not used.

    Statements are not prepared, so that nothing of them stays behind.
    """

    def _cursor(self) -> psycopg.Cursor[Any]:
        return BoundCursor(self.raw, row_factory=tuple_row)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        self.settle()
        return self._cursor().execute(translate(sql), parameters, prepare=False)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        for values in parameters:
            self.send(sql, values)

    def send(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Execute a statement without waiting for its answer."""
        self._defer()
        self._cursor().execute(translate(sql), parameters, prepare=False)

    def run(self, *statements: str) -> Any:
        """Execute statements that have no values in one message; a row of the last one."""
        self.settle()
        cursor = self._cursor().execute("; ".join(statements).encode(), prepare=False)
        while cursor.nextset():
            pass
        return cursor.fetchone() if cursor.description else None


class _Place(Protocol):
    """What a binding needs to know of its store."""

    capabilities: Capabilities
    verified: WeakSet[psycopg.Connection[Any]]
    """Connections that were found to lead to it; none leads elsewhere later."""

    def identity(self) -> Any:
        """The server and the database, as IDENTITY tells them."""
        ...

    def transaction(
        self, connection: PostgresConnection, catalog: Catalog, namespace: str, epoch: str
    ) -> SQLTransaction:
        """A transaction over a connection that has begun one."""
        ...

    def explain(self, error: psycopg.Error) -> OntologiaError:
        """An error of the driver in our words."""
        ...


class PostgresBinding:
    """Transactions that are parts of the one open on a connection of the caller."""

    def __init__(
        self, connection: object, store: _Place, catalog: Catalog, config: OntologiaConfig
    ) -> None:
        self._given, self._store, self._catalog = connection, store, catalog.apart()
        self._schema = config.postgres_schema
        self._settings = {
            # Temporary tables of the caller come last, or they would come first.
            "search_path": f"{schema_name(self._schema)}, pg_temp",
            "lock_timeout": str(config.lock_timeout_ms),
            "timezone": "UTC",
            "datestyle": "ISO",
            "client_encoding": "UTF8",
            "extra_float_digits": "1",
        }
        # Delivered when the caller commits, and only then. The name is that of nobody: the
        # listener of this process has not been told either.
        self._announce = f"NOTIFY {channel_name(self._schema)}, 'bound'"
        # Results are read at once: the caller goes on with the connection meanwhile.
        self.capabilities = replace(store.capabilities, concurrent_reads=False)
        self.signal = Signal()
        self._raw()

    def _raw(self) -> psycopg.Connection[Any]:
        """The driver's connection, in a transaction or about to begin one."""
        raw = unwrapped(self._given)
        if not isinstance(raw, psycopg.Connection):
            raise BindError(
                f"a connection of {kind_of(raw)} cannot be used with PostgreSQL.",
                fix=f"{ACCEPTED[:-1]}; all of them with the driver psycopg 3.",
            )
        _check_state(raw)
        if raw not in self._store.verified:
            try:
                self._verify(BoundConnection(raw))
            except psycopg.Error as error:
                raise self._store.explain(error) from error
            self._store.verified.add(raw)
        return raw

    def _verify(self, connection: BoundConnection) -> None:
        if connection.execute(IDENTITY).fetchone() != self._store.identity():
            info = connection.raw.info
            raise BindError(
                f"the connection leads to the database {info.dbname!r} at {info.host}:{info.port}, "
                "the session to another one.",
                fix="bind a connection to the server and the database of the session.",
            )
        allowed = connection.execute(
            "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = ?",
            (self._schema,),
        ).fetchone()
        if allowed != (True,):
            raise BindError(
                f"the role {connection.raw.info.user!r} may not use the schema {self._schema!r}.",
                fix="grant it the schema and its tables, or connect with the role of the session.",
            )

    @contextmanager
    def _part(self, namespace: str, *, keep: bool) -> Generator[SQLTransaction]:
        """A part of the transaction; undone after an error, or if it is not to be kept."""
        connection = BoundConnection(self._raw())
        isolated = False
        try:
            before = self._enter(connection)
            try:
                isolated = before.pop("transaction_isolation") in _ONE_SNAPSHOT
                connection.send(_set(self._settings), list(self._settings.values()))
                connection.send(_SHARE)
                if isolated:
                    self._check_age(connection)
                epoch: str = connection.execute(READ_EPOCH).fetchone()[0]  # type: ignore[index]
                yield self._store.transaction(connection, self._catalog, namespace, epoch)
                if keep:
                    if connection.announced:
                        connection.send(self._announce)
                    connection.send(_set(before), list(before.values()))
                    connection.send(f"RELEASE {_SAVEPOINT}")
                    connection.settle()
                else:
                    connection.run(*_UNDO)
            except BaseException:
                self._undo(connection)
                raise
        except psycopg.Error as error:
            raise self._translate(error, isolated) from error

    def _enter(self, connection: BoundConnection) -> dict[str, str]:
        """Begin a part; the settings of the caller, to go back to."""
        names = [*self._settings, "transaction_isolation"]
        asked = ", ".join(f"current_setting('{name}')" for name in names)
        found = connection.run(f"SAVEPOINT {_SAVEPOINT}", f"SELECT {asked}")
        return dict(zip(names, found, strict=True))

    def _check_age(self, connection: BoundConnection) -> None:
        """A snapshot from before a migration would find the new tables empty."""
        if connection.execute(_REPLACED, (self._schema, self._schema)).fetchone() is not None:
            raise _outdated()

    def _undo(self, connection: BoundConnection) -> None:
        with suppress(psycopg.Error):
            connection.settle()
        with suppress(psycopg.Error):  # a connection that broke has nothing left to undo
            connection.run(*_UNDO)

    @contextmanager
    def read(self, namespace: str) -> Generator[SQLTransaction]:
        with self._part(namespace, keep=False) as tx:
            yield tx

    def transact(self, namespace: str, body: Callable[[Any], T]) -> T:
        with self._part(namespace, keep=True) as tx:
            return body(tx)

    def _translate(self, error: psycopg.Error, isolated: bool) -> OntologiaError:
        if isinstance(error, errors.SerializationFailure | errors.DeadlockDetected):
            return BindError(
                "the transaction met another one, and cannot be finished.",
                why=f"PostgreSQL says: {str(error).strip()}",
                fix="roll back, and run the whole transaction again.",
            )
        if isolated and isinstance(error, errors.UniqueViolation | errors.DuplicateTable):
            return _outdated()
        return self._store.explain(error)


def _check_state(raw: psycopg.Connection[Any]) -> None:
    if raw.closed:
        raise BindError("the connection is closed.", fix="bind one that is open.")
    status = raw.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise BindError(
            "the transaction of the connection has failed already.",
            why="PostgreSQL takes no statements after an error, until it is rolled back.",
            fix="roll back, at least to a savepoint, and try again.",
        )
    if raw.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise BindError("the connection is in pipeline mode.", fix="leave the pipeline() block.")
    if status == pq.TransactionStatus.IDLE and raw.autocommit:
        raise BindError(
            "no transaction is open on the connection.",
            why="it is in autocommit mode, in which each statement would be on its own.",
            fix="begin one first: 'with connection.transaction():', or atomic() in Django.",
        )


def _set(settings: dict[str, str]) -> str:
    """The statement that sets these for the rest of the transaction; it takes the values."""
    return "SELECT " + ", ".join(f"set_config('{name}', ?, true)" for name in settings)


def _outdated() -> BindError:
    return BindError(
        "the snapshot of the transaction is older than what others have committed.",
        why="with REPEATABLE READ or SERIALIZABLE it sees nothing that came after it began.",
        fix="roll back, and run the whole transaction again; or use READ COMMITTED.",
    )
