"""PostgreSQL: the driver, and the rules of one database shared by many machines."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ontologia.config import OntologiaConfig
from ontologia.errors import (
    DatastoreFullError,
    DatastoreReadOnlyError,
    DatastoreURIError,
    InvalidDatastoreError,
    LockContentionError,
    OntologiaError,
    SessionClosedError,
    StorageError,
    StorageUnavailableError,
)
from ontologia.storage.base import Capabilities, T
from ontologia.storage.postgres_bound import IDENTITY, PostgresBinding
from ontologia.storage.postgres_dialect import (
    READ_HORIZON,
    Adaptation,
    PostgresConnection,
    PostgresDialect,
)
from ontologia.storage.postgres_listen import Listener, channel_name, listener_for
from ontologia.storage.postgres_schema import migrate, schema_name
from ontologia.storage.sql.dialect import Horizon
from ontologia.storage.sql.store import READ_EPOCH, Catalog, SQLSnapshot, SQLTransaction
from ontologia.storage.watch import Watch

log = logging.getLogger(__name__)

# Nobody replaces or drops a type while others read or write; taken before the snapshot.
_SHARE = "LOCK TABLE schema_types IN ACCESS SHARE MODE"
_ALONE = "LOCK TABLE schema_types IN ACCESS EXCLUSIVE MODE"
# By it a transaction is found again when the answer to COMMIT is lost.
_NUMBER = "SELECT pg_current_xact_id()::text"

_IDLE = pq.TransactionStatus.IDLE
_TRANSIENT = (errors.SerializationFailure, errors.DeadlockDetected)
_LAST_WORDS = (errors.AdminShutdown, errors.CrashShutdown)
_MOST_ATTEMPTS = 8
_FIRST_PAUSE = 0.01
# A pool that is shorter of connections than this for so long is too small, or used up for good.
_POOL_PATIENCE = 5.0
_CLOCK_SECONDS = 60.0
_SETTLE_SECONDS = 0.002


class _Lost(Exception):
    """The connection broke; nothing of the transaction was kept."""

    def __init__(self, error: psycopg.Error) -> None:
        self.error = error


def _is_lost(connection: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Whether the server process is gone; its last words may come before its end is noticed."""
    return connection.broken or isinstance(error, _LAST_WORDS)


