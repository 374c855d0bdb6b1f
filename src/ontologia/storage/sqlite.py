"""SQLite: dialect, driver, and the rules of one file shared by many processes."""

from __future__ import annotations

import base64
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote as url_quote
from weakref import WeakValueDictionary

from uuid_utils.compat import uuid7

from ontologia.clock import SystemClock
from ontologia.config import OntologiaConfig
from ontologia.errors import (
    BindError,
    DatastoreFullError,
    DatastoreReadOnlyError,
    InvalidDatastoreError,
    LockContentionError,
    SessionClosedError,
    StorageError,
)
from ontologia.model.canonical import (
    decimal_from_order,
    decimal_mean,
    decimal_order,
    decimal_sum,
    dumps,
)
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.storage.base import Capabilities, T
from ontologia.storage.sql.dialect import Companion, Connection, Fragment, Horizon
from ontologia.storage.sql.event_tables import EVENT_TABLES
from ontologia.storage.sql.layout import BASE_TABLES, FORMAT, Layout
from ontologia.storage.sql.store import Catalog, SQLSnapshot, SQLTransaction
from ontologia.storage.sqlite_bound import SQLiteBinding, opened_read_only
from ontologia.storage.watch import Signal, Watch

MINIMUM_VERSION = (3, 37, 0)

_LIMITS = ("integer overflow", "Expression tree is too large", "parser stack overflow")
_COLUMN_TYPES = {
    "str": "TEXT",
    "int": "INTEGER",
    "float": "REAL",
    "bool": "INTEGER",
    "bytes": "BLOB",
}


