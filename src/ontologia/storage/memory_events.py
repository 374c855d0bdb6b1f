"""The event store of the reference backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple

from uuid_utils.compat import uuid7

from ontologia.storage.events import (
    DEAD_LETTER_TYPE,
    LEASE_RAN_OUT,
    Backlog,
    Claim,
    ClaimRecord,
    ClaimRequest,
    Claims,
    DeadLetter,
    EventRecord,
    SessionRecord,
    dead_letter,
    dead_letter_event,
    tick_of,
)


class _Delivery(NamedTuple):
    """Where an event stands with a handler, and what a claim is compared with."""

    record: ClaimRecord
    token: str
    position: int
    order_key: str | None
    started: bool = False

    @property
    def open(self) -> bool:
        return self.record.ack_at is None and self.record.dead_lettered_at is None

    def is_due(self, now: str) -> bool:
        """Whether the event may be claimed."""
        return self.open and self.record.lease_until <= now and self.record.available_at <= now


class EventLog:
    """Everything the event store of a memory store holds."""

    def __init__(self) -> None:
        self.events: dict[str, tuple[int, EventRecord]] = {}
        self.last_position = 0
        self.keys: set[tuple[str, str]] = set()
        self.handlers: dict[tuple[str, str, str], int] = {}
        self.deliveries: dict[tuple[str, str], _Delivery] = {}
        self.dead_letters: list[DeadLetter] = []
        self.sessions: dict[str, SessionRecord] = {}
        self.rewound: dict[tuple[str, str], int] = {}
        self.ticks: dict[tuple[str, str], str] = {}
        self.cleaned: dict[tuple[str, str], str] = {}


Undo = Callable[[Callable[[], object]], None]


class MemoryEvents:
    """The events of one namespace."""

    def __init__(self, log: EventLog, namespace: str, undo: Undo | None = None) -> None:
        self._log, self._namespace = log, namespace
        self._undo: Undo = (lambda step: None) if undo is None else undo

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Change an entry so that it can be undone."""
        if key in table:
            before = table[key]
            self._undo(lambda: table.__setitem__(key, before))
        else:
            self._undo(lambda: table.pop(key, None))
        table[key] = value

    def _own(self) -> list[EventRecord]:
        return [e for _, e in self._log.events.values() if e.namespace == self._namespace]

    # Reading

    def latest(self, limit: int) -> list[EventRecord]:
        return self._own()[::-1][:limit]

    def get(self, event_id: str) -> EventRecord | None:
        found = self._log.events.get(event_id)
        return found[1] if found and found[1].namespace == self._namespace else None

    def chain(self, root_event_id: str) -> list[EventRecord]:
        return [e for e in self._own() if e.root_event_id == root_event_id]

    def last_tick(self, schedule: str) -> str | None:
        return self._log.ticks.get((self._namespace, schedule))

    def cleaned_tick(self, schedule: str) -> str:
        return self._log.cleaned.get((self._namespace, schedule), "")

    def claims(self, event_id: str) -> list[ClaimRecord]:
        if self.get(event_id) is None:
            return []
        found = [
            d.record
            for d in self._log.deliveries.values()
            if d.record.event_id == event_id and d.record.claimed_at
        ]
        return sorted(found, key=lambda record: record.handler_id)

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        own = [d for d in self._log.dead_letters if d.namespace == self._namespace]
        return own[::-1][:limit]

    def sessions(self) -> list[SessionRecord]:
        own = [
            s._replace(metadata=deepcopy(s.metadata))
            for s in self._log.sessions.values()
            if s.namespace == self._namespace
        ]
        return sorted(own, key=lambda s: (s.started_at, s.session_id), reverse=True)

    def backlog(self, now: str) -> list[Backlog]:
        places = {(h, t) for n, h, t in self._log.handlers if n == self._namespace and t}
        result = []
        for handler_id, type_ in sorted(places):
            mine = [
                d
                for (event_id, handler), d in self._log.deliveries.items()
                if handler == handler_id
                and (event := self.get(event_id)) is not None
                and event.type == type_
            ]
            waiting = [self._event(d) for d in mine if d.open and d.record.lease_until <= now]
            waiting += [event for _, event in self._new(handler_id, [type_])]
            result.append(
                Backlog(
                    handler_id,
                    type_,
                    len(waiting),
                    sum(1 for d in mine if d.open and d.record.lease_until > now),
                    sum(1 for d in mine if d.record.dead_lettered_at is not None),
                    min((e.created_at for e in waiting), default=None),
                )
            )
        return result

    def is_due(self, handler_id: str, types: Sequence[str], now: str) -> bool:
        return bool(self._due(handler_id, types, now) or self._new(handler_id, types))

    # Writing

    def unseen(self, handler_id: str, types: Sequence[str], limit: int) -> list[EventRecord]:
        return [event for _, event in self._new(handler_id, types)][:limit]

    def matching(
        self,
        *,
        type: str | None = None,
        since: str | None = None,
        until: str | None = None,
        root_event_id: str | None = None,
    ) -> list[EventRecord]:
        return [
            e
            for e in self._own()
            if type in (None, e.type)
            and (since is None or e.created_at >= since)
            and (until is None or e.created_at < until)
            and root_event_id in (None, e.root_event_id)
        ]

    def enqueue(self, events: Sequence[EventRecord]) -> list[bool]:
        return [self._enqueue(event) for event in events]

    def _enqueue(self, event: EventRecord) -> bool:
        log = self._log
        if event.dedupe_key is not None:
            key = (event.namespace, event.dedupe_key)
            if key in log.keys:
                return False
            self._undo(lambda: log.keys.discard(key))
            log.keys.add(key)
        log.last_position += 1
        self._set(log.events, event.id, (log.last_position, event))
        return True

    def register_handler(
        self,
        handler_id: str,
        start: Literal["retained", "now"],
        now: str,
        types: Sequence[str] = (),
    ) -> None:
        place = (self._namespace, handler_id, "")
        if place not in self._log.handlers:
            position = self._log.last_position if start == "now" else 0
            self._set(self._log.handlers, place, position)
        for type_ in types:
            if (*place[:2], type_) not in self._log.handlers:
                self._set(self._log.handlers, (*place[:2], type_), self._log.handlers[place])

    def forget_handler(self, handler_id: str) -> bool:
        known = [p for p in self._log.handlers if p[:2] == (self._namespace, handler_id)]
        for place in known:
            self._remove(self._log.handlers, place)
        for (event_id, handler), delivery in list(self._log.deliveries.items()):
            if handler == handler_id and delivery.open and self.get(event_id) is not None:
                self._remove(self._log.deliveries, (event_id, handler))
        return bool(known)

    def _new(self, handler_id: str, types: Sequence[str]) -> list[tuple[int, EventRecord]]:
        """Events that were not handed to a handler yet."""
        handlers = self._log.handlers
        start = handlers.get((self._namespace, handler_id, ""), 0)
        position = {
            type_: handlers.get((self._namespace, handler_id, type_), start) for type_ in types
        }
        return [
            (at, event)
            for at, event in self._log.events.values()
            if event.namespace == self._namespace
            and event.type in position
            and at > position[event.type]
        ]

    def _due(self, handler_id: str, types: Sequence[str], now: str) -> list[_Delivery]:
        mine = [
            d
            for (event_id, handler), d in self._log.deliveries.items()
            if handler == handler_id and d.open and self.get(event_id) is not None
        ]
        # Of the events with the same key, only the first that is not finished, and none while
        # somebody works on another.
        heads: dict[str, int] = {}
        for d in mine:
            if d.order_key is not None:
                heads[d.order_key] = min(heads.get(d.order_key, d.position), d.position)
        for d in mine:
            if d.order_key is not None and d.record.lease_until > now:
                heads[d.order_key] = d.position
        found = [
            d
            for d in mine
            if d.is_due(now)
            and self._event(d).type in types
            and (d.order_key is None or heads[d.order_key] == d.position)
        ]
        return sorted(found, key=lambda d: (-self._event(d).priority, d.position))

    def _event(self, delivery: _Delivery) -> EventRecord:
        return self._log.events[delivery.record.event_id][1]

    def _put(self, delivery: _Delivery, token: str, **changes: Any) -> None:
        record = delivery.record._replace(**changes)
        place = (record.event_id, record.handler_id)
        self._set(self._log.deliveries, place, delivery._replace(record=record, token=token))

    def _fan_out(self, request: ClaimRequest) -> None:
        keys = request.order_keys
        for position, event in self._new(request.handler_id, request.types):
            if keys is not None and event.id not in keys:
                break
            key = None if keys is None else keys[event.id]
            place = (event.id, request.handler_id)
            if place not in self._log.deliveries:
                record = ClaimRecord(
                    event.id,
                    request.handler_id,
                    "",
                    "",
                    "",
                    None,
                    0,
                    "",
                    None,
                    None,
                    0,
                )
                self._set(self._log.deliveries, place, _Delivery(record, "", position, key))
            reader = (self._namespace, request.handler_id, event.type)
            self._set(self._log.handlers, reader, position)

    def claim(self, request: ClaimRequest) -> Claims:
        self._fan_out(request)
        claims = Claims([], [])
        rewound = self._log.rewound.get((self._namespace, request.handler_id), 0)
        new = self._new(request.handler_id, request.types)
        if request.order_keys is not None and new and new[0][0] <= rewound:
            return claims  # these come before those that are open
        while not claims.taken:
            due = self._due(request.handler_id, request.types, request.now)[: request.limit]
            if not due:
                break
            self._take(request, due, claims)
        return claims

    def _take(self, request: ClaimRequest, due: list[_Delivery], claims: Claims) -> None:
        """Claim deliveries; those whose lease ran out too often are dead.

        What may have ended its process is tried alone.
        """
        chosen: list[tuple[_Delivery, int]] = []
        for delivery in due:
            lapsed = delivery.token != ""
            attempts = delivery.record.attempts + (lapsed and delivery.started)
            if lapsed and chosen:
                break
            if lapsed and attempts >= request.max_attempts:
                self._bury(delivery, attempts, LEASE_RAN_OUT, request.now)
                claims.dead.append(self._event(delivery))
                continue
            chosen.append((delivery, attempts))
            if lapsed:
                break
        for delivery, attempts in chosen:
            token, record = str(uuid7()), delivery.record
            self._put(
                delivery._replace(started=len(chosen) == 1),
                token,
                session_id=request.session_id,
                claimed_at=request.now,
                lease_until=request.lease_until,
                attempts=attempts,
                last_error=LEASE_RAN_OUT if delivery.token else record.last_error,
            )
            claims.taken.append(
                Claim(
                    self._event(delivery),
                    request.handler_id,
                    token,
                    request.lease_until,
                    attempts,
                    record.generation,
                    delivery.order_key,
                )
            )

    def _held(self, claim: Claim, now: str) -> _Delivery | None:
        found = self._log.deliveries.get((claim.event.id, claim.handler_id))
        if found is None or not found.open or found.token != claim.token:
            return None
        if self._event(found).namespace != self._namespace:
            return None
        return found if found.record.lease_until > now else None

    def holds(self, claim: Claim, now: str) -> bool:
        return self._held(claim, now) is not None

    def ack(self, claims: Sequence[Claim], now: str) -> list[bool]:
        return [self._update(claim, now, keep_token=True, ack_at=now) for claim in claims]

    def _update(self, claim: Claim, now: str, *, keep_token: bool, **changes: Any) -> bool:
        held = self._held(claim, now)
        if held is None:
            return False
        self._put(held, held.token if keep_token else "", **changes)
        return True

    def release(self, claim: Claim, *, now: str, error: str, available_at: str, dead: bool) -> bool:
        held = self._held(claim, now)
        if held is not None and dead:
            self._bury(held, claim.attempts + 1, error, now)
            return True
        return self._update(
            claim,
            now,
            keep_token=False,
            lease_until=now,
            attempts=claim.attempts + 1,
            last_error=error,
            available_at=available_at,
        )

    def _bury(self, delivery: _Delivery, attempts: int, error: str, now: str) -> None:
        """Make an event the dead letter of a handler, and say so on the bus."""
        event, record = self._event(delivery), delivery.record
        self._put(
            delivery,
            "",
            lease_until=now,
            attempts=attempts,
            last_error=error,
            dead_lettered_at=now,
        )
        letter = dead_letter(event, record.handler_id, record.session_id, attempts, error, now)
        letters, size = self._log.dead_letters, len(self._log.dead_letters)
        self._undo(lambda: letters.__delitem__(slice(size, None)))
        letters.append(letter)
        if event.type != DEAD_LETTER_TYPE:
            self._enqueue(dead_letter_event(letter, event))

    def renew(self, claims: Sequence[Claim], *, now: str, lease_until: str) -> list[bool]:
        return [
            self._update(claim, now, keep_token=True, lease_until=lease_until) for claim in claims
        ]

    def hand_back(self, claims: Sequence[Claim], now: str) -> None:
        for claim in claims:
            self._update(claim, now, keep_token=False, lease_until=now)

    def redeliver(
        self,
        *,
        event_ids: Sequence[str] | None = None,
        handler_id: str | None = None,
        only_dead: bool = False,
    ) -> int:
        count = 0
        for (event, handler), delivery in list(self._log.deliveries.items()):
            wanted = handler_id in (None, handler) and (event_ids is None or event in event_ids)
            finished = not delivery.open
            if only_dead:
                finished = delivery.record.dead_lettered_at is not None
            if wanted and finished and self.get(event) is not None:
                count += 1
                self._put(
                    delivery,
                    "",
                    ack_at=None,
                    dead_lettered_at=None,
                    attempts=0,
                    lease_until="",
                    available_at="",
                    generation=delivery.record.generation + 1,
                )
        return count

    def rewind(self, handler_id: str) -> bool:
        handler = (self._namespace, handler_id)
        self._set(self._log.rewound, handler, self._log.last_position)
        known = [place for place in self._log.handlers if place[:2] == handler]
        for place in known:
            self._set(self._log.handlers, place, 0)
        return bool(known)

    def cleanup(self, before: str, *, force: bool, limit: int) -> int:
        old = [e for e in self._own() if e.created_at < before]
        gone = [e for e in old if force or not self._unfinished(e)][:limit]
        for event in gone:
            self._remove(self._log.events, event.id)
            for place in [p for p in self._log.deliveries if p[0] == event.id]:
                self._remove(self._log.deliveries, place)
            tick = tick_of(event.dedupe_key)
            if tick is not None and tick[1] > self.cleaned_tick(tick[0]):
                self._set(self._log.cleaned, (self._namespace, tick[0]), tick[1])
            key = (event.namespace, event.dedupe_key or "")
            if key in self._log.keys:
                self._undo(lambda k=key: self._log.keys.add(k))  # type: ignore[misc]
                self._log.keys.discard(key)
        return len(gone)

    def _remove(self, table: dict[Any, Any], key: Any) -> None:
        before = table[key]
        self._undo(lambda: table.__setitem__(key, before))
        del table[key]

    def _unfinished(self, event: EventRecord) -> bool:
        """Whether a known handler has yet to handle an event."""
        position = self._log.events[event.id][0]
        waits = any(
            at < position
            for (namespace, _, type_), at in self._log.handlers.items()
            if namespace == event.namespace and type_ == event.type
        )
        return waits or any(
            d.open for (event_id, _), d in self._log.deliveries.items() if event_id == event.id
        )

    def cleanup_dead_letters(self, before: str) -> int:
        letters = self._log.dead_letters
        kept = [d for d in letters if d.namespace != self._namespace or d.failed_at >= before]
        copy, removed = list(letters), len(letters) - len(kept)
        self._undo(lambda: letters.__setitem__(slice(None), copy))
        letters[:] = kept
        return removed

    def cleanup_sessions(self, before: str) -> int:
        old = [s.session_id for s in self.sessions() if s.last_heartbeat < before]
        for session_id in old:
            self._remove(self._log.sessions, session_id)
        return len(old)

    def record_tick(self, schedule: str, tick: str) -> None:
        if (self.last_tick(schedule) or "") < tick:
            self._set(self._log.ticks, (self._namespace, schedule), tick)

    def register_session(self, record: SessionRecord) -> None:
        record = record._replace(metadata=deepcopy(record.metadata))
        known = self._log.sessions.get(record.session_id)
        if known is not None:
            record = known._replace(
                last_heartbeat=record.last_heartbeat, stopped_at=record.stopped_at
            )
        self._set(self._log.sessions, record.session_id, record)

    def heartbeat(self, session_id: str, now: str) -> bool:
        return self._touch(session_id, last_heartbeat=now)

    def stop_session(self, session_id: str, now: str) -> None:
        self._touch(session_id, stopped_at=now)

    def _touch(self, session_id: str, **changes: Any) -> bool:
        found = self._log.sessions.get(session_id)
        if found is None or found.namespace != self._namespace:
            return False
        self._set(self._log.sessions, session_id, found._replace(**changes))
        return True
