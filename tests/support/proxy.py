"""A proxy in front of a server that loses messages on purpose."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes everything on, until it is told to break a connection."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        user = f"{parts.username}@" if parts.username else ""
        self.uri = parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()
        self._word: bytes | None = None
        self._arrives = True
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def cut_at(self, word: bytes, *, arrives: bool) -> None:
        """Break the connection at the next message that holds a word.

        The message still arrives, and only its answer is lost; or it is lost itself.
        """
        self._word, self._arrives = word, arrives

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            self._start(self._pass_on, client, server, True)
            self._start(self._pass_on, server, client, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        try:
            while data := source.recv(65536):
                word = self._word
                if from_client and word is not None and word in data:
                    self._word = None
                    self.cuts += 1
                    if self._arrives:
                        _end(source)
                        target.sendall(data)
                        time.sleep(0.3)
                    return
                target.sendall(data)
        except OSError:
            pass
        finally:
            _end(source)
            if from_client and not self.cuts:
                _end(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _end(self._listening)
        self._listening.close()
        for connection in self._sockets:
            _end(connection)
            connection.close()
        for thread in self._threads:
            thread.join(5)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