class SQLiteDialect:
    """SQL as SQLite speaks it."""

    words: Mapping[str, str] = {
        "text": "TEXT",
        "int": "INTEGER",
        "json": "TEXT",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "position": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "table": " STRICT",
    }
    clustered_options = " STRICT, WITHOUT ROWID"
    refuse = "BEGIN SELECT RAISE(ABORT, 'history is append-only'); END"
    unlimited = -1
    for_update = skip_locked = ""

    def column_type(self, kind: str) -> str:
        return _COLUMN_TYPES.get(kind, "TEXT")

    def exact_column(self, kind: str) -> bool:
        return False

    def companions(self, name: str, kind: str) -> Sequence[Companion]:
        if kind != "decimal":
            return ()
        return (Companion(f"_order_{name}", "TEXT", _order_function, sorts=True),)

    def among_keys(
        self, columns: Sequence[str], kinds: Sequence[str], keys: Sequence[Row]
    ) -> Fragment:
        if len(keys) == 1:
            return Fragment(" AND ".join(f"{c} = ?" for c in columns), *keys[0])
        # The keys travel as one JSON array: the statement stays the same for any number.
        if len(columns) == 1:
            return Fragment(
                f"{columns[0]} IN (SELECT value FROM json_each(?))", dumps([k[0] for k in keys])
            )
        values = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(columns)))
        return Fragment(
            f"({', '.join(columns)}) IN (SELECT {values} FROM json_each(?))", dumps(keys)
        )

    def among_values(self, operand: Fragment, values: Sequence[Any], negated: bool) -> Fragment:
        word, subject = "NOT IN" if negated else "IN", "{}"
        if isinstance(values[0], bytes):
            subject, values = "ontologia_hex({})", [value.hex() for value in values]
        return operand.format(f"{subject} {word} (SELECT value FROM json_each(?))", dumps(values))

    def json_value(self, document: str, path: tuple[str, ...], kind: str) -> Fragment:
        return Fragment(f"json_extract({document}, ?)", _json_path(path))

    def json_item(self, kind: str) -> Fragment:
        return Fragment("item.value")

    def json_text(self, column: str) -> str:
        return column

    def number(self, value: Any, kind: str) -> Any:
        return value

    def order(self, operand: Fragment, descending: bool) -> Fragment:
        return operand.format("{} DESC") if descending else operand

    def extreme(self, operand: Fragment, kind: str) -> Fragment:
        return operand

    def json_type(self, document: str, path: tuple[str, ...]) -> Fragment:
        return Fragment(f"json_type({document}, ?)", _json_path(path))

    def json_length(self, document: str, path: tuple[str, ...]) -> Fragment:
        return Fragment(f"json_array_length({document}, ?)", _json_path(path))

    def json_items(self, document: str, path: tuple[str, ...], alias: str) -> Fragment:
        return Fragment(f"json_each({document}, ?) AS {alias}", _json_path(path))

    def decimal_order(self, operand: Fragment) -> Fragment:
        return operand.format("ontologia_decimal_order({})")

    def decimal_constant(self, text: str) -> Any:
        return decimal_order(Decimal(text))

    def decimal_result(self, value: Any) -> Any:
        return decimal_from_order(value)

    def decimal_sum(self, operand: Fragment) -> Fragment:
        return operand.format("ontologia_decimal_sum({})")

    def decimal_avg(self, operand: Fragment) -> Fragment:
        return operand.format("ontologia_decimal_avg({})")

    def decimal_total(self, operand: Fragment) -> Fragment:
        return self.decimal_order(operand)

    def decimal_total_constant(self, text: str) -> Any:
        return self.decimal_constant(text)

    def bytes_value(self, operand: Fragment) -> Fragment:
        return operand.format("ontologia_bytes({})")

    def text_contains(self, operand: Fragment, text: str) -> Fragment:
        return operand.format("instr({}, ?) > 0", text)

    def text_ends(self, operand: Fragment, text: str) -> Fragment:
        return operand.format("substr({}, ?) = ?", -len(text), text)

    def sort_only(self, column: str) -> str:
        # Without statistics SQLite would rather walk the whole table in key order than sort.
        return f"+{column}"

    # A transaction has the file to itself: all that is visible is there without gaps.

    def horizon(self, connection: Connection) -> Horizon | None:
        return None

    def draw_commit(self, connection: Connection, created_at: str) -> tuple[int, str] | None:
        return None

    def lock(
        self,
        connection: Connection,
        namespace: str,
        identities: Mapping[TypeSpec, Collection[Row]],
    ) -> None:
        pass

    def lock_types(self, connection: Connection) -> None:
        pass

    # Others look at the file to learn of changes.

    def before_enqueue(self, connection: Connection, event_ids: Sequence[str]) -> None:
        pass

    def announce(self, connection: Connection) -> None:
        pass

    def update_each(
        self,
        connection: Connection,
        table: str,
        same: Fragment,
        own: Mapping[str, str],
        keys: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        changes = ", ".join([same.sql, *(f"{column} = ?" for column in own)])
        where = " AND ".join(f"{column} = ?" for column in keys)
        connection.executemany(
            f"UPDATE {table} SET {changes} WHERE {where}",
            [(*same.parameters, *row) for row in rows],
        )

    def attempt(self, connection: Connection, statement: Fragment) -> Any:
        return connection.execute(statement.sql, statement.parameters)

    def explain(self, connection: Connection, statement: Fragment) -> list[str]:
        # Never the same text twice: a cached statement would show the plan of an old schema.
        question = f"EXPLAIN QUERY PLAN {statement.sql} -- {uuid7()}"
        return [str(step[-1]) for step in connection.execute(question, statement.parameters)]

    def declines(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and any(
            text in str(error) for text in _LIMITS
        )

    def describe_data(self, connection: Connection, layout: Layout) -> None:
        # Without statistics SQLite takes a namespace to be ten rows, and never uses an index.
        # These are made up: a namespace is a tenth of a table, and an index narrows it down.
        rows = _statistics(layout)
        connection.executemany(
            "DELETE FROM sqlite_stat1 WHERE tbl = ? AND idx = ?", [r[:2] for r in rows]
        )
        connection.executemany("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", rows)
        connection.execute("ANALYZE sqlite_master")  # reads them


def _statistics(layout: Layout) -> list[tuple[str, str, str]]:
    table = layout.unquoted
    keys = " ".join(["10"] * (layout.spec.key_size - 1) + ["1"])
    rows = [(table, table, f"1000000 100000 {keys}")]
    history = f"{table}_history"
    rows.append((history, history, f"1000000 100000 {keys.replace('1', '10')} 1"))
    rows.append((history, layout.name("history", "commit"), "1000000 100"))
    if layout.spec.kind == "relation":
        rows.append((table, layout.name("current", "right"), "1000000 100000 10"))
        rows.append((history, layout.name("history", "right"), "1000000 100000 10"))
    rows += [
        (table, layout.name("field", f.name), "1000000 100000 100")
        for f in layout.spec.fields
        if f.index
    ]
    return rows


def _json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'."{segment}"' for segment in path)


class _DecimalSum:
    def __init__(self) -> None:
        self.values: list[Decimal] = []

    def step(self, value: str | None) -> None:
        if value is not None:
            self.values.append(Decimal(value))

    def finalize(self) -> str | None:
        return str(decimal_sum(self.values)) if self.values else None


class _DecimalAvg(_DecimalSum):
    def finalize(self) -> str | None:
        if not self.values:
            return None
        return str(decimal_mean(decimal_sum(self.values), len(self.values)))


def _order_function(value: str | None) -> str | None:
    return None if value is None else decimal_order(Decimal(value))


def _bytes_function(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def _hex_function(value: bytes | None) -> str | None:
    # SQLite's own hex() makes an empty text of NULL.
    return None if value is None else value.hex()


def _add_functions(connection: sqlite3.Connection) -> None:
    for name, function in (
        ("ontologia_decimal_order", _order_function),
        ("ontologia_bytes", _bytes_function),
        ("ontologia_hex", _hex_function),
    ):
        connection.create_function(name, 1, function, deterministic=True)
    for name, aggregate in (
        ("ontologia_decimal_sum", _DecimalSum),
        ("ontologia_decimal_avg", _DecimalAvg),
    ):
        connection.create_aggregate(name, 1, cast(Any, aggregate))


# Sessions of one process on the same file wake each other at once.
_signals: WeakValueDictionary[str, Signal] = WeakValueDictionary()
_signals_lock = threading.Lock()


def _signal(path: str) -> Signal:
    with _signals_lock:
        place = str(Path(path).resolve())
        found = _signals.get(place)
        if found is None:
            found = _signals[place] = Signal()
        return found


class SQLiteStore:
    """A store in one SQLite file, or in memory."""

    def __init__(self, path: str, config: OntologiaConfig, *, read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_VERSION:
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} is too old.",
                why="tables use STRICT, which came with 3.37.",
                fix="use a Python built with a newer SQLite.",
            )
        self._path, self._config, self._read_only = path, config, read_only
        self._in_memory = path == ":memory:"
        self.capabilities = Capabilities(
            durable=not self._in_memory,
            concurrent_processes=not self._in_memory,
            concurrent_reads=not self._in_memory,
            query_engine=True,
        )
        self.clock = SystemClock()
        self._catalog = Catalog(SQLiteDialect())
        self.signal = Signal() if self._in_memory else _signal(path)
        self._write_lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = False
        self._writer: sqlite3.Connection | None = None
        try:
            self._prepare()
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _connect(self) -> sqlite3.Connection:
        timeout = self._config.lock_timeout_ms / 1000
        target, uri = self._path, False
        if self._read_only:
            target, uri = f"file:{url_quote(self._path)}?mode=ro", True
        connection = sqlite3.connect(
            target,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
            uri=uri,
        )
        try:
            connection.execute(f"PRAGMA synchronous = {self._config.sqlite_synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
            _add_functions(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self) -> None:
        if not self._in_memory:
            self._check_path(Path(self._path))
        connection = self._connect()
        try:
            present = connection.execute(
                "SELECT name FROM sqlite_master WHERE name = 'ontologia_meta'"
            ).fetchone()
            if not self._read_only:
                self._use_wal(connection)
            if present is None:
                self._create(connection)
            self._check_format(connection)
        except BaseException:
            connection.close()
            raise
        self._writer = connection

    def _check_path(self, path: Path) -> None:
        if not path.absolute().parent.is_dir():
            raise StorageError(
                f"the directory of {self._path!r} does not exist.", fix="create it first."
            )
        if path.is_dir():
            raise InvalidDatastoreError(
                f"{self._path!r} is a directory.", fix="name a file in it, such as app.db."
            )
        if self._read_only and not path.exists():
            raise InvalidDatastoreError(
                f"{self._path!r} does not exist, and it is opened read-only.",
                fix="check the path, or open it without mode=ro to create it.",
            )

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # Changing the journal mode does not wait for other connections by itself.
        deadline = time.monotonic() + self._config.lock_timeout_ms / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _create(self, connection: sqlite3.Connection) -> None:
        if self._read_only:
            raise InvalidDatastoreError(
                f"{self._path!r} holds no datastore, and it is opened read-only.",
                fix="open it once without mode=ro.",
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            tables = {
                name
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            }
            if "ontologia_meta" not in tables:
                self._refuse_foreign(tables)
                for statement in (*BASE_TABLES, *EVENT_TABLES):
                    connection.execute(statement.format(**SQLiteDialect.words))
                # Creates the table of statistics, which types add their own lines to.
                connection.execute("ANALYZE sqlite_master")
                connection.executemany(
                    "INSERT INTO ontologia_meta (key, value) VALUES (?, ?)",
                    [("format", str(FORMAT)), ("schema_epoch", "0")],
                )
            connection.execute("COMMIT")
        finally:
            _rollback(connection)

    def _refuse_foreign(self, tables: set[str]) -> None:
        clash = tables & {"commits", "schema_types", "schema_versions", "events", "sessions"}
        if clash:
            raise InvalidDatastoreError(
                f"{self._path!r} is a database of another application.",
                why=f"it already has the tables {', '.join(sorted(clash))}.",
                fix="use a file of its own for the datastore.",
            )

    def _check_format(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT value FROM ontologia_meta WHERE key = 'format'").fetchone()
        found = row[0] if row else None
        if found != str(FORMAT):
            raise InvalidDatastoreError(
                f"{self._path!r} has the format {found!r}, this version reads {str(FORMAT)!r}.",
                fix="use the version of the ontologia package that wrote it, or a newer one.",
            )

    @contextmanager
    def read(self, namespace: str) -> Generator[SQLSnapshot]:
        # One connection holds the only copy of data in memory, so readers take turns there.
        connection = self._acquire_writer() if self._in_memory else self._borrow()
        try:
            connection.execute("BEGIN")
            yield SQLSnapshot(connection, self._catalog, namespace)
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            try:
                _rollback(connection)
            finally:
                if self._in_memory:
                    self._release_writer()
                else:
                    self._give_back(connection)

    @contextmanager
    def write(self, namespace: str, *, migrate: bool = False) -> Generator[SQLTransaction]:
        if self._read_only:
            raise opened_read_only(self._path)
        connection = self._acquire_writer()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield SQLTransaction(connection, self._catalog, namespace)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            try:
                _rollback(connection)
            finally:
                self._release_writer()

    def transact(self, namespace: str, body: Callable[[Any], T]) -> T:
        with self.write(namespace) as tx:
            return body(tx)

    def bind(self, connection: object) -> SQLiteBinding:
        if self._closed:
            raise SessionClosedError
        if self._in_memory:
            raise BindError(
                "a datastore in memory cannot be reached by another connection.",
                fix="use an SQLite file.",
            )
        return SQLiteBinding(
            connection,
            self._path,
            self._catalog,
            self.capabilities,
            _add_functions,
            self._translate,
            read_only=self._read_only,
        )

    def watch(self) -> Watch:
        if self._in_memory:
            return Watch(self.signal)
        # A connection of its own: the number tells of changes made by all others.
        connection = self._borrow()

        def version() -> object:
            try:
                return connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise self._translate(error) from error

        return Watch(self.signal, version, lambda: self._give_back(connection))

    def _acquire_writer(self) -> sqlite3.Connection:
        """The connection for writing, which one thread holds at a time."""
        if not self._write_lock.acquire(timeout=self._config.lock_timeout_ms / 1000):
            raise LockContentionError(self._config.lock_timeout_ms)
        if self._writer is None:
            self._write_lock.release()
            raise SessionClosedError
        return self._writer

    def _release_writer(self) -> None:
        self._write_lock.release()
        if self._closed:
            self._close_writer(0)

    def _borrow(self) -> sqlite3.Connection:
        with self._idle_lock:
            if self._closed:
                raise SessionClosedError
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._idle_lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        # Only what nobody uses: closing a connection under another thread crashes the process.
        # Connections in use are closed by whoever gives them back.
        with self._idle_lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._close_writer(self._config.lock_timeout_ms / 1000)

    def _close_writer(self, timeout: float) -> None:
        if self._write_lock.acquire(timeout=timeout):
            try:
                if self._writer is not None:
                    self._writer.close()
                self._writer = None
            finally:
                self._write_lock.release()

    def _translate(self, error: sqlite3.Error) -> Exception:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LockContentionError(self._config.lock_timeout_ms)
        if self._closed and isinstance(error, sqlite3.ProgrammingError):
            return SessionClosedError()
        known = _KNOWN.get(code)
        if known is not None:
            kind, what, fix = known
            return kind(f"{self._path!r} {what}.", why=f"SQLite says: {error}.", fix=fix)
        return StorageError(f"{self._path!r}: {error}.")


_KNOWN: dict[int, tuple[type[StorageError], str, str]] = {
    sqlite3.SQLITE_NOTADB: (
        InvalidDatastoreError,
        "is not a database",
        "check the path; nothing was changed.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        InvalidDatastoreError,
        "is damaged",
        "restore a backup; 'PRAGMA integrity_check' says what is wrong.",
    ),
    sqlite3.SQLITE_READONLY: (
        DatastoreReadOnlyError,
        "cannot be written",
        "check the permissions of the file and of its directory.",
    ),
    sqlite3.SQLITE_FULL: (
        DatastoreFullError,
        "has no space left",
        "free some space and commit again; nothing of this commit was written.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StorageError,
        "cannot be opened",
        "check that the directory exists and may be written.",
    ),
    sqlite3.SQLITE_TOOBIG: (StorageError, "cannot hold a value this large", "split the value."),
    sqlite3.SQLITE_IOERR: (
        StorageError,
        "could not be read or written",
        "check the disk; nothing of this commit was written.",
    ),
}


def _rollback(connection: sqlite3.Connection) -> None:
    """End a transaction that is still open; a connection that was closed has none."""
    with suppress(sqlite3.ProgrammingError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _code(error: sqlite3.Error) -> int:
    """The primary result code behind an error, 0 if SQLite did not raise it."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
