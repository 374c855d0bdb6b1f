"""The run loop: claim, run, acknowledge, wait; until told to stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from types import FrameType
from typing import Any

from ontologia.bus.handlers import Handler
from ontologia.bus.keeper import Keeper
from ontologia.bus.runtime import Runtime
from ontologia.bus.scheduler import Scheduler
from ontologia.bus.workers import InlineWorker, ThreadWorkers, Workers
from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import StorageError
from ontologia.model.canonical import datetime_text
from ontologia.storage.base import Store, Transaction
from ontologia.storage.events import SessionRecord
from ontologia.storage.watch import Watch

log = logging.getLogger(__name__)


class Loop:
    """One run of handlers and schedules."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        namespace: str,
        session: SessionRecord,
        clock: Clock,
        config: OntologiaConfig,
        handlers: Sequence[Handler],
        scheduler: Scheduler,
        concurrency: int,
    ) -> None:
        self._runtime, self._store, self._namespace = runtime, store, namespace
        self._session, self._clock, self._config = session, clock, config
        self._handlers, self._scheduler, self._concurrency = handlers, scheduler, concurrency
        self._turn = 0
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._workers: Workers | None = None

    def stop(self) -> None:
        """Finish what runs, hand back the rest, and return from :meth:`run`."""
        self._stopping.set()
        if self._workers is not None:
            self._workers.stop()
        self._store.signal.notify()

    def leave(self) -> None:
        """Say that the session has ended."""
        now = datetime_text(self._clock.now())
        self._say(lambda tx: tx.events.stop_session(self._session.session_id, now))

    def join(self) -> None:
        """Wait for :meth:`run` to return, as long as a handler may take."""
        self._ended.wait(self._patience)

    @property
    def _patience(self) -> float:
        return max([self._runtime.lease_ms(h) for h in self._handlers], default=0) / 1000

    def run(self, max_iterations: int | None, until_idle: bool) -> None:
        """Run until stopped, idle, or through with so many iterations."""
        try:
            with _signals(self.stop):
                self._run(max_iterations, until_idle)
        finally:
            self._ended.set()

    def _run(self, max_iterations: int | None, until_idle: bool) -> None:
        self._runtime.register(self._handlers)
        self._say(lambda tx: tx.events.register_session(self._session))
        beat = self._config.session_heartbeat_interval_ms
        shortest = min([self._runtime.lease_ms(h) for h in self._handlers], default=beat)
        keeper = Keeper(self._runtime, self._heartbeat, beat, shortest)
        if self._concurrency == 1:
            self._workers = InlineWorker(self._runtime, keeper, self._config.event_claim_limit)
        else:
            self._workers = ThreadWorkers(self._runtime, keeper, self._concurrency, self.stop)
        keeper.start()
        try:
            self._scheduler.start()
            with closing(self._store.watch()) as watch:
                self._iterate(self._workers, watch, max_iterations, until_idle)
        finally:
            try:
                self._workers.close(self._patience)
            finally:
                keeper.stop()

    def _say(self, what: Callable[[Any], object]) -> None:
        self._store.transact(self._namespace, what)

    def _heartbeat(self) -> None:
        now = datetime_text(self._clock.now())

        def body(tx: Transaction) -> None:
            if not tx.events.heartbeat(self._session.session_id, now):
                # Somebody has cleaned it up.
                tx.events.register_session(self._session._replace(last_heartbeat=now))

        self._store.transact(self._namespace, body)

    def _iterate(
        self, workers: Workers, watch: Watch, max_iterations: int | None, until_idle: bool
    ) -> None:
        iterations = 0
        poll = self._config.event_poll_interval_ms / 1000
        while not self._stopping.is_set():
            watch.mark()
            # Asked before looking: what finishes in between may have emitted something.
            busy = workers.busy()
            try:
                self._scheduler.tick()
                claimed = self._claim_all(workers)
            except StorageError as error:
                if not error.temporary:
                    raise
                # Nothing is lost: what was claimed comes back when its lease runs out.
                log.exception("the store is busy or away; trying again")
                claimed, busy = 0, True
            iterations += 1
            if max_iterations is not None and iterations >= max_iterations:
                self._drain(workers, watch.wait)
                return
            if claimed >= self._config.max_events_per_iteration:
                self._stopping.wait(poll)  # the safety valve: let others have a turn
            elif not claimed:
                if until_idle and not busy:
                    return
                following = self._scheduler.next_in()
                watch.wait(poll if following is None else min(poll, following))

    def _drain(self, workers: Workers, wait: Callable[[float], object]) -> None:
        while workers.busy() and not self._stopping.is_set():
            wait(0.01)

    def _in_turn(self) -> list[Handler]:
        """The handlers by priority; among equal ones, another comes first each time."""
        self._turn += 1
        turned: list[Handler] = []
        for _, group in groupby(self._handlers, lambda h: h.priority):
            equal = list(group)
            first = (self._turn - 1) % len(equal)
            turned += equal[first:] + equal[:first]
        return turned

    def _claim_all(self, workers: Workers) -> int:
        """One round over the handlers; the number of events claimed, or given up."""
        total = 0
        handlers = self._in_turn()
        for place, handler in enumerate(handlers):
            left = self._config.max_events_per_iteration - total
            room = workers.room(sum(h.priority == handler.priority for h in handlers[place:]))
            limit = min(self._config.event_claim_limit, room, left)
            if limit < 1 or self._stopping.is_set():
                continue
            claims = self._runtime.claim(handler, limit)
            if claims.taken:
                workers.submit(handler, claims.taken)
            total += len(claims.taken) + len(claims.dead)
        return total


@contextmanager
def _signals(stop: Callable[[], None]) -> Generator[None]:
    """Stop on SIGINT and SIGTERM; a second one exits at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, lambda n, f: os._exit(128 + n))
        # In a thread: the lock it needs may be held by what the signal has interrupted.
        threading.Thread(target=stop, name="ontologia-stop").start()

    before = {n: signal.signal(n, on_signal) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
