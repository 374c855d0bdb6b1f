"""Looking at events, and handing them out again: what operators need."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import EventNotFoundError, Failure, HandlerError, ValidationError
from ontologia.model.canonical import datetime_text, text
from ontologia.model.event import Event
from ontologia.query.binding import check_moment, check_number
from ontologia.state.events import StoredEvent
from ontologia.state.reading import Reader
from ontologia.storage.base import Store, Transaction
from ontologia.storage.events import ClaimRecord, DeadLetter

# How many events a cleanup removes in one transaction.
_PIECE = 10_000


@dataclass(frozen=True)
class SessionInfo:
    """A session that runs, or ran, handlers."""

    session_id: str
    started_at: datetime
    last_heartbeat: datetime
    metadata: dict[str, object]
    state: str
    """``running``, ``stopped``, or ``dead`` if it has been silent for too long."""


@dataclass(frozen=True)
class HandlerStats:
    """What one handler has before it, of one type of event."""

    handler_id: str
    type: str
    pending: int
    claimed: int
    dead: int
    oldest_pending_seconds: float | None


@dataclass(frozen=True)
class Stats:
    """The state of the bus at a moment."""

    handlers: tuple[HandlerStats, ...]

    @property
    def pending(self) -> int:
        """Deliveries that wait, over all handlers."""
        return sum(h.pending for h in self.handlers)

    @property
    def claimed(self) -> int:
        """Deliveries that are worked on."""
        return sum(h.claimed for h in self.handlers)

    @property
    def dead(self) -> int:
        """Deliveries that were given up."""
        return sum(h.dead for h in self.handlers)


@dataclass(frozen=True)
class Inspection:
    """An event, and where it stands with each handler that it was handed to."""

    event: StoredEvent
    claims: tuple[ClaimRecord, ...]


class Events:
    """The events of a session's namespace."""

    def __init__(
        self, store: Store, reader: Reader, namespace: str, clock: Clock, config: OntologiaConfig
    ) -> None:
        self._store, self._reader, self._namespace = store, reader, namespace
        self._clock, self._config = clock, config

    def list(self, limit: int = 10) -> builtins.list[StoredEvent]:
        """The newest events, newest first."""
        check_number("limit", limit)
        with self._reader.view() as view:
            return [StoredEvent.from_record(r) for r in view.snapshot.events.latest(limit)]

    def inspect(self, event_id: str) -> Inspection:
        """One event with its claims; raises EventNotFoundError."""
        with self._reader.view() as view:
            record = view.snapshot.events.get(_text("event_id", event_id))
            if record is None:
                raise EventNotFoundError(event_id, self._namespace)
            claims = view.snapshot.events.claims(event_id)
        return Inspection(StoredEvent.from_record(record), tuple(claims))

    def chain(self, root_event_id: str) -> builtins.list[StoredEvent]:
        """All events that go back to one, itself included, oldest first."""
        with self._reader.view() as view:
            found = view.snapshot.events.chain(_text("root_event_id", root_event_id))
        return [StoredEvent.from_record(record) for record in found]

    def dead_letters(self, limit: int = 10) -> builtins.list[DeadLetter]:
        """What handlers gave up, newest first."""
        check_number("limit", limit)
        with self._reader.view() as view:
            return view.snapshot.events.dead_letters(limit)

    def sessions(self) -> builtins.list[SessionInfo]:
        """The sessions that run or ran handlers, newest first."""
        now = self._clock.now()
        ttl = timedelta(milliseconds=self._config.session_ttl_ms)
        with self._reader.view() as view:
            records = view.snapshot.events.sessions()
        result: builtins.list[SessionInfo] = []
        for r in records:
            heartbeat = datetime.fromisoformat(r.last_heartbeat)
            state = "running" if now - heartbeat <= ttl else "dead"
            result.append(
                SessionInfo(
                    r.session_id,
                    datetime.fromisoformat(r.started_at),
                    heartbeat,
                    r.metadata,
                    state if r.stopped_at is None else "stopped",
                )
            )
        return result

    def stats(self) -> Stats:
        """How much waits, is worked on and was given up, by handler and type."""
        now = self._clock.now()
        with self._reader.view() as view:
            backlogs = view.snapshot.events.backlog(datetime_text(now))
        found: builtins.list[HandlerStats] = []
        for b in backlogs:
            age = None
            if b.oldest_pending is not None:
                age = (now - datetime.fromisoformat(b.oldest_pending)).total_seconds()
            found.append(HandlerStats(b.handler_id, b.type, b.pending, b.claimed, b.dead, age))
        return Stats(tuple(found))

    def replay(self, event_id: str, *, handler_id: str | None = None) -> int:
        """Hand an event out again, to all handlers that finished it or to one; to how many.

        It is a new generation: what the handlers emit again is not taken for the same.
        """

        def body(tx: Transaction) -> int:
            if tx.events.get(_text("event_id", event_id)) is None:
                raise EventNotFoundError(event_id, self._namespace)
            return tx.events.redeliver(event_ids=[event_id], handler_id=_handler(handler_id))

        return self._hand_out(body)

    def replay_all(
        self,
        *,
        type: builtins.type[Event] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        root_event_id: str | None = None,
        handler_id: str | None = None,
    ) -> int:
        """The same for all events that match: their type, their time, their chain."""

        def body(tx: Transaction) -> int:
            found = tx.events.matching(
                type=None if type is None else _type_name(type),
                since=None if since is None else check_moment("since", since),
                until=None if until is None else check_moment("until", until),
                root_event_id=None if root_event_id is None else _text("root", root_event_id),
            )
            return tx.events.redeliver(
                event_ids=[e.id for e in found], handler_id=_handler(handler_id)
            )

        return self._hand_out(body)

    def replay_dead_letter(self, event_id: str, handler_id: str) -> None:
        """Hand an event to the one handler that gave it up; raises EventNotFoundError."""

        def body(tx: Transaction) -> int:
            count = tx.events.redeliver(
                event_ids=[_text("event_id", event_id)],
                handler_id=_text("handler_id", handler_id),
                only_dead=True,
            )
            if not count:
                raise EventNotFoundError(event_id, self._namespace)
            return count

        self._hand_out(body)

    def replay_dead_letters(self, *, handler_id: str | None = None) -> int:
        """Hand out everything that was given up, by all handlers or by one; how many."""
        handler = _handler(handler_id)
        return self._hand_out(lambda tx: tx.events.redeliver(handler_id=handler, only_dead=True))

    def backfill(self, handler_id: str) -> int:
        """Hand all retained events to a handler, those it has finished again; how many of these."""

        def body(tx: Transaction) -> int:
            if not tx.events.rewind(_text("handler_id", handler_id)):
                raise HandlerError(
                    f"there is no handler called {handler_id!r} in this namespace.",
                    fix="check the id; a handler is known from its first run on.",
                )
            return tx.events.redeliver(handler_id=handler_id)

        return self._hand_out(body)

    def _hand_out(self, body: Callable[[Transaction], int]) -> int:
        count = self._store.transact(self._namespace, body)
        self._store.signal.notify()
        return count

    def forget_handler(self, handler_id: str) -> bool:
        """Drop a handler that is gone for good, and what it has yet to handle.

        Otherwise cleanup keeps the events that it never handled. False if it is not known.
        """
        known = _text("handler_id", handler_id)
        return self._store.transact(self._namespace, lambda tx: tx.events.forget_handler(known))

    def cleanup(self, before: datetime | None = None, *, force: bool = False) -> int:
        """Remove events that are older than the retention, or than a time; how many.

        Events that a known handler has yet to handle stay, unless forced.
        """
        old = self._before(before, self._config.event_retention_ms)
        total = 0
        while True:
            # In pieces, so that others can write in between.
            count = self._store.transact(
                self._namespace, lambda tx: tx.events.cleanup(old, force=force, limit=_PIECE)
            )
            total += count
            if count < _PIECE:
                return total

    def cleanup_dead_letters(self, before: datetime | None = None) -> int:
        """Remove the records of dead letters that are older than their retention; how many."""
        old = self._before(before, self._config.dead_letter_retention_ms)
        return self._store.transact(self._namespace, lambda tx: tx.events.cleanup_dead_letters(old))

    def cleanup_sessions(self, before: datetime | None = None) -> int:
        """Remove sessions that were last heard of before their retention; how many."""
        old = self._before(before, self._config.session_retention_ms)
        return self._store.transact(self._namespace, lambda tx: tx.events.cleanup_sessions(old))

    def _before(self, given: datetime | None, retention_ms: int) -> str:
        if given is None:
            return datetime_text(self._clock.now() - timedelta(milliseconds=retention_ms))
        return check_moment("before", given)


def _text(name: str, value: object) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("not text")
        return text(value)
    except ValueError as error:
        raise ValidationError("session.events", [Failure(name, value, str(error))]) from None


def _handler(handler_id: str | None) -> str | None:
    return None if handler_id is None else _text("handler_id", handler_id)


def _type_name(type_: object) -> str:
    if isinstance(type_, type) and issubclass(type_, Event):
        return type_.__event_type__
    return _text("type", type_)
