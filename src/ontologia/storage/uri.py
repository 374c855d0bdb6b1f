"""Datastore URIs: which backend, and where."""

from __future__ import annotations

import re
import threading
from urllib.parse import parse_qsl, unquote

from ontologia.config import OntologiaConfig
from ontologia.errors import DatastoreURIError, MissingDependencyError
from ontologia.model.canonical import text
from ontologia.storage.base import Store
from ontologia.storage.memory import MemoryStore

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+):(//)?")
_FIX = (
    "use sqlite:///app.db, sqlite:////absolute/app.db, a path, :memory:, memory://, or "
    "postgresql://user@host/database."
)

# Named memory stores are shared by the sessions of this process for as long as one is open.
_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def open_store(uri: str, config: OntologiaConfig) -> Store:
    """The store behind a URI; raises DatastoreURIError or a StorageError."""
    if not isinstance(uri, str) or not uri.strip():
        raise DatastoreURIError(f"{uri!r} is not a datastore URI.", fix=_FIX)
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return _sqlite(uri, config, read_only=False)
    if not scheme[2]:
        raise DatastoreURIError(
            f"{uri!r} looks like a URI without its slashes.",
            fix=f"{_FIX[:-1]}; a file whose name holds a colon is written ./{uri}.",
        )
    if scheme[1].lower() == "memory":
        return _memory(uri[len("memory://") :], config)
    if scheme[1].lower() == "sqlite":
        return _sqlite_uri(uri, config)
    if scheme[1].lower() in ("postgresql", "postgres"):
        return _postgres(uri, config)
    raise DatastoreURIError(f"{uri!r} has the unknown scheme {scheme[1]!r}.", fix=_FIX)


def _memory(name: str, config: OntologiaConfig) -> Store:
    if not name:
        return MemoryStore(config.lock_timeout_ms)
    with _named_lock:
        found = _named.get(name)
        if found is None:
            found = _named[name] = MemoryStore(config.lock_timeout_ms, lambda: _forget(name))
        found.users += 1
        return found


def _forget(name: str) -> None:
    with _named_lock:
        store = _named[name]
        store.users -= 1
        if not store.users:
            del _named[name]


def _postgres(uri: str, config: OntologiaConfig) -> Store:
    # Imported on demand: the driver is an optional dependency.
    try:
        from ontologia.storage.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("psycopg"):
            raise MissingDependencyError(str(error.name), "postgres") from error
        raise
    return PostgresStore(uri, config)


def _sqlite_uri(uri: str, config: OntologiaConfig) -> Store:
    rest, _, query = uri[len("sqlite://") :].partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    mode = options[0][1] if options else "rw"
    if len(options) > 1 or (options and options[0][0] != "mode") or mode not in ("rw", "ro"):
        raise DatastoreURIError(
            f"{uri!r} has options that are not known.", fix="the only option is mode=ro or mode=rw."
        )
    if rest in ("", "/", "/:memory:"):
        return _sqlite(":memory:", config, read_only=False)
    if not rest.startswith("/"):
        raise DatastoreURIError(
            f"{uri!r} names a host.",
            why="after sqlite:// comes a slash and then the path.",
            fix="use sqlite:///relative.db or sqlite:////absolute.db.",
        )
    return _sqlite(unquote(rest[1:]), config, read_only=mode == "ro")


def _sqlite(path: str, config: OntologiaConfig, *, read_only: bool) -> Store:
    try:
        text(path)
    except ValueError as error:
        raise DatastoreURIError(f"{path!r} is not a path: {error}.", fix=_FIX) from None
    # Imported on demand: programs on other backends do not need SQLite.
    from ontologia.storage.sqlite import SQLiteStore

    return SQLiteStore(path, config, read_only=read_only)
