"""The port of the event store: a log of events, and their delivery to handlers.

Its operations are part of a snapshot or of a transaction, so that state, events and
acknowledgements are written together. For each handler, an event is in one of these states:

===============  ==============================================================
unclaimed        not handed to the handler yet
claimed          ``lease_until > now``: somebody works on it
backoff          ``available_at > now``: waiting for its next attempt
reclaimable      neither, and not finished: ready to be claimed again
acknowledged     ``ack_at`` is set: done
dead             ``dead_lettered_at`` is set: given up
===============  ==============================================================

Promises that every backend keeps:

* **Ordered**: positions only grow. Claims come by priority, highest first, then by position.
* **Fenced**: acknowledging, releasing, renewing or handing back a claim works only while that very
  claim, known by its token, holds its lease.
* **In order where asked**: of the events with the same order key, a handler gets only the first
  that is not finished, by position.
* **At least once**: an event stays with a handler until it is acknowledged or dead. A claim whose
  lease ran out counts as a failed attempt when the event is claimed again, if it was claimed
  alone. Of a whole batch that was lost nobody knows which event ended the process: its events are
  then claimed one at a time, so that one bad event does not make dead letters of the others.
* **Bounded**: what was acknowledged is never looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from uuid_utils.compat import uuid7

from ontologia.model.canonical import dumps

DEAD_LETTER_TYPE = "event.dead_letter"


class EventRecord(NamedTuple):
    """An event as stored."""

    id: str
    namespace: str
    type: str
    payload: str
    created_at: str
    priority: int
    root_event_id: str
    chain_depth: int
    causation_id: str | None
    commit_id: int | None
    """The commit that the event belongs to; None if no state changed with it."""

    dedupe_key: str | None = None
    """At most one event of a namespace has a given key; the same one again is a no-op."""


class Claim(NamedTuple):
    """The right to handle an event until a time."""

    event: EventRecord
    handler_id: str
    token: str
    lease_until: str
    attempts: int
    """Failed attempts before this one."""

    generation: int
    """How often the event was deliberately handed to this handler again."""

    order_key: str | None = None


@dataclass(frozen=True)
class ClaimRequest:
    """What a handler asks for."""

    handler_id: str
    types: tuple[str, ...]
    session_id: str
    limit: int
    now: str
    lease_until: str
    max_attempts: int
    order_keys: Mapping[str, str | None] | None = None
    """For a handler that keeps order: the first of its new events, and their keys. With a limit of
    0 they are handed to it, and nothing is claimed."""


class Claims(NamedTuple):
    """What a claim found."""

    taken: list[Claim]
    dead: list[EventRecord]
    """What was given up instead, as its lease ran out too often."""


class ClaimRecord(NamedTuple):
    """Where an event stands with a handler."""

    event_id: str
    handler_id: str
    session_id: str
    claimed_at: str
    lease_until: str
    ack_at: str | None
    attempts: int
    available_at: str
    last_error: str | None
    dead_lettered_at: str | None
    generation: int


class DeadLetter(NamedTuple):
    """An event that a handler gave up."""

    event_id: str
    handler_id: str
    namespace: str
    failed_at: str
    attempts: int
    last_error: str
    event_type: str
    event_payload: str
    root_event_id: str
    chain_depth: int
    session_id: str


class Backlog(NamedTuple):
    """How much a handler has before it, of one type."""

    handler_id: str
    type: str
    pending: int
    """Neither claimed nor finished, those not handed out yet included."""

    claimed: int
    dead: int
    oldest_pending: str | None


class SessionRecord(NamedTuple):
    """A session that works, or worked, on a namespace."""

    session_id: str
    namespace: str
    started_at: str
    last_heartbeat: str
    metadata: dict[str, Any]
    stopped_at: str | None


class EventReader(Protocol):
    """What can be read of the events of a namespace."""

    def latest(self, limit: int) -> list[EventRecord]:
        """The newest events, newest first."""
        ...

    def get(self, event_id: str) -> EventRecord | None:
        """One event."""
        ...

    def chain(self, root_event_id: str) -> list[EventRecord]:
        """All events that go back to one, oldest first."""
        ...

    def last_tick(self, schedule: str) -> str | None:
        """The last tick of a schedule, or when it was first seen; None if it never was."""
        ...

    def cleaned_tick(self, schedule: str) -> str:
        """The last tick whose event was cleaned up, with its dedupe key; empty if none was."""
        ...

    def claims(self, event_id: str) -> list[ClaimRecord]:
        """Where an event stands with each handler that it was handed to."""
        ...

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """What was given up, newest first."""
        ...

    def sessions(self) -> list[SessionRecord]:
        """The sessions of the namespace, newest first."""
        ...

    def backlog(self, now: str) -> list[Backlog]:
        """What every known handler has before it, by handler and type."""
        ...

    def is_due(self, handler_id: str, types: Sequence[str], now: str) -> bool:
        """Whether a claim of this handler may find something."""
        ...

    def holds(self, claim: Claim, now: str) -> bool:
        """Whether a claim still holds its lease."""
        ...

    def unseen(self, handler_id: str, types: Sequence[str], limit: int) -> list[EventRecord]:
        """The first events that were not handed to a handler yet, oldest first."""
        ...

    def matching(
        self,
        *,
        type: str | None = None,
        since: str | None = None,
        until: str | None = None,
        root_event_id: str | None = None,
    ) -> list[EventRecord]:
        """The events with all of these properties, oldest first; times are [since, until)."""
        ...


class EventWriter(EventReader, Protocol):
    """What can be done to the events of a namespace, inside a transaction."""

    def enqueue(self, events: Sequence[EventRecord]) -> list[bool]:
        """Append events; for each whether it is new, or its dedupe key was there already."""
        ...

    def register_handler(
        self,
        handler_id: str,
        start: Literal["retained", "now"],
        now: str,
        types: Sequence[str] = (),
    ) -> None:
        """Make a handler of some types known; where it starts is decided only once.

        A handler that claims without being registered starts with the retained events.
        """
        ...

    def forget_handler(self, handler_id: str) -> bool:
        """Remove a handler and what it has yet to do; False if it is not known."""
        ...

    def claim(self, request: ClaimRequest) -> Claims:
        """Take what is due; what has failed too often becomes a dead letter instead."""
        ...

    def ack(self, claims: Sequence[Claim], now: str) -> list[bool]:
        """Finish claims; for each whether it still held its lease."""
        ...

    def release(self, claim: Claim, *, now: str, error: str, available_at: str, dead: bool) -> bool:
        """Give up a failed claim until a time, or for good; False if it held no lease."""
        ...

    def renew(self, claims: Sequence[Claim], *, now: str, lease_until: str) -> list[bool]:
        """Extend leases; for each claim whether it still held it."""
        ...

    def hand_back(self, claims: Sequence[Claim], now: str) -> None:
        """Return claims that were not started; no attempt is used up."""
        ...

    def redeliver(
        self,
        *,
        event_ids: Sequence[str] | None = None,
        handler_id: str | None = None,
        only_dead: bool = False,
    ) -> int:
        """Hand finished events out again, as a new generation; the number of deliveries.

        All events or some, to all handlers that finished them or to one, or only where they
        were given up.
        """
        ...

    def rewind(self, handler_id: str) -> bool:
        """Let a handler start with the retained events it was never handed; False if not known."""
        ...

    def cleanup(self, before: str, *, force: bool, limit: int) -> int:
        """Remove some events created before a time, with their claims; the number of events.

        Events that a known handler has yet to handle stay, unless forced.
        """
        ...

    def cleanup_dead_letters(self, before: str) -> int:
        """Remove the records of dead letters that failed before a time."""
        ...

    def cleanup_sessions(self, before: str) -> int:
        """Remove sessions that were last heard of before a time."""
        ...

    def record_tick(self, schedule: str, tick: str) -> None:
        """Remember the last tick of a schedule; an earlier one changes nothing."""
        ...

    def register_session(self, record: SessionRecord) -> None:
        """Make a session known."""
        ...

    def heartbeat(self, session_id: str, now: str) -> bool:
        """Say that a session is alive; False if it is not known."""
        ...

    def stop_session(self, session_id: str, now: str) -> None:
        """Say that a session has ended."""
        ...


_TICK = "schedule:"
_TIME_SIZE = len("2026-01-01T00:00:00.000000+00:00")


def tick_key(schedule: str, tick: str) -> str:
    """The dedupe key of a tick."""
    return f"{_TICK}{schedule}:{tick}"


def tick_of(dedupe_key: str | None) -> tuple[str, str] | None:
    """The schedule and the tick behind a dedupe key; None if it is another key."""
    if dedupe_key is None or not dedupe_key.startswith(_TICK):
        return None
    return dedupe_key[len(_TICK) : -_TIME_SIZE - 1], dedupe_key[-_TIME_SIZE:]


LEASE_RAN_OUT = "the lease ran out: the handler crashed or took too long"


def dead_letter(
    event: EventRecord, handler_id: str, session_id: str, attempts: int, error: str, now: str
) -> DeadLetter:
    """The record of an event that a handler gave up."""
    return DeadLetter(
        event.id,
        handler_id,
        event.namespace,
        now,
        attempts,
        error,
        event.type,
        event.payload,
        event.root_event_id,
        event.chain_depth,
        session_id,
    )


def dead_letter_event(letter: DeadLetter, event: EventRecord) -> EventRecord:
    """The event that tells of a dead letter, with the lineage of the failed event."""
    payload = {
        "event_id": letter.event_id,
        "handler_id": letter.handler_id,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
    }
    return EventRecord(
        str(uuid7()),
        event.namespace,
        DEAD_LETTER_TYPE,
        dumps(payload),
        letter.failed_at,
        event.priority,
        event.root_event_id,
        event.chain_depth,
        event.id,
        None,
    )
