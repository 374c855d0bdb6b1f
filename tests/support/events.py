"""The event store without sessions: short ways to build events, claim them and look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from ontologia import OntologiaConfig
from ontologia.model.canonical import datetime_text
from ontologia.storage.base import Store, Transaction
from ontologia.storage.events import Claim, ClaimRecord, ClaimRequest, EventReader, EventRecord
from ontologia.storage.uri import open_store

_START = datetime(2026, 1, 1, 12, tzinfo=UTC)
_READING = {name for name in vars(EventReader) if not name.startswith("_")}


def at(seconds: float) -> str:
    """A time, as stored: so many seconds after noon on 1 January 2026."""
    return datetime_text(_START + timedelta(seconds=seconds))


def event(event_id: str, type_name: str = "a", **values: Any) -> EventRecord:
    """An event that starts a chain of its own, unless told otherwise."""
    defaults = EventRecord(
        event_id, "ns", type_name, '{"n":1}', at(0), 100, event_id, 0, None, None
    )
    return defaults._replace(**values)


def ids(found: list[EventRecord] | list[Claim]) -> list[str]:
    """The ids of events, or of the events of claims."""
    return [f.event.id if isinstance(f, Claim) else f.id for f in found]


def state(record: ClaimRecord, now: str) -> str:
    """Which of the states of the port a claim is in."""
    if record.ack_at is not None:
        return "acknowledged"
    if record.dead_lettered_at is not None:
        return "dead"
    if record.lease_until > now:
        return "claimed"
    return "backoff" if record.available_at > now else "reclaimable"


class _Undone(Exception):
    """Raised to undo a transaction."""


class Bus:
    """The events of a namespace; each call of a method of the port is its own transaction."""

    def __init__(self, store: Store, namespace: str = "ns") -> None:
        self.store, self.name = store, namespace

    def __getattr__(self, name: str) -> Any:
        begin = self.store.read if name in _READING else self.store.write

        def call(*arguments: Any, **named: Any) -> Any:
            with begin(self.name) as transaction:
                return getattr(transaction.events, name)(*arguments, **named)

        return call

    def namespace(self, name: str) -> Bus:
        """Another namespace of the same store."""
        return Bus(self.store, name)

    def add(self, *events: EventRecord) -> list[bool]:
        """Enqueue events, in this namespace."""
        return self.enqueue([e._replace(namespace=self.name) for e in events])

    def register(self, *handlers: str, start: str = "retained", now: str = at(0)) -> None:
        """Make handlers known."""
        for handler in handlers:
            self.register_handler(handler, start, now)

    def claim(self, handler: str = "h", **options: Any) -> list[Claim]:
        """Claim for a handler; see ``request`` for the options."""
        with self.store.write(self.name) as transaction:
            return transaction.events.claim(request(handler, **options)).taken

    @contextmanager
    def undone(self) -> Iterator[Transaction]:
        """A transaction that is rolled back at its end."""
        with suppress(_Undone), self.store.write(self.name) as transaction:
            yield transaction
            raise _Undone

    def record(self, event_id: str, handler: str = "h") -> ClaimRecord:
        """Where an event stands with a handler that it was handed to."""
        (found,) = [c for c in self.claims(event_id) if c.handler_id == handler]
        return found


def request(
    handler: str = "h",
    *,
    now: str = at(0),
    until: str = at(30),
    types: tuple[str, ...] = ("a",),
    session: str = "s",
    limit: int = 10,
    max_attempts: int = 3,
) -> ClaimRequest:
    """What a handler asks for: events of type ``a``, for 30 seconds."""
    return ClaimRequest(handler, types, session, limit, now, until, max_attempts)


@contextmanager
def opened(uri: str) -> Iterator[Bus]:
    """The bus of a store, with the handler ``h`` registered."""
    store = open_store(uri, OntologiaConfig())
    try:
        bus = Bus(store)
        bus.register("h")
        yield bus
    finally:
        store.close()
