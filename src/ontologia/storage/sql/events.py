"""The event store over a SQL connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from uuid_utils.compat import uuid7

from ontologia.model.canonical import INT_MAX, dumps
from ontologia.storage.events import (
    DEAD_LETTER_TYPE,
    LEASE_RAN_OUT,
    Claim,
    ClaimRequest,
    Claims,
    EventRecord,
    SessionRecord,
    dead_letter,
    dead_letter_event,
    tick_of,
)
from ontologia.storage.sql.dialect import Fragment, join
from ontologia.storage.sql.event_reader import SQLEventReader
from ontologia.storage.sql.event_tables import (
    DEAD_COLUMNS,
    DUE,
    EARLIER,
    EVENT_COLUMNS,
    HELD,
    OPEN,
    START,
)


class SQLEvents(SQLEventReader):
    """The events of one namespace, inside a transaction of the connection."""

    def enqueue(self, events: Sequence[EventRecord]) -> list[bool]:
        self._dialect.before_enqueue(self._connection, [e.id for e in events])
        marks = ", ".join("?" * len(EventRecord._fields))
        insert = f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({marks})"
        if all(e.dedupe_key is None for e in events):
            self._connection.executemany(insert, events)
            return [True] * len(events)
        insert += " ON CONFLICT (namespace, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING"
        if len(events) == 1:
            return [self._done(insert, *events[0])]
        self._connection.executemany(insert, events)
        among = self._among("id", [e.id for e in events])
        there = {
            i for (i,) in self._rows(f"SELECT id FROM events WHERE {among.sql}", *among.parameters)
        }
        return [e.id in there for e in events]

    def register_handler(
        self,
        handler_id: str,
        start: Literal["retained", "now"],
        now: str,
        types: Sequence[str] = (),
    ) -> None:
        last = self._last() if start == "now" else 0
        self._connection.execute(
            "INSERT INTO event_handlers (namespace, handler_id, type, position, registered_at) "
            "VALUES (?, ?, '', (SELECT COALESCE(MAX(position), 0) FROM events "
            "WHERE position <= ?), ?) ON CONFLICT (namespace, handler_id, type) DO NOTHING",
            (self._namespace, handler_id, last, now),
        )
        self._register_types(handler_id, self._unregistered(handler_id, types), now)

    def forget_handler(self, handler_id: str) -> bool:
        place = (self._namespace, handler_id)
        self._connection.execute(
            f"DELETE FROM event_claims WHERE namespace = ? AND handler_id = ? AND {OPEN}", place
        )
        return self._done(
            "DELETE FROM event_handlers WHERE namespace = ? AND handler_id = ?", *place
        )

    def _register_types(self, handler_id: str, types: Sequence[str], now: str) -> None:
        place = (self._namespace, handler_id)
        self._connection.executemany(
            "INSERT INTO event_handlers (namespace, handler_id, type, position, registered_at) "
            f"VALUES (?, ?, ?, {START}, ?) ON CONFLICT (namespace, handler_id, type) DO NOTHING",
            [(*place, type_, *place, now) for type_ in types],
        )

    def _fan_out(self, request: ClaimRequest) -> None:
        """Turn new events into open claims: each of them once, in one statement."""
        if not self._has_new(request.handler_id, request.types, INT_MAX):
            return
        unknown = self._unregistered(request.handler_id, request.types)
        self._register_types(request.handler_id, unknown, request.now)
        self._lock_handler(request.handler_id)
        if request.order_keys is not None:
            self._fan_out_in_order(request, request.order_keys)
            return
        last = self._last()
        new = self._new_events(request.handler_id, request.types, last)
        self._connection.executemany(
            "INSERT INTO event_claims (event_id, handler_id, namespace, type, position, priority, "
            "session_id, token, claimed_at, lease_until, available_at) "
            "SELECT e.id, h.handler_id, e.namespace, e.type, e.position, e.priority, "
            f"'', '', '', '', '' {new.sql} ON CONFLICT (event_id, handler_id) DO NOTHING",
            [new.parameters],
        )
        among = self._among("type", request.types)
        self._connection.executemany(
            "UPDATE event_handlers SET position = COALESCE((SELECT MAX(e.position) "
            "FROM events AS e WHERE e.namespace = event_handlers.namespace "
            "AND e.type = event_handlers.type AND e.position <= ?), position) "
            f"WHERE namespace = ? AND handler_id = ? AND {among.sql}",
            [(last, self._namespace, request.handler_id, *among.parameters)],
        )

    def _lock_handler(self, handler_id: str) -> None:
        """Let nobody else hand out or unblock events of a handler until the transaction ends."""
        if self._for_update:
            self._rows(
                "SELECT 1 FROM event_handlers WHERE namespace = ? AND handler_id = ? "
                f"ORDER BY type{self._for_update}",
                *(self._namespace, handler_id),
            )

    def _fan_out_in_order(self, request: ClaimRequest, keys: Mapping[str, str | None]) -> None:
        """The same for a handler that keeps order, as far as the keys of new events are known."""
        if not keys:
            return
        among = self._among("id", list(keys))
        found = self._rows(
            f"SELECT id, type, position, namespace FROM events WHERE {among.sql}", *among.parameters
        )
        # Chosen and sorted here: asked for it, the planner walks through all events instead.
        events = sorted((r[:3] for r in found if r[3] == self._namespace), key=lambda r: r[2])
        place = (self._namespace, request.handler_id)
        self._connection.executemany(
            "INSERT INTO event_claims (event_id, handler_id, namespace, type, position, priority, "
            "session_id, token, claimed_at, lease_until, available_at, order_key, blocked) "
            "SELECT id, ?, namespace, type, position, priority, '', '', '', '', '', ?, "
            "CASE WHEN EXISTS (SELECT 1 FROM event_claims WHERE namespace = ? AND handler_id = ? "
            f"AND order_key = ? AND position < events.position AND {OPEN}) THEN 1 ELSE 0 END "
            # Asked first: to find a conflict out is to wait for whoever changes that claim.
            "FROM events WHERE id = ? AND NOT EXISTS (SELECT 1 FROM event_claims AS c "
            "WHERE c.event_id = events.id AND c.handler_id = ?) "
            "ON CONFLICT (event_id, handler_id) DO NOTHING",
            [(place[1], keys[i], *place, keys[i], i, place[1]) for i, _, _ in events],
        )
        self._connection.executemany(
            "UPDATE event_handlers SET position = ? "
            "WHERE namespace = ? AND handler_id = ? AND type = ? AND position < ?",
            [(at, *place, type_, at) for _, type_, at in events],
        )
        rewound = self._rows(
            "SELECT 1 FROM event_handlers WHERE namespace = ? AND handler_id = ? "
            "AND rewound >= ? LIMIT 1",
            *(*place, min((at for _, _, at in events), default=1)),
        )
        if rewound:  # these come before what is open already
            self._reorder()

    def _is_rewinding(self, request: ClaimRequest) -> bool:
        """Whether events are still to be handed out that come before those that are open."""
        new = self._new_events(request.handler_id, request.types, self._last())
        sql = f"SELECT 1 {new.sql} AND h.rewound >= e.position LIMIT 1"
        return bool(self._rows(sql, *new.parameters))

    def _reorder(self) -> None:
        """Find out anew what waits for an earlier event of its key."""
        self._connection.execute(
            f"UPDATE event_claims SET blocked = CASE WHEN {EARLIER} THEN 1 ELSE 0 END "
            f"WHERE namespace = ? AND order_key IS NOT NULL AND {OPEN}",
            (self._namespace,),
        )

    def _unblock(self, finished: Sequence[tuple[str, str]]) -> None:
        """Let the next event of each handler and key go ahead."""
        for handler_id in sorted({handler_id for handler_id, _ in finished}):
            self._lock_handler(handler_id)
        self._connection.executemany(
            "UPDATE event_claims SET blocked = 0 WHERE handler_id = ? AND event_id = "
            "(SELECT event_id FROM event_claims WHERE namespace = ? AND handler_id = ? "
            f"AND order_key = ? AND {OPEN} ORDER BY position LIMIT 1)",
            [(handler_id, self._namespace, handler_id, key) for handler_id, key in finished],
        )

    def claim(self, request: ClaimRequest) -> Claims:
        claims = Claims([], [])
        if not request.types:
            return claims
        self._fan_out(request)
        if request.order_keys is not None and self._is_rewinding(request):
            return claims
        while not claims.taken:
            rows = self._due(request, request.limit)
            if not rows:
                break
            self._take(request, rows, claims)
        return claims

    def _due(self, request: ClaimRequest, limit: int) -> list[Any]:
        columns = ", ".join(f"e.{name}" for name in EventRecord._fields)
        among = self._among("type", request.types)
        return self._rows(
            "SELECT c.token, c.started, c.attempts, c.generation, c.session_id, c.order_key, "
            f"{columns} FROM (SELECT event_id, token, started, attempts, generation, session_id, "
            "order_key, priority, position "
            f"FROM event_claims WHERE namespace = ? AND handler_id = ? AND {DUE} "
            f"AND {among.sql} ORDER BY priority DESC, position LIMIT ?"
            f"{self._dialect.skip_locked}) AS c "
            "JOIN events AS e ON e.id = c.event_id ORDER BY c.priority DESC, c.position",
            self._namespace,
            request.handler_id,
            request.now,
            request.now,
            request.now,
            *among.parameters,
            limit,
        )

    def _take(self, request: ClaimRequest, rows: list[Any], claims: Claims) -> None:
        """Claim rows; those whose lease ran out too often become dead letters."""
        error = None
        for token, started, attempts, generation, session_id, order_key, *event in rows:
            record = EventRecord(*event)
            lapsed = token != ""
            if lapsed and claims.taken:
                break  # what may have ended its process is tried alone
            attempts += lapsed and started
            if lapsed and attempts >= request.max_attempts:
                self._bury(
                    record, request.handler_id, session_id, attempts, LEASE_RAN_OUT, request.now
                )
                claims.dead.append(record)
                continue
            fresh = str(uuid7())
            claims.taken.append(
                Claim(
                    record,
                    request.handler_id,
                    fresh,
                    request.lease_until,
                    attempts,
                    generation,
                    order_key,
                )
            )
            if lapsed:
                error = LEASE_RAN_OUT
                break
        alone = int(len(claims.taken) == 1)
        same = (request.session_id, alone, request.now, request.lease_until, error)
        self._dialect.update_each(
            self._connection,
            "event_claims",
            Fragment(
                "session_id = ?, started = ?, claimed_at = ?, lease_until = ?, "
                "last_error = COALESCE(?, last_error)",
                *same,
            ),
            {"token": "str", "attempts": "int"},
            {"event_id": "str", "handler_id": "str"},
            [(c.token, c.attempts, c.event.id, c.handler_id) for c in claims.taken],
        )

    def _update_held(
        self, claims: Sequence[Claim], now: str, column: str, value: str
    ) -> list[bool]:
        """Change claims that hold their lease, in one statement; for each whether it did."""
        if not claims:
            return []
        places = [(c.event.id, c.handler_id, c.token) for c in claims]
        among = self._dialect.among_keys(
            ("event_id", "handler_id", "token"), ("str", "str", "str"), places
        )
        update = (
            f"UPDATE event_claims SET {column} = ? WHERE {among.sql} AND namespace = ? "
            f"AND lease_until > ? AND {OPEN}"
        )
        parameters = (value, *among.parameters, self._namespace, now)
        if len(claims) == 1:
            return [self._done(update, *parameters)]
        held = set(self._rows(f"{update} RETURNING event_id, handler_id, token", *parameters))
        return [place in held for place in places]

    def ack(self, claims: Sequence[Claim], now: str) -> list[bool]:
        # First, as whoever hands out does: the other way round they would wait for each other.
        for handler_id in sorted({c.handler_id for c in claims if c.order_key is not None}):
            self._lock_handler(handler_id)
        held = self._update_held(claims, now, "ack_at", now)
        if len(claims) > 1:
            seen: set[str] = set()  # a claim that stands there twice is finished once
            for place, claim in enumerate(claims):
                held[place] = held[place] and claim.token not in seen
                seen.add(claim.token)
        ordered = [
            (claim.handler_id, claim.order_key)
            for claim, ok in zip(claims, held, strict=True)
            if ok and claim.order_key is not None
        ]
        if ordered:
            self._unblock(ordered)
        return held

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
            f"available_at = ? WHERE {HELD}",
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
        ((key,),) = self._rows(
            "UPDATE event_claims SET token = '', lease_until = ?, attempts = ?, last_error = ?, "
            "dead_lettered_at = ? WHERE event_id = ? AND handler_id = ? RETURNING order_key",
            *(now, attempts, error, now, event.id, handler_id),
        )
        if key is not None:
            self._unblock([(handler_id, key)])
        letter = dead_letter(event, handler_id, session_id, attempts, error, now)
        marks = ", ".join("?" * len(letter))
        self._connection.execute(
            f"INSERT INTO dead_letters ({DEAD_COLUMNS}) VALUES ({marks})", letter
        )
        if event.type != DEAD_LETTER_TYPE:
            self.enqueue([dead_letter_event(letter, event)])

    def renew(self, claims: Sequence[Claim], *, now: str, lease_until: str) -> list[bool]:
        return self._update_held(claims, now, "lease_until", lease_until)

    def hand_back(self, claims: Sequence[Claim], now: str) -> None:
        self._dialect.announce(self._connection)
        self._connection.executemany(
            f"UPDATE event_claims SET token = '', lease_until = ? WHERE {HELD}",
            [(now, *self._held(claim, now)) for claim in claims],
        )

    def redeliver(
        self,
        *,
        event_ids: Sequence[str] | None = None,
        handler_id: str | None = None,
        only_dead: bool = False,
    ) -> int:
        if event_ids is not None and not event_ids:
            return 0
        parts = [Fragment("namespace = ?", self._namespace)]
        parts += [] if event_ids is None else [self._among("event_id", event_ids)]
        parts += [] if handler_id is None else [Fragment("handler_id = ?", handler_id)]
        finished = "dead_lettered_at IS NOT NULL"
        parts.append(Fragment(finished if only_dead else f"(ack_at IS NOT NULL OR {finished})"))
        where = join(parts, " AND ")
        cursor = self._connection.execute(
            "UPDATE event_claims SET ack_at = NULL, dead_lettered_at = NULL, attempts = 0, "
            "token = '', lease_until = '', available_at = '', generation = generation + 1 "
            f"WHERE {where.sql}",
            where.parameters,
        )
        count: int = cursor.rowcount
        self._reorder()
        self._dialect.announce(self._connection)
        return count

    def rewind(self, handler_id: str) -> bool:
        self._dialect.announce(self._connection)
        return self._done(
            "UPDATE event_handlers SET position = 0, rewound = (SELECT COALESCE(MAX(position), 0) "
            "FROM events) WHERE namespace = ? AND handler_id = ?",
            *(self._namespace, handler_id),
        )

    def cleanup(self, before: str, *, force: bool, limit: int) -> int:
        unfinished = (
            ""
            if force
            else f" AND NOT EXISTS (SELECT 1 FROM event_claims AS c WHERE c.event_id = events.id "
            f"AND {OPEN}) AND NOT EXISTS (SELECT 1 FROM event_handlers AS h "
            "WHERE h.namespace = events.namespace AND h.type = events.type "
            "AND h.position < events.position)"
        )
        old = self._rows(
            f"SELECT id, dedupe_key FROM events WHERE namespace = ? AND created_at < ?{unfinished} "
            "ORDER BY position LIMIT ?",
            *(self._namespace, before, limit),
        )
        if not old:
            return 0
        for table, column in (("event_claims", "event_id"), ("events", "id")):
            among = self._among(column, [event_id for event_id, _ in old])
            self._connection.execute(f"DELETE FROM {table} WHERE {among.sql}", among.parameters)
        ticks = [tick for _, key in old if (tick := tick_of(key)) is not None]
        self._connection.executemany(
            "UPDATE schedules SET cleaned_tick = ? "
            "WHERE namespace = ? AND name = ? AND cleaned_tick < ?",
            [(tick, self._namespace, schedule, tick) for schedule, tick in ticks],
        )
        if force:
            self._reorder()
        return len(old)

    def _deleted(self, sql: str, before: str) -> int:
        count: int = self._connection.execute(sql, (self._namespace, before)).rowcount
        return count

    def cleanup_dead_letters(self, before: str) -> int:
        return self._deleted(
            "DELETE FROM dead_letters WHERE namespace = ? AND failed_at < ?", before
        )

    def cleanup_sessions(self, before: str) -> int:
        return self._deleted(
            "DELETE FROM sessions WHERE namespace = ? AND last_heartbeat < ?", before
        )

    def record_tick(self, schedule: str, tick: str) -> None:
        self._connection.execute(
            "INSERT INTO schedules (namespace, name, last_tick) VALUES (?, ?, ?) "
            "ON CONFLICT (namespace, name) DO UPDATE SET last_tick = excluded.last_tick "
            "WHERE schedules.last_tick < excluded.last_tick",
            (self._namespace, schedule, tick),
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
