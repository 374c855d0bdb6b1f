"""Waiting for changes of a store, without asking it all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# How soon a change made by another process is noticed.
POLL_SECONDS = 0.025


class Signal:
    """Tells threads of this process that a store has changed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """The number of changes told so far."""
        return self._count

    def notify(self) -> None:
        """Wake everybody who waits."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout: float) -> bool:
        """Wait for a change after the one seen; whether there was one."""
        with self._condition:
            return self._condition.wait_for(lambda: self._count != seen, timeout)


class Watch:
    """Notices changes of a store: at once from this process, soon from another."""

    def __init__(
        self,
        signal: Signal,
        version: Callable[[], object] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._signal, self._version, self._on_close = signal, version, on_close
        self._seen = self._current()

    def close(self) -> None:
        """Release what it needs to look at the store."""
        if self._on_close is not None:
            self._on_close()

    def _current(self) -> tuple[int, object]:
        return self._signal.count, None if self._version is None else self._version()

    def mark(self) -> None:
        """Take what there is now for known; call it before looking, and wait after."""
        self._seen = self._current()

    def wait(self, timeout: float) -> bool:
        """Wait until something changed since the mark; False when the time is over."""
        deadline = time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0:
            if self._current() != self._seen:
                return True
            pause = remaining if self._version is None else min(remaining, POLL_SECONDS)
            self._signal.wait(self._seen[0], pause)
        return self._current() != self._seen
