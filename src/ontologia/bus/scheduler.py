"""The scheduler: ticks become events, each of them once however many sessions run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from uuid_utils.compat import uuid7

from ontologia.bus.schedules import Schedule
from ontologia.clock import Clock
from ontologia.errors import ScheduleError
from ontologia.model.canonical import datetime_text
from ontologia.model.event import event_payload
from ontologia.storage.base import Store, Transaction
from ontologia.storage.events import EventRecord, tick_key

# A loop that was held up this many ticks is not made to replay all of them.
_MOST = 1_000


class Scheduler:
    """Enqueues the events of schedules when they are due."""

    def __init__(
        self, store: Store, namespace: str, clock: Clock, given: Iterable[Schedule] | None
    ) -> None:
        self._store, self._namespace, self._clock = store, namespace, clock
        schedules = list(given or ()) if isinstance(given, Iterable | None) else [given]
        for schedule in schedules:
            if not isinstance(schedule, Schedule):
                raise ScheduleError(
                    f"{schedule!r} is not a schedule.", fix="pass a list of Schedule objects."
                )
        self._schedules = {s.key: s for s in schedules}
        if len(self._schedules) != len(schedules):
            raise ScheduleError("two schedules are the same.", fix="give each a name of its own.")
        self._next: dict[str, datetime] = {}

    def start(self) -> None:
        """Decide where each schedule goes on."""
        now = self._clock.now()
        with self._store.read(self._namespace) as snapshot:
            last = {key: snapshot.events.last_tick(key) for key in self._schedules}
        missed: dict[str, list[datetime]] = {}
        for key, schedule in self._schedules.items():
            known = last[key]
            if schedule.misfire == "once" and known is not None:
                tick = schedule.last_between(datetime.fromisoformat(known), now)
                if tick is not None:
                    missed[key] = [tick]
            self._plan(key, now)
        new = [key for key, known in last.items() if known is None]
        if new or missed:
            self._enqueue(missed, now, new)

    def _plan(self, key: str, after: datetime) -> None:
        following = self._schedules[key].next_after(after)
        if following is None:
            self._next.pop(key, None)
        else:
            self._next[key] = following

    def tick(self) -> None:
        """Enqueue what has become due since the last call."""
        now = self._clock.now()
        due = {key: self._due(key, tick, now) for key, tick in self._next.items() if tick <= now}
        if due:
            self._enqueue(due, now)
            # Only now: what could not be stored is tried again.
            for key, ticks in due.items():
                self._plan(key, ticks[-1])

    def _due(self, key: str, first: datetime, now: datetime) -> list[datetime]:
        ticks = [first]
        while len(ticks) < _MOST:
            following = self._schedules[key].next_after(ticks[-1])
            if following is None or following > now:
                break
            ticks.append(following)
        return ticks

    def next_in(self) -> float | None:
        """Seconds until the next tick, None if there is none."""
        if not self._next:
            return None
        return max(0.0, (min(self._next.values()) - self._clock.now()).total_seconds())

    def _enqueue(
        self, due: dict[str, list[datetime]], now: datetime, new: Sequence[str] = ()
    ) -> None:
        def body(tx: Transaction) -> int:
            stored = 0
            for key in new:
                # From now on somebody misses its ticks.
                tx.events.record_tick(key, datetime_text(now))
            for key, ticks in due.items():
                # What another session made may be handled and gone, with its dedupe key.
                gone = tx.events.cleaned_tick(key)
                texts = [t for t in map(datetime_text, ticks) if t > gone]
                if texts:
                    records = [self._record(key, tick, now) for tick in texts]
                    stored += sum(tx.events.enqueue(records))
                    tx.events.record_tick(key, texts[-1])
            return stored

        if self._store.transact(self._namespace, body):
            self._store.signal.notify()

    def _record(self, key: str, tick: str, now: datetime) -> EventRecord:
        event, event_id = self._schedules[key].event, str(uuid7())
        return EventRecord(
            event_id,
            self._namespace,
            event.__event_type__,
            event_payload(event),
            datetime_text(now),
            event.priority,
            event_id,
            0,
            None,
            None,
            tick_key(key, tick),
        )