class DatabaseClock:
    """The clock of the database: its offset is measured now and then, and added in between."""

    def __init__(self, ask: Callable[[], datetime]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._at: datetime | None = None
        self._measured = 0.0

    def now(self) -> datetime:
        """The current time of the database."""
        with self._lock:
            known, before = self._at, time.monotonic()
            if known is None or before - self._measured > _CLOCK_SECONDS:
                return self._measure(known, before)
            return known + timedelta(seconds=before - self._measured)

    def _measure(self, known: datetime | None, before: float) -> datetime:
        expected = None if known is None else known + timedelta(seconds=before - self._measured)
        try:
            found = self._ask()
        except StorageError:
            if expected is None:
                raise
            return expected  # still good; whoever needs the database will say that it is gone
        after = time.monotonic()
        found += timedelta(seconds=(after - before) / 2)
        # It does not go back: leases are compared.
        self._at = found if expected is None else max(found, expected)
        self._measured = after
        return self._at


class PostgresSnapshot(SQLSnapshot):
    """A view of one namespace."""

    def __init__(
        self,
        connection: PostgresConnection,
        catalog: Catalog,
        namespace: str,
        epoch: str,
        patience: float,
    ) -> None:
        super().__init__(connection, catalog, namespace)
        self._patience = patience
        self._at_begin: str | None = epoch  # it came with the beginning of the transaction

    def settle(self, commit_id: int) -> None:
        connection, catalog = self._connection, self._catalog
        assert isinstance(connection, PostgresConnection)
        deadline = time.monotonic() + self._patience
        while commit_id > catalog.settled:
            horizon = catalog.dialect.horizon(connection)
            if horizon is not None:
                catalog.settled = max(catalog.settled, horizon.commits)
            if commit_id <= catalog.settled or self.commit(commit_id) is None:
                return
            if time.monotonic() > deadline:
                raise LockContentionError(int(self._patience * 1000))
            time.sleep(_SETTLE_SECONDS)
            connection.horizon = None

    def _epoch(self) -> str:
        return super()._epoch() if self._at_begin is None else self._at_begin


class PostgresTransaction(PostgresSnapshot, SQLTransaction):
    """A write transaction."""

    def lock_types(self) -> None:
        super().lock_types()
        self._at_begin = None  # others may have registered types before

    def _touch_schema(self) -> None:
        super()._touch_schema()
        self._at_begin = None


class PostgresStore:
    """A store in a schema of a PostgreSQL database."""

    def __init__(self, uri: str, config: OntologiaConfig) -> None:
        self._config = config
        self._schema, self._patience = config.postgres_schema, config.lock_timeout_ms / 1000
        self._pooled = not config.postgres_listen
        self.capabilities = Capabilities(
            durable=True, concurrent_processes=True, concurrent_reads=True, query_engine=True
        )
        self._catalog = Catalog(PostgresDialect(self._schema))
        self._closed = False
        self._conninfo, self._place = _conninfo(uri, config)
        self._options: dict[str, Any] = {
            "autocommit": True,
            "context": Adaptation(),
            # Behind a pooler the next transaction may meet another server process.
            "prepare_threshold": None if self._pooled else 1,
        }
        self._begins = _begins(config)
        self.process = str(uuid4())
        self.verified: WeakSet[psycopg.Connection[Any]] = WeakSet()
        try:
            with psycopg.connect(self._conninfo, **self._options) as connection:
                _check_version(connection)
                migrate(connection, self._schema)
        except psycopg.Error as error:
            raise self._translate(error) from error
        self.listener: Listener = listener_for(self._conninfo, self._schema)
        self.signal = self.listener.signal
        self._ending = f"NOTIFY {channel_name(self._schema)}, '{self.listener.name}'"
        self.clock = DatabaseClock(self._ask_time)
        self._pool: ConnectionPool[psycopg.Connection[Any]] = ConnectionPool(
            self._conninfo,
            kwargs=self._options,
            min_size=0,
            max_size=config.postgres_pool_size,
            timeout=max(_POOL_PATIENCE, config.lock_timeout_ms / 1000),
            num_workers=1,
            reconnect_timeout=_POOL_PATIENCE,
            open=True,
        )

    # Connections

    def _borrow(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise SessionClosedError
        try:
            return self._pool.getconn()
        except PoolClosed:
            raise SessionClosedError from None
        except PoolTimeout as error:
            raise StorageUnavailableError(
                f"no connection to {self._place} was free within {self._pool.timeout:g} s.",
                why=f"all {self._config.postgres_pool_size} connections of the pool are in use, "
                "or the server takes no new ones.",
                fix="check that the server runs, finish iterating over open results, or raise "
                "postgres_pool_size.",
            ) from error

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        status = connection.pgconn.transaction_status
        if status == pq.TransactionStatus.INERROR:
            # What was sent along with the statement that failed was skipped, and the driver takes
            # statements for prepared that are not: the pool opens another connection.
            connection.close()
        elif status != _IDLE:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        self._pool.putconn(connection)

    def _begin(self, kind: str) -> tuple[PostgresConnection, str]:
        """A connection with a transaction begun, and the epoch of the schema there.

        Connections that broke while they lay idle are replaced.
        """
        for last in [False] * (self._config.postgres_pool_size + 1) + [True]:
            raw = self._borrow()
            try:
                return self._begin_on(raw, kind)
            except psycopg.OperationalError:
                broken = raw.broken
                self._give_back(raw)
                if last or not broken:
                    raise
            except BaseException:
                self._give_back(raw)
                raise
        raise AssertionError

    def _results(self, raw: psycopg.Connection[Any], kind: str) -> list[Any]:
        """What the statements that begin a transaction answer."""
        cursor = raw.execute(self._begins[kind], prepare=False)
        rows = [cursor.fetchone()] if cursor.description else []
        while cursor.nextset():
            if cursor.description:
                rows.append(cursor.fetchone())
        return rows

    def _look(self, raw: psycopg.Connection[Any], epoch: str) -> Horizon:
        """Begin a snapshot anew, after learning how far it may look."""
        horizon, (now,) = self._results(raw, "look")
        if now != epoch:
            raise StorageUnavailableError(
                "a type was migrated at this very moment.", fix="try again; nothing is wrong."
            )
        return Horizon(*horizon)

    def _begin_on(self, raw: psycopg.Connection[Any], kind: str) -> tuple[PostgresConnection, str]:
        while True:
            (epoch,), *numbers = self._results(raw, kind)
            known = getattr(raw, "ontologia_epoch", epoch)
            raw.ontologia_epoch = epoch  # type: ignore[attr-defined]
            if known == epoch:
                break
            # Statements prepared for another schema are forgotten by the driver on a rollback.
            raw.execute("ROLLBACK")
        if kind == "read":
            return PostgresConnection(raw, partial(self._look, raw, epoch)), epoch
        connection = PostgresConnection(raw)
        ((connection.xid,),) = numbers
        return connection, epoch

    def _ask_time(self) -> datetime:
        raw = self._borrow()
        try:
            (now,) = raw.execute("SELECT clock_timestamp()").fetchone()  # type: ignore[misc]
            return now.astimezone(UTC)  # type: ignore[no-any-return]
        except psycopg.Error as error:
            raise self._translate(error) from error
        finally:
            self._give_back(raw)

    # Transactions

    @contextmanager
    def read(self, namespace: str) -> Generator[PostgresSnapshot]:
        try:
            connection, epoch = self._begin("read")
        except psycopg.Error as error:
            raise self._translate(error) from error
        try:
            yield PostgresSnapshot(connection, self._catalog, namespace, epoch, self._patience)
            with suppress(psycopg.Error):  # what was read is read
                connection.raw.execute("COMMIT", prepare=False)
        except psycopg.Error as error:
            raise self._translate(error) from error
        finally:
            self._give_back(connection.raw)

    @contextmanager
    def write(self, namespace: str, *, migrate: bool = False) -> Generator[SQLTransaction]:
        try:
            with self._write(namespace, "migrate" if migrate else "write") as tx:
                yield tx
        except _Lost as lost:
            raise self._passing(lost.error) from lost.error
        except _TRANSIENT as error:
            raise self._passing(error) from error
        except psycopg.Error as error:
            raise self._translate(error) from error

    def _passing(self, error: psycopg.Error) -> Exception:
        """An error after which nothing was written, and which may not occur again."""
        translated = self._translate(error)
        translated.__dict__["passing"] = True
        return translated

    @contextmanager
    def _write(self, namespace: str, kind: str) -> Generator[SQLTransaction]:
        """A write transaction that raises the errors of the driver, and _Lost."""
        connection, epoch = self._begin(kind)
        try:
            try:
                yield PostgresTransaction(
                    connection, self._catalog, namespace, epoch, self._patience
                )
            except psycopg.Error as error:
                if _is_lost(connection.raw, error):
                    raise _Lost(error) from error
                raise
            self._commit(connection)
        finally:
            with suppress(psycopg.Error):
                connection.settle()
            self._give_back(connection.raw)

    def _commit(self, connection: PostgresConnection) -> None:
        # The others are woken after the commit: as part of it, all commits would wait in line.
        statements = ("COMMIT", self._ending) if connection.announced else ("COMMIT",)
        try:
            connection.finish(*statements)
        except psycopg.Error as error:
            lost = _is_lost(connection.raw, error)
            if not lost and connection.raw.pgconn.transaction_status != _IDLE:
                raise
            # The answer is missing, or another one after it: what follows COMMIT may fail too.
            if connection.xid is not None and not self._has_committed(connection, error):
                if lost:
                    raise _Lost(error) from error
                raise

    def _has_committed(self, broken: PostgresConnection, lost: psycopg.Error) -> bool:
        """What became of a transaction whose COMMIT was not answered."""
        deadline = time.monotonic() + max(30.0, self._config.lock_timeout_ms / 1000)
        pause = _FIRST_PAUSE
        while True:
            with suppress(psycopg.Error):
                known = self._outcome(broken)
                if known is not None:
                    return known
            if time.monotonic() > deadline:
                raise StorageUnavailableError(
                    f"it is not known whether transaction {broken.xid} was committed.",
                    why=f"the connection to {self._place} broke, and the server does not answer.",
                    fix="look for the commit once the server is back, before you commit again.",
                ) from lost
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _outcome(self, broken: PostgresConnection) -> bool | None:
        """Whether a transaction was committed, as a new connection sees it; None while it runs."""
        with psycopg.connect(self._conninfo, **self._options) as connection:
            # Its process may wait for a message that never comes.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_xid = %s::xid8::xid AND datname = current_database()",
                (broken.xid,),
            )
            try:
                (status,) = connection.execute(
                    "SELECT pg_xact_status(%s::xid8)", (broken.xid,)
                ).fetchone()  # type: ignore[misc]
            except errors.InvalidParameterValue:  # the server has forgotten it
                return False
            if status == "in progress":
                return None
            return status == "committed" and self._is_witnessed(connection, broken)

    def _is_witnessed(
        self, connection: psycopg.Connection[Any], broken: PostgresConnection
    ) -> bool:
        """Whether a committed transaction is really the one that broke off."""
        if broken.witness is None:
            return True  # to be wrong about what has none is harmless: claims are fenced
        table, values = broken.witness
        same = {"commits": "commit_id = %s AND created_at = %s", "events": "id = ANY(%s)"}[table]
        place = f"{schema_name(self._schema)}.{table}".replace("%", "%%")
        query = f"SELECT 1 FROM {place} WHERE {same} LIMIT 1".encode()
        return connection.execute(query, values).fetchone() is not None

    def transact(self, namespace: str, body: Callable[[Any], T]) -> T:
        deadline = time.monotonic() + 30.0
        for attempt in range(_MOST_ATTEMPTS):
            try:
                with self.write(namespace) as tx:
                    return body(tx)
            except StorageError as error:
                passing = error.__dict__.get("passing", False)
                if not passing or attempt == _MOST_ATTEMPTS - 1 or time.monotonic() > deadline:
                    raise
                log.warning("a transaction is tried again: %s", error, extra={"attempt": attempt})
            time.sleep(_FIRST_PAUSE * 2**attempt * (1 + random.random()))  # noqa: S311 (jitter)
        raise AssertionError

    # Transactions of callers

    def bind(self, connection: object) -> PostgresBinding:
        if self._closed:
            raise SessionClosedError
        return PostgresBinding(connection, self, self._catalog, self._config)

    def identity(self) -> Any:
        """The server and the database, as a connection of our own sees them."""
        raw = self._borrow()
        try:
            return raw.execute(IDENTITY).fetchone()
        except psycopg.Error as error:
            raise self._translate(error) from error
        finally:
            self._give_back(raw)

    def transaction(
        self, connection: PostgresConnection, catalog: Catalog, namespace: str, epoch: str
    ) -> SQLTransaction:
        """A transaction over a connection that has begun one."""
        return PostgresTransaction(connection, catalog, namespace, epoch, self._patience)

    # Waking up

    def watch(self) -> Watch:
        if not self._pooled:
            self.listener.start()
        return Watch(self.signal)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.close()
            self.listener.release()

    # Errors

    def explain(self, error: psycopg.Error) -> OntologiaError:
        """An error of the driver in our words."""
        return self._translate(error)

    def _translate(self, error: psycopg.Error) -> OntologiaError:
        if isinstance(error, errors.LockNotAvailable):
            return LockContentionError(self._config.lock_timeout_ms)
        if self._closed:
            return SessionClosedError()
        text = str(error).strip().rstrip(".")
        for kinds, kind, what, fix in _KNOWN:
            if isinstance(error, kinds):
                return kind(f"{self._place} {what}.", why=f"PostgreSQL says: {text}.", fix=fix)
        return StorageError(f"{self._place}: {text}.")


_KNOWN: tuple[tuple[Any, type[StorageError], str, str], ...] = (
    (
        _TRANSIENT,
        StorageUnavailableError,
        "undid the transaction in favour of another one",
        "try again; nothing of it was written.",
    ),
    (
        (errors.DiskFull,),
        DatastoreFullError,
        "has no space left",
        "free some space and commit again; nothing of this commit was written.",
    ),
    (
        (errors.ReadOnlySqlTransaction,),
        DatastoreReadOnlyError,
        "cannot be written",
        "connect to the primary server, or to a database that is not read-only.",
    ),
    (
        (errors.InsufficientPrivilege,),
        StorageError,
        "does not permit this",
        "grant the role the schema, or let its owner apply the migrations.",
    ),
    (
        (errors.InvalidCatalogName,),
        StorageError,
        "does not exist",
        "create the database, or correct the URI.",
    ),
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        StorageError,
        "does not let this role in",
        "check user and password of the URI.",
    ),
    (
        (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction),
        InvalidDatastoreError,
        "lacks a part of the datastore",
        "restore it from a backup; it was changed behind the library's back.",
    ),
    (
        (errors.ProgramLimitExceeded,),
        StorageError,
        "cannot hold a value this large",
        "keep keys and indexed fields below 2,700 bytes, or split the value.",
    ),
    (
        (errors.TooManyConnections,),
        StorageUnavailableError,
        "takes no more connections",
        "use a smaller postgres_pool_size, or raise max_connections of the server.",
    ),
    (
        (errors.OutOfMemory, errors.ConfigurationLimitExceeded),
        StorageError,
        "has reached a limit of its configuration",
        "raise max_locks_per_transaction of the server, or commit in smaller batches.",
    ),
    (
        (psycopg.OperationalError,),
        StorageUnavailableError,
        "cannot be reached",
        "check that the server runs and that the URI is right.",
    ),
)


