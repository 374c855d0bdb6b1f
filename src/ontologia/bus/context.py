"""HandlerContext: what a handler works with."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ontologia.errors import BusError, Failure, FinalCommitError, ValidationError
from ontologia.model.canonical import digest, dumps, text
from ontologia.model.entity import Entity, Relation
from ontologia.model.event import Event, event_payload
from ontologia.state.commit import Outgoing, UnitOfWork, as_events
from ontologia.storage.events import Claim

if TYPE_CHECKING:
    from ontologia.bus.runtime import Runtime
    from ontologia.session import Session

EventT = TypeVar("EventT", bound=Event)
Stateful = Entity | Relation[Any, Any]


class HandlerContext(Generic[EventT]):
    """One delivery of an event to a handler: the event, and the verbs to react to it."""

    event: EventT
    session: Session

    def __init__(self, session: Session, event: EventT, claim: Claim, runtime: Runtime) -> None:
        self.session, self.event, self._runtime = session, event, runtime
        self._unit = UnitOfWork()
        self._claim = claim
        self._buffered: list[Outgoing] = []
        self._seen: Counter[str] = Counter()
        self._finished = self._ended = False
        self.outer = CURRENT.get()
        """The handler inside which this one runs."""

    @property
    def lease_until(self) -> datetime:
        """Until when the event is reserved for this handler."""
        return datetime.fromisoformat(self._runtime.lease_until(self._claim))

    @property
    def finished(self) -> bool:
        """Whether a final commit has acknowledged the event."""
        return self._finished

    @property
    def buffered(self) -> list[Outgoing]:
        """The events that are enqueued if the handler succeeds."""
        return self._buffered

    @property
    def unit(self) -> UnitOfWork:
        """What is queued for the next commit."""
        self._check_open()
        return self._unit

    def end(self) -> None:
        """The handler has returned: nothing more can be done through its context."""
        self._ended = True

    def ensure(self, obj: Stateful | Iterable[Stateful]) -> None:
        """Queue what should be true, as it is now."""
        self._check_open()
        self._runtime.queue(self._unit, obj)

    def emit(self, event: Event, *, key: str | None = None) -> None:
        """Buffer an event until the handler succeeds; the same one again is a no-op.

        An event is told from others by its cause, type, payload and occurrence, or by ``key``,
        which is then unique among all events of its type in the namespace.
        """
        self._check_open()
        found, added = self._outgoing([event], key)
        self._buffered += found
        self._seen.update(added)

    def add_commit_meta(self, key: str, value: str) -> None:
        """Attach metadata to the next commit."""
        self._check_open()
        self._unit.annotate(key, value)

    def commit(
        self, *, event: Event | Sequence[Event] | None = None, final: bool = False
    ) -> int | None:
        """Write what differs and the events, if the lease still holds.

        ``final=True`` also enqueues what was emitted and acknowledges the event, all in one
        transaction; nothing can be committed after it. Raises LeaseExpiredError.
        """
        self._check_open()
        found, added = self._outgoing(as_events(event))
        commit_id = self._runtime.commit(
            self._claim, self._unit, [*self._buffered, *found] if final else found, ack=final
        )
        # Only now: a commit that failed and is made again is the same, not another one.
        self._seen.update(added)
        if final:
            self._finished, self._buffered = True, []
        return commit_id

    def _outgoing(
        self, events: Sequence[Event], key: str | None = None
    ) -> tuple[list[Outgoing], Counter[str]]:
        """Events with the keys by which they exist once, and how many of each kind they are."""
        added: Counter[str] = Counter()
        if not events:
            return [], added
        self._runtime.check_depth(self._claim)
        found: list[Outgoing] = []
        for event in as_events(list(events)):
            payload = event_payload(event)
            if key is not None:
                identity = f"key:{dumps([event.__event_type__, _checked(key)])}"
            else:
                same = self._identity(event, payload)
                added[same] += 1
                identity = f"{same}:{self._seen[same] + added[same]}"
            found.append(Outgoing(event, payload, identity))
        return found, added

    def _identity(self, event: Event, payload: str) -> str:
        claim = self._claim
        return digest(
            [claim.event.id, claim.handler_id, claim.generation, event.__event_type__, payload]
        )

    def _check_open(self) -> None:
        if self._ended:
            raise BusError(
                "the handler has ended.",
                why="something that it left behind still uses its context.",
                fix="wait for tasks and threads before the handler returns.",
            )
        if self._finished:
            raise FinalCommitError(
                "the handler has made its final commit.",
                why="commit(final=True) has acknowledged the event.",
                fix="make the final commit the last thing the handler does.",
            )


def _checked(key: object) -> str:
    try:
        if not isinstance(key, str):
            raise ValueError("a key is text")
        return text(key)
    except ValueError as error:
        raise ValidationError("emit", [Failure("key", key, str(error))]) from None


class Ambient(threading.local):
    """What this thread does for a session."""

    running: bool = False
    """It works for a run, and must not wait for it."""


CURRENT: ContextVar[HandlerContext[Any] | None] = ContextVar("ontologia_handler", default=None)
"""The handler that is running here; tasks that it starts take it along."""
