"""SQLite inside a transaction of the caller: parts of it, on the caller's connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import fsdecode
from pathlib import Path
from typing import Any

from ontologia.errors import BindError, DatastoreReadOnlyError, LockContentionError
from ontologia.storage.base import Capabilities, T
from ontologia.storage.sql.store import Catalog, SQLSnapshot, SQLTransaction
from ontologia.storage.unwrap import ACCEPTED, kind_of, unwrapped
from ontologia.storage.watch import Signal

_SAVEPOINT = "ontologia_bound"
# Takes the lock for writing before anything is read, without writing anything.
_LOCK = "UPDATE ontologia_meta SET value = value WHERE 0"


class _BoundConnection:
    """The caller's connection, with cursors that its settings do not reach."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def _cursor(self) -> sqlite3.Cursor:
        cursor = sqlite3.Connection.cursor(self._raw)
        cursor.row_factory = None
        return cursor

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> sqlite3.Cursor:
        return self._cursor().executemany(sql, parameters)


class SQLiteBinding:
    """Transactions that are parts of the one open on a connection of the caller."""

    def __init__(
        self,
        connection: object,
        path: str,
        catalog: Catalog,
        capabilities: Capabilities,
        add_functions: Callable[[sqlite3.Connection], None],
        translate: Callable[[sqlite3.Error], Exception],
        *,
        read_only: bool,
    ) -> None:
        self._given, self._path, self._catalog = connection, path, catalog.apart()
        self._add_functions, self._explain = add_functions, translate
        self._read_only = read_only
        # Results are read at once: the caller goes on with the connection meanwhile.
        self.capabilities = replace(capabilities, concurrent_reads=False)
        # Nobody is woken before the caller commits; then all see that the file has changed.
        self.signal = Signal()
        self._checked: sqlite3.Connection | None = None
        self._raw()

    def _raw(self) -> sqlite3.Connection:
        """The driver's connection, in a transaction or about to begin one."""
        raw = unwrapped(self._given)
        if not isinstance(raw, sqlite3.Connection):
            raise BindError(
                f"a connection of {kind_of(raw)} does not lead to an SQLite file.", fix=ACCEPTED
            )
        try:
            if raw is not self._checked:
                self._check(_BoundConnection(raw))
                if not self._has_functions(_BoundConnection(raw)):
                    self._add_functions(raw)
                self._checked = raw
            if not raw.in_transaction and _begins_by_hand(raw):
                raise BindError(
                    "no transaction is open on the connection.",
                    why="it is in autocommit mode, in which each statement would be on its own.",
                    fix="begin one first: execute('BEGIN IMMEDIATE'), or atomic() in Django.",
                )
        except sqlite3.Error as error:
            raise self._translate(error) from error
        return raw

    def _check(self, connection: _BoundConnection) -> None:
        (path,) = connection.execute(  # as bytes, whatever the caller wants text to be
            "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"
        ).fetchone()
        found = fsdecode(path or b"")
        if not found or not _same(found, self._path):
            raise BindError(
                f"the connection leads to {found or ':memory:'!r}, "
                f"the session to {str(Path(self._path).resolve())!r}.",
                fix="bind a connection to the file of the session.",
            )
        hidden = connection.execute(
            "SELECT t.name FROM sqlite_temp_master AS t JOIN main.sqlite_master AS m "
            "ON lower(t.name) = lower(m.name) ORDER BY 1"
        ).fetchall()
        if hidden:
            raise BindError(
                f"temporary tables hide those of the file: {', '.join(str(r[0]) for r in hidden)}.",
                fix="give the temporary tables other names.",
            )

    def _has_functions(self, connection: _BoundConnection) -> bool:
        asked = "SELECT 1 FROM pragma_function_list WHERE name = 'ontologia_decimal_avg'"
        return connection.execute(asked).fetchone() is not None

    @contextmanager
    def _part(self) -> Generator[_BoundConnection]:
        """The connection in a transaction, with text as text."""
        raw = self._raw()
        factory = raw.text_factory
        raw.text_factory = str
        try:
            connection = _BoundConnection(raw)
            if not raw.in_transaction:  # the driver would do the same before it writes
                connection.execute(f"BEGIN {raw.isolation_level}")
            yield connection
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            raw.text_factory = factory

    @contextmanager
    def read(self, namespace: str) -> Generator[SQLSnapshot]:
        with self._part() as connection:
            yield SQLSnapshot(connection, self._catalog, namespace)

    def transact(self, namespace: str, body: Callable[[Any], T]) -> T:
        if self._read_only:
            raise opened_read_only(self._path)
        with self._part() as connection:
            connection.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                connection.execute(_LOCK)
                result = body(SQLTransaction(connection, self._catalog, namespace))
            except BaseException as error:
                self._undo(connection, error)
                raise
            connection.execute(f"RELEASE {_SAVEPOINT}")
            return result

    def _undo(self, connection: _BoundConnection, error: BaseException) -> None:
        try:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
            connection.execute(f"RELEASE {_SAVEPOINT}")
        except sqlite3.Error:
            # After some errors, such as a full disk, SQLite has undone everything already.
            error.add_note("the whole transaction of the connection was rolled back by SQLite.")

    def _translate(self, error: sqlite3.Error) -> Exception:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return BindError(
                "somebody else has written since the transaction began to read.",
                why="it saw the file as it was before, and SQLite lets it only read from then on.",
                fix="roll back and try again; begin transactions that write with BEGIN IMMEDIATE.",
            )
        translated = self._explain(error)
        if isinstance(translated, LockContentionError) and self._checked is not None:
            with suppress(sqlite3.Error):  # it waited for as long as the caller has it wait
                asked = _BoundConnection(self._checked).execute("PRAGMA busy_timeout")
                translated = LockContentionError(int(asked.fetchone()[0]))
        return translated


def opened_read_only(path: str) -> DatastoreReadOnlyError:
    """The error of writing to a file that is opened for reading."""
    return DatastoreReadOnlyError(f"{path!r} is opened read-only.", fix="open it without mode=ro.")


def _same(a: str, b: str) -> bool:
    try:
        return Path(a).samefile(b)
    except OSError:  # one of them is gone
        return False


def _begins_by_hand(raw: sqlite3.Connection) -> bool:
    """Whether only the caller begins transactions."""
    autocommit = getattr(raw, "autocommit", -1)  # since Python 3.12; -1: isolation_level counts
    return autocommit is True or (autocommit == -1 and raw.isolation_level is None)
