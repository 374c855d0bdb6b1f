"""Workers: who runs the handlers, one at a time or several."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ontologia.bus.acks import Acks
from ontologia.bus.handlers import Handler
from ontologia.bus.keeper import Keeper
from ontologia.bus.runtime import Runtime
from ontologia.errors import OntologiaError
from ontologia.storage.events import Claim

log = logging.getLogger(__name__)


class Workers(Protocol):
    """Runs handlers on claims."""

    def room(self, handlers: int) -> int:
        """How many claims one of so many handlers may submit."""
        ...

    def submit(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Take claims over; each is run, or handed back."""
        ...

    def busy(self) -> bool:
        """Whether something submitted is not finished."""
        ...

    def stop(self) -> None:
        """Start nothing more."""
        ...

    def close(self, timeout: float) -> None:
        """Hand back what was not started, and wait for what was."""
        ...


class InlineWorker:
    """Runs handlers in the thread of the loop, one after the other."""

    def __init__(self, runtime: Runtime, keeper: Keeper, limit: int) -> None:
        self._runtime, self._keeper, self._limit = runtime, keeper, limit
        self._acks = Acks(runtime)
        self._stopped = False

    def room(self, handlers: int) -> int:
        return self._limit

    def busy(self) -> bool:
        return self._acks.pending

    def stop(self) -> None:
        self._stopped = True

    def close(self, timeout: float) -> None:
        self._runtime.leave()
        self._acks.close()

    def submit(self, handler: Handler, claims: Sequence[Claim]) -> None:
        lease_ms = self._runtime.lease_ms(handler)
        queue = deque(claims)
        self._keeper.keep(queue, lease_ms)
        try:
            while queue and not self._stopped:
                if not self._runtime.refresh(queue, lease_ms):
                    continue
                claim = queue.popleft()
                if not handler.renew_lease:
                    self._keeper.drop([claim])
                try:
                    done = self._runtime.run(handler, claim)
                except BaseException:
                    queue.appendleft(claim)
                    raise
                if done is not None:
                    self._acks.add(done)
        finally:
            self._keeper.drop(claims)
            try:
                self._acks.flush()
            finally:
                self._runtime.hand_back(list(queue))


@dataclass(eq=False)
class _Task:
    handler: Handler
    claim: Claim
    abandoned: bool = False


class ThreadWorkers:
    """Runs several handlers at a time.

    A thread whose handler has not come back when its lease ran out is given up, and replaced:
    what it does no longer counts, and the other handlers need its place.
    """

    def __init__(
        self, runtime: Runtime, keeper: Keeper, size: int, on_exit: Callable[[], None]
    ) -> None:
        self._runtime, self._keeper, self._size = runtime, keeper, size
        self._on_exit = on_exit
        self._acks = Acks(runtime)
        self._waiting: deque[_Task] = deque()
        self._running: dict[threading.Thread, _Task | None] = {}
        self._stopped = False
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="ontologia-worker", daemon=True)
        self._running[thread] = None
        thread.start()

    def room(self, handlers: int) -> int:
        with self._changed:
            self._replace_lapsed()
            active = sum(task is not None for task in self._running.values())
            room = max(0, 2 * self._size - len(self._waiting) - active)
            return -(-room // handlers)  # a fair share, rounded up

    def _replace_lapsed(self) -> None:
        for thread, task in list(self._running.items()):
            if task is not None and self._runtime.has_lapsed(task.claim) and not self._stopped:
                log.warning(
                    "handler %s did not return before its lease ran out",
                    task.handler.handler_id,
                    extra={"event_id": task.claim.event.id},
                )
                task.abandoned = True
                del self._running[thread]
                self._start()

    def busy(self) -> bool:
        with self._changed:
            active = any(task is not None for task in self._running.values())
            return bool(self._waiting) or active or self._acks.pending

    def submit(self, handler: Handler, claims: Sequence[Claim]) -> None:
        self._keeper.keep(claims, self._runtime.lease_ms(handler))
        with self._changed:
            self._waiting.extend(_Task(handler, c) for c in claims)
            self._changed.notify(len(claims))

    def _next(self) -> _Task | None:
        """What to run now; None at the end."""
        me = threading.current_thread()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            if self._stopped:
                return None
            task = self._running[me] = self._waiting.popleft()
            return task

    def _work(self) -> None:
        me = threading.current_thread()
        self._runtime.enter()
        while (task := self._next()) is not None:
            try:
                self._run(task)
                if not self._waiting:
                    self._acks.flush()
            except OntologiaError:
                # The store could not be reached; the event comes back when its lease runs out.
                log.exception("event %s could not be finished", task.claim.event.id)
            except BaseException as error:  # an exit inside a handler ends the whole run
                self._error = error
                self._on_exit()
                with suppress(OntologiaError):  # it comes back with its lease
                    self._runtime.hand_back([task.claim])
            finally:
                self._keeper.drop([task.claim])
                with self._changed:
                    if not task.abandoned:
                        self._running[me] = None
                self._runtime.wake()
            if task.abandoned:
                break
        self._runtime.leave()

    def _run(self, task: _Task) -> None:
        queue = deque([task.claim])
        if not self._runtime.refresh(queue, self._runtime.lease_ms(task.handler)):
            return
        if not task.handler.renew_lease:
            self._keeper.drop([task.claim])
        done = self._runtime.run(task.handler, task.claim)
        if done is not None:
            self._acks.add(done)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        self.stop()
        with self._changed:
            waiting, self._waiting = [t.claim for t in self._waiting], deque()
            threads = list(self._running)
        self._keeper.drop(waiting)
        try:
            self._runtime.hand_back(waiting)
        finally:
            deadline = time.monotonic() + timeout
            for thread in threads:
                # A handler that never returns is left behind; its lease will run out.
                thread.join(max(0.0, deadline - time.monotonic()))
            self._acks.close()
        if self._error is not None:
            raise self._error
