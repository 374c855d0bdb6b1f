"""The event store over a SQL connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from uuid_utils.compat import uuid7

from ontologia.model.canonical import dumps, loads
from ontologia.storage.events import (
    DEAD_LETTER_TYPE,
    LEASE_RAN_OUT,
    Claim,
    ClaimRecord,
    ClaimRequest,
    DeadLetter,
    EventRecord,
    SessionRecord,
    dead_letter,
    dead_letter_event,
)
from ontologia.storage.sql.dialect import Connection, Dialect, Fragment

EVENT_TABLES = (
    "CREATE TABLE events (position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, "
    "namespace TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL, "
    "created_at TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 100, "
    "root_event_id TEXT NOT NULL, chain_depth INTEGER NOT NULL DEFAULT 0, causation_id TEXT, "
    "commit_id INTEGER, dedupe_key TEXT){table}",
    "CREATE INDEX events_type ON events (namespace, type, position)",
    "CREATE INDEX events_root ON events (root_event_id)",
    "CREATE UNIQUE INDEX events_dedupe ON events (namespace, dedupe_key) "
    "WHERE dedupe_key IS NOT NULL",
    "CREATE TABLE event_handlers (namespace TEXT NOT NULL, handler_id TEXT NOT NULL, "
    "type TEXT NOT NULL, position INTEGER NOT NULL, registered_at TEXT NOT NULL, "
    "PRIMARY KEY (namespace, handler_id, type)){table}",
    "CREATE TABLE event_claims (event_id TEXT NOT NULL, handler_id TEXT NOT NULL, "
    "namespace TEXT NOT NULL, type TEXT NOT NULL, position INTEGER NOT NULL, "
    "priority INTEGER NOT NULL, session_id TEXT NOT NULL, token TEXT NOT NULL, "
    "claimed_at TEXT NOT NULL, lease_until TEXT NOT NULL, ack_at TEXT, "
    "attempts INTEGER NOT NULL DEFAULT 0, "
    "available_at TEXT NOT NULL, last_error TEXT, dead_lettered_at TEXT, "
    "generation INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (event_id, handler_id)){table}",
    # Only what is not finished: claims never meet what was acknowledged.
    "CREATE INDEX event_claims_open ON event_claims (namespace, handler_id, priority DESC, "
    "position) WHERE ack_at IS NULL AND dead_lettered_at IS NULL",
    "CREATE TABLE dead_letters (id INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, "
    "handler_id TEXT NOT NULL, namespace TEXT NOT NULL, failed_at TEXT NOT NULL, "
    "attempts INTEGER NOT NULL, last_error TEXT NOT NULL, event_type TEXT NOT NULL, "
    "event_payload TEXT NOT NULL, root_event_id TEXT NOT NULL, chain_depth INTEGER NOT NULL, "
    "session_id TEXT NOT NULL){table}",
    "CREATE INDEX dead_letters_namespace ON dead_letters (namespace, id)",
    "CREATE TABLE sessions (session_id TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, "
    "started_at TEXT NOT NULL, last_heartbeat TEXT NOT NULL, metadata TEXT NOT NULL, "
    "stopped_at TEXT){table}",
    "CREATE INDEX sessions_namespace ON sessions (namespace, started_at)",
    "CREATE INDEX sessions_heartbeat ON sessions (last_heartbeat)",
)

_EVENT = ", ".join(EventRecord._fields)
_CLAIM = ", ".join(ClaimRecord._fields)
_DEAD = ", ".join(DeadLetter._fields)
_OPEN = "ack_at IS NULL AND dead_lettered_at IS NULL"
_DUE = f"{_OPEN} AND lease_until <= ? AND available_at <= ?"
_HELD = (
    "event_id = ? AND handler_id = ? AND namespace = ? AND token = ? AND lease_until > ? "
    f"AND {_OPEN}"
)

# Where a handler was registered: the row without a type.
_START = (
    "COALESCE((SELECT position FROM event_handlers "
    "WHERE namespace = ? AND handler_id = ? AND type = ''), 0)"
)


class SQLEvents:
    """The events of one namespace, inside a transaction of the connection."""

    def __init__(self, connection: Connection, dialect: Dialect, namespace: str) -> None:
        self._connection, self._dialect, self._namespace = connection, dialect, namespace

    def _rows(self, sql: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = self._connection.execute(sql, parameters).fetchall()
        return rows

    def _done(self, sql: str, *parameters: Any) -> bool:
        return bool(self._connection.execute(sql, parameters).rowcount)

    # Reading

    def latest(self, limit: int) -> list[EventRecord]:
        rows = self._rows(
            f"SELECT {_EVENT} FROM events WHERE namespace = ? ORDER BY position DESC LIMIT ?",
            self._namespace,
            limit,
        )
        return [EventRecord(*row) for row in rows]

    def get(self, event_id: str) -> EventRecord | None:
        rows = self._rows(
            f"SELECT {_EVENT} FROM events WHERE id = ? AND namespace = ?",
            event_id,
            self._namespace,
        )
        return EventRecord(*rows[0]) if rows else None

    def chain(self, root_event_id: str) -> list[EventRecord]:
        rows = self._rows(
            f"SELECT {_EVENT} FROM events WHERE root_event_id = ? AND namespace = ? "
            "ORDER BY position",
            root_event_id,
            self._namespace,
        )
        return [EventRecord(*row) for row in rows]

    def claims(self, event_id: str) -> list[ClaimRecord]:
        rows = self._rows(
            f"SELECT {_CLAIM} FROM event_claims WHERE event_id = ? AND namespace = ? "
            "AND claimed_at <> '' ORDER BY handler_id",
            event_id,
            self._namespace,
        )
        return [ClaimRecord(*row) for row in rows]

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        rows = self._rows(
            f"SELECT {_DEAD} FROM dead_letters WHERE namespace = ? ORDER BY id DESC LIMIT ?",
            self._namespace,
            limit,
        )
        return [DeadLetter(*row) for row in rows]

    def sessions(self) -> list[SessionRecord]:
        rows = self._rows(
            "SELECT session_id, namespace, started_at, last_heartbeat, metadata, stopped_at "
            "FROM sessions WHERE namespace = ? ORDER BY started_at DESC, session_id DESC",
            self._namespace,
        )
        return [
            SessionRecord(session_id, namespace, started, heartbeat, loads(metadata), stopped)
            for session_id, namespace, started, heartbeat, metadata, stopped in rows
        ]

    def is_due(self, handler_id: str, types: Sequence[str], now: str) -> bool:
        if not types:
            return False
        among = self._among("type", types)
        due = self._rows(
            f"SELECT 1 FROM event_claims WHERE namespace = ? AND handler_id = ? AND {_DUE} "
            f"AND {among.sql} LIMIT 1",
            self._namespace,
            handler_id,
            now,
            now,
            *among.parameters,
        )
        return bool(due) or self._has_new(handler_id, types)

    def _among(self, column: str, types: Sequence[str]) -> Fragment:
        return self._dialect.among_values(Fragment(column), list(types), False)

    def _new_events(self, handler_id: str, types: Sequence[str]) -> Fragment:
        """The events that a handler is registered for and was not handed yet."""
        among = self._among("h.type", types)
        return Fragment(
            "FROM event_handlers AS h JOIN events AS e ON e.namespace = h.namespace "
            "AND e.type = h.type AND e.position > h.position "
            f"WHERE h.namespace = ? AND h.handler_id = ? AND {among.sql}",
            self._namespace,
            handler_id,
            *among.parameters,
        )

    def _has_new(self, handler_id: str, types: Sequence[str]) -> bool:
        new = self._new_events(handler_id, types)
        if self._rows(f"SELECT 1 {new.sql} LIMIT 1", *new.parameters):
            return True
        unknown = self._unregistered(handler_id, types)
        if not unknown:
            return False
        among = self._among("type", unknown)
        return bool(
            self._rows(
                f"SELECT 1 FROM events WHERE namespace = ? AND {among.sql} AND position > {_START} "
                "LIMIT 1",
                self._namespace,
                *among.parameters,
                self._namespace,
                handler_id,
            )
        )

    def _unregistered(self, handler_id: str, types: Sequence[str]) -> list[str]:
        known = self._rows(
            "SELECT type FROM event_handlers WHERE namespace = ? AND handler_id = ?",
            self._namespace,
            handler_id,
        )
        return [t for t in types if (t,) not in known]

    # Writing

    def enqueue(self, events: Sequence[EventRecord]) -> list[bool]:
        marks = ", ".join("?" * len(EventRecord._fields))
        insert = f"INSERT INTO events ({_EVENT}) VALUES ({marks})"
        if all(e.dedupe_key is None for e in events):
            self._connection.executemany(insert, events)
            return [True] * len(events)
        insert += " ON CONFLICT (namespace, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING"
        return [self._done(insert, *event) for event in events]

    def register_handler(
        self, handler_id: str, start: Literal["retained", "now"], now: str
    ) -> None:
        head = "(SELECT COALESCE(MAX(position), 0) FROM events)" if start == "now" else "0"
        self._connection.execute(
            "INSERT INTO event_handlers (namespace, handler_id, type, position, registered_at) "
            f"VALUES (?, ?, '', {head}, ?) ON CONFLICT (namespace, handler_id, type) DO NOTHING",
            (self._namespace, handler_id, now),
        )

    def _register_types(self, handler_id: str, types: Sequence[str], now: str) -> None:
        place = (self._namespace, handler_id)
        self._connection.executemany(
            "INSERT INTO event_handlers (namespace, handler_id, type, position, registered_at) "
            f"VALUES (?, ?, ?, {_START}, ?)",
            [(*place, type_, *place, now) for type_ in types],
        )

    def _fan_out(self, request: ClaimRequest) -> None:
        """Turn new events into open claims: each of them once, in one statement."""
        if not self._has_new(request.handler_id, request.types):
            return
        unknown = self._unregistered(request.handler_id, request.types)
        self._register_types(request.handler_id, unknown, request.now)
        new = self._new_events(request.handler_id, request.types)
        self._connection.execute(
            "INSERT INTO event_claims (event_id, handler_id, namespace, type, position, priority, "
            "session_id, token, claimed_at, lease_until, available_at) "
            "SELECT e.id, h.handler_id, e.namespace, e.type, e.position, e.priority, "
            f"'', '', '', '', '' {new.sql} ON CONFLICT (event_id, handler_id) DO NOTHING",
            new.parameters,
        )
        among = self._among("type", request.types)
        self._connection.execute(
            "UPDATE event_handlers SET position = COALESCE((SELECT MAX(e.position) "
            "FROM events AS e WHERE e.namespace = event_handlers.namespace "
            "AND e.type = event_handlers.type), position) "
            f"WHERE namespace = ? AND handler_id = ? AND {among.sql}",
            (self._namespace, request.handler_id, *among.parameters),
        )

    def claim(self, request: ClaimRequest) -> list[Claim]:
        if not request.types:
            return []
        self._fan_out(request)
        claims: list[Claim] = []
        while len(claims) < request.limit:
            rows = self._due(request, request.limit - len(claims))
            if not rows:
                break
            taken, dead = self._take(request, rows)
            claims += taken
            if not dead:
                break
        return claims

    def _due(self, request: ClaimRequest, limit: int) -> list[Any]:
        columns = ", ".join(f"e.{name}" for name in EventRecord._fields)
        among = self._among("type", request.types)
        return self._rows(
            f"SELECT c.token, c.attempts, c.generation, c.session_id, {columns} "
            "FROM (SELECT event_id, token, attempts, generation, session_id, priority, position "
            f"FROM event_claims WHERE namespace = ? AND handler_id = ? AND {_DUE} "
            f"AND {among.sql} ORDER BY priority DESC, position LIMIT ?) AS c "
            "JOIN events AS e ON e.id = c.event_id ORDER BY c.priority DESC, c.position",
            self._namespace,
            request.handler_id,
            request.now,
            request.now,
            *among.parameters,
            limit,
        )

    def _take(self, request: ClaimRequest, rows: list[Any]) -> tuple[list[Claim], int]:
        """Claim rows; those whose lease ran out too often become dead letters."""
        claims: list[Claim] = []
        changes: list[tuple[Any, ...]] = []
        dead = 0
        for token, attempts, generation, session_id, *event in rows:
            record = EventRecord(*event)
            crashed = token != ""
            if crashed:
                attempts += 1
            if crashed and attempts >= request.max_attempts:
                dead += 1
                self._bury(
                    record, request.handler_id, session_id, attempts, LEASE_RAN_OUT, request.now
                )
                continue
            fresh = str(uuid7())
            claims.append(
                Claim(record, request.handler_id, fresh, request.lease_until, attempts, generation)
            )
            error = LEASE_RAN_OUT if crashed else None
            changes.append(
                (
                    request.session_id,
                    fresh,
                    request.now,
                    request.lease_until,
                    attempts,
                    error,
                    record.id,
                    request.handler_id,
                )
            )
        self._connection.executemany(
            "UPDATE event_claims SET session_id = ?, token = ?, claimed_at = ?, lease_until = ?, "
            "attempts = ?, last_error = COALESCE(?, last_error) "
            "WHERE event_id = ? AND handler_id = ?",
            changes,
        )
        return claims, dead

    def _held(self, claim: Claim, now: str) -> tuple[Any, ...]:
        return (claim.event.id, claim.handler_id, self._namespace, claim.token, now)

    def holds(self, claim: Claim, now: str) -> bool:
        return bool(
            self._rows(f"SELECT 1 FROM event_claims WHERE {_HELD}", *self._held(claim, now))
        )

    def ack(self, claims: Sequence[Claim], now: str) -> list[bool]:
        update = f"UPDATE event_claims SET ack_at = ? WHERE {_HELD}"
        return [self._done(update, now, *self._held(claim, now)) for claim in claims]

    def release(self, claim: Claim, *, now: str, error: str, available_at: str, dead: bool) -> bool:
        if not self.holds(claim, now):
            return False
        if dead:
            ((session_id,),) = self._rows(
                "SELECT session_id FROM event_claims WHERE event_id = ? AND handler_id = ?",
                claim.event.id,
                claim.handler_id,
            )
            self._bury(claim.event, claim.handler_id, session_id, claim.attempts + 1, error, now)
            return True
        return self._done(
            "UPDATE event_claims SET token = '', lease_until = ?, attempts = ?, last_error = ?, "
            f"available_at = ? WHERE {_HELD}",
            now,
            claim.attempts + 1,
            error,
            available_at,
            *self._held(claim, now),
        )

    def _bury(
        self,
        event: EventRecord,
        handler_id: str,
        session_id: str,
        attempts: int,
        error: str,
        now: str,
    ) -> None:
        """Make an event the dead letter of a handler, and say so on the bus."""
        self._connection.execute(
            "UPDATE event_claims SET token = '', lease_until = ?, attempts = ?, last_error = ?, "
            "dead_lettered_at = ? WHERE event_id = ? AND handler_id = ?",
            (now, attempts, error, now, event.id, handler_id),
        )
        letter = dead_letter(event, handler_id, session_id, attempts, error, now)
        marks = ", ".join("?" * len(letter))
        self._connection.execute(f"INSERT INTO dead_letters ({_DEAD}) VALUES ({marks})", letter)
        if event.type != DEAD_LETTER_TYPE:
            self.enqueue([dead_letter_event(letter, event)])

    def renew(self, claims: Sequence[Claim], *, now: str, lease_until: str) -> list[bool]:
        update = f"UPDATE event_claims SET lease_until = ? WHERE {_HELD}"
        return [self._done(update, lease_until, *self._held(claim, now)) for claim in claims]

    def hand_back(self, claims: Sequence[Claim], now: str) -> None:
        self._connection.executemany(
            f"UPDATE event_claims SET token = '', lease_until = ? WHERE {_HELD}",
            [(now, *self._held(claim, now)) for claim in claims],
        )

    def register_session(self, record: SessionRecord) -> None:
        self._connection.execute(
            "INSERT INTO sessions (session_id, namespace, started_at, last_heartbeat, metadata, "
            "stopped_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET "
            "last_heartbeat = excluded.last_heartbeat, stopped_at = excluded.stopped_at",
            (*record[:4], dumps(record.metadata), record.stopped_at),
        )

    def heartbeat(self, session_id: str, now: str) -> bool:
        return self._done(
            "UPDATE sessions SET last_heartbeat = ? WHERE session_id = ? AND namespace = ?",
            now,
            session_id,
            self._namespace,
        )

    def stop_session(self, session_id: str, now: str) -> None:
        self._connection.execute(
            "UPDATE sessions SET stopped_at = ? WHERE session_id = ? AND namespace = ?",
            (now, session_id, self._namespace),
        )
