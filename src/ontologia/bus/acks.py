"""Acknowledgements, written together."""

from __future__ import annotations

import logging
import threading
import time

from ontologia.bus.runtime import Finished, Runtime
from ontologia.errors import OntologiaError, StorageError

log = logging.getLogger(__name__)

# How long acknowledgements may wait for others.
GROUP_SECONDS = 0.02


class Acks:
    """Gathers what succeeded, and writes it in groups.

    Whoever adds writes the group when it is old enough, or calls :meth:`flush` when nothing else
    is at hand. A thread does it instead while a slow handler runs, so that nothing waits for it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._finished: list[Finished] = []
        self._since = 0.0
        # Held while a group is written: when flush() returns, everything before it is stored.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._some, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ontologia-acks", daemon=True)
        self._thread.start()

    def add(self, finished: Finished) -> None:
        """Take over an acknowledgement."""
        now = time.monotonic()
        with self._lock:
            if not self._finished:
                self._since = now
                self._some.set()
            self._finished.append(finished)
            old = now - self._since >= GROUP_SECONDS
        if old:
            self.flush()

    @property
    def pending(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._finished) or self._writing.locked()

    def flush(self) -> None:
        """Write what there is."""
        with self._writing:
            with self._lock:
                group, self._finished = self._finished, []
                self._some.clear()
            if not group:
                return
            try:
                self._runtime.finish(group)
            except StorageError as error:
                if error.temporary:
                    # It is tried again, and fails for good with the leases.
                    with self._lock:
                        self._finished[:0] = group
                        self._some.set()
                raise

    def _watch(self) -> None:
        self._runtime.enter()
        while not self._closed.is_set():
            self._some.wait()
            self._closed.wait(GROUP_SECONDS)
            with self._lock:
                old = self._finished and time.monotonic() - self._since >= GROUP_SECONDS
            if old and not self._closed.is_set():
                try:
                    self.flush()
                except OntologiaError:
                    log.exception("acknowledgements could not be written")
                    self._closed.wait(self._runtime.poll_seconds)
                self._runtime.wake()

    def close(self) -> None:
        """Write the last ones."""
        self._closed.set()
        self._some.set()
        self._thread.join()
        self.flush()
