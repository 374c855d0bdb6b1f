"""Waking up: one connection per process and database that listens for changes."""

from __future__ import annotations

import logging
import select
import socket
import threading
from typing import Any
from uuid import uuid4

import psycopg

from ontologia.storage.postgres_dialect import shortened
from ontologia.storage.sql.dialect import quote
from ontologia.storage.watch import Signal

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_LONGEST_PAUSE = 5.0
_CHECK_SECONDS = 30.0

_listeners: dict[tuple[str, str], Listener] = {}
_lock = threading.Lock()


def channel_name(schema: str) -> str:
    """The channel of a schema, quoted."""
    return shortened(quote(f"ontologia:{schema}"))


def listener_for(conninfo: str, schema: str) -> Listener:
    """The listener of this process for a schema of a database; release it when done."""
    with _lock:
        found = _listeners.get((conninfo, schema))
        if found is None:
            found = _listeners[conninfo, schema] = Listener(conninfo, schema)
        found.users += 1
        return found


class Listener:
    """Tells the signal of this process what other processes announce."""

    def __init__(self, conninfo: str, schema: str) -> None:
        self._conninfo, self._schema = conninfo, schema
        self.signal, self.users = Signal(), 0
        self.name = str(uuid4())
        """What this process announces under; it was told of its own changes already."""
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self._waker, self._woken = socket.socketpair()

    def start(self) -> None:
        """Begin to listen, unless it does already; returns when it does, or cannot yet."""
        with _lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ontologia-listen", daemon=True
                )
                self._thread.start()
        self._ready.wait(_POLL_SECONDS)

    def release(self) -> None:
        """One user less; the last one ends it."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            _listeners.pop((self._conninfo, self._schema), None)
        self._stopped.set()
        self._waker.send(b"!")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._waker.close()
        self._woken.close()

    def _run(self) -> None:
        pause = 0.05
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    connection.execute(f"LISTEN {channel_name(self._schema)}".encode())
                    self._ready.set()
                    pause = 0.05
                    self.signal.notify()  # what was announced meanwhile was missed
                    self._listen(connection)
            except psycopg.Error as error:
                self._ready.set()
                log.warning("listening to the database broke off: %s", error)
                self._stopped.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        while not self._stopped.is_set():
            sources = [connection.fileno(), self._woken.fileno()]
            ready, _, _ = select.select(sources, [], [], _CHECK_SECONDS)
            if not ready:
                connection.execute("SELECT 1")  # a peer that is gone without a word
            told = [n.payload for n in connection.notifies(timeout=0)]
            if any(name != self.name for name in told):
                self.signal.notify()