def _check_version(connection: psycopg.Connection[Any]) -> None:
    if connection.info.server_version < 130_000:
        raise StorageError(
            f"PostgreSQL {connection.info.server_version // 10_000} is too old.",
            why="transactions are known by functions that came with 13.",
            fix="use a newer server.",
        )


def _conninfo(uri: str, config: OntologiaConfig) -> tuple[str, str]:
    """What the driver takes, and the place in words, without the password."""
    try:
        parts = conninfo_to_dict(uri)
    except psycopg.Error as error:
        raise DatastoreURIError(
            f"the URI is not one that PostgreSQL takes: {str(error).strip()}.",
            fix="use postgresql://user:password@host:5432/database.",
        ) from None
    place = f"database {parts.get('dbname', parts.get('user', ''))!r}"
    if parts.get("host"):
        place += f" at {parts['host']}:{parts.get('port', 5432)}"
    parts.setdefault("application_name", "ontologia")
    parts.setdefault("connect_timeout", "10")
    if config.postgres_listen:
        settings = " ".join(f"-c {_escaped(f'{k}={v}')}" for k, v in _settings(config).items())
        parts["options"] = f"{parts.get('options') or ''} {settings}".strip()
    return make_conninfo("", **parts), place


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(" ", "\\ ")


def _settings(config: OntologiaConfig) -> dict[str, str]:
    return {
        "search_path": schema_name(config.postgres_schema),
        "lock_timeout": str(config.lock_timeout_ms),
        "timezone": "UTC",
        "datestyle": "ISO",
        "jit": "off",
    }


def _begins(config: OntologiaConfig) -> dict[str, bytes]:
    """What begins a transaction, in one message."""
    settings = []
    if not config.postgres_listen:
        # A pooler hands out any server process, so nothing can be set for good.
        settings = [f"SET LOCAL {k} = {_literal(k, v)}" for k, v in _settings(config).items()]
    begin, snapshot = "BEGIN ISOLATION LEVEL READ COMMITTED", "REPEATABLE READ READ ONLY"
    read = [f"BEGIN ISOLATION LEVEL {snapshot}", *settings, _SHARE, READ_EPOCH]
    look = ["COMMIT", begin, *settings, READ_HORIZON, "COMMIT", *read]
    write = [begin, *settings, _SHARE, READ_EPOCH, _NUMBER]
    migrate = [begin, *settings, _ALONE, READ_EPOCH, _NUMBER]
    return {
        name: "; ".join(statements).encode()
        for name, statements in (
            *(("read", read), ("look", look)),
            *(("write", write), ("migrate", migrate)),
        )
    }


def _literal(name: str, value: str) -> str:
    return value if name == "search_path" else "'" + value + "'"
