"""A look behind the SQLite backend, with nothing but the standard library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

_connect = sqlite3.connect  # the fixture below replaces it


def rows(path: Path, sql: str, *parameters: Any) -> list[Any]:
    """What any SQL tool would read from the file."""
    with closing(_connect(path)) as connection:
        return connection.execute(sql, parameters).fetchall()


def tamper(path: Path, *statements: str) -> None:
    """Change the file behind the library's back."""
    with closing(_connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the write lock of the file."""
    with closing(_connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class Driver:
    """Records the connections that are opened and the statements they execute."""

    def __init__(self) -> None:
        self.connections: list[sqlite3.Connection] = []

    def pragma(self, text: str) -> list[Any]:
        """Execute a pragma on every connection; the results."""
        found = [c.execute(f"PRAGMA {text}").fetchone() for c in self.connections]
        return [row[0] for row in found if row]

    @contextmanager
    def recorded(self) -> Iterator[list[str]]:
        """The statements executed within, with their values."""
        statements: list[str] = []
        for connection in self.connections:
            connection.set_trace_callback(statements.append)
        try:
            yield statements
        finally:
            for connection in self.connections:
                connection.set_trace_callback(None)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver of every session that the test opens from now on."""
    found = Driver()

    def recording(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = _connect(*args, **kwargs)
        found.connections.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", recording)
    return found
