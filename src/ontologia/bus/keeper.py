"""The keeper: heartbeats and leases, kept alive beside the handlers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ontologia.bus.runtime import Runtime
from ontologia.errors import OntologiaError
from ontologia.storage.events import Claim

log = logging.getLogger(__name__)


class Keeper:
    """A background thread that says the session is alive and extends leases in its care."""

    def __init__(
        self, runtime: Runtime, heartbeat: Callable[[], None], beat_ms: int, shortest_lease_ms: int
    ) -> None:
        self._runtime, self._heartbeat, self._beat = runtime, heartbeat, beat_ms / 1000
        self._interval = max(1, min(beat_ms, shortest_lease_ms // 3)) / 1000
        self._claims: dict[str, tuple[Claim, int]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ontologia-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._stop.set()
        self._thread.join()

    def keep(self, claims: Iterable[Claim], lease_ms: int) -> None:
        """Take claims into care."""
        with self._lock:
            self._claims.update({c.token: (c, lease_ms) for c in claims})

    def drop(self, claims: Iterable[Claim]) -> None:
        """Let claims go."""
        with self._lock:
            for claim in claims:
                self._claims.pop(claim.token, None)

    def _run(self) -> None:
        beat = time.monotonic()
        while not self._stop.wait(self._interval):
            try:
                if time.monotonic() - beat >= self._beat:
                    beat = time.monotonic()
                    self._heartbeat()
                self._renew()
            except OntologiaError:
                log.exception("the keeper could not reach the store; it tries again")

    def _renew(self) -> None:
        with self._lock:
            kept = list(self._claims.values())
        for lease_ms in {lease for _, lease in kept}:
            self._runtime.renew([c for c, lease in kept if lease == lease_ms], lease_ms)
