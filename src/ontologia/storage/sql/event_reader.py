"""Reading the event store over a SQL connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ontologia.model.canonical import INT_MAX, loads
from ontologia.storage.events import (
    Backlog,
    Claim,
    ClaimRecord,
    DeadLetter,
    EventRecord,
    SessionRecord,
)
from ontologia.storage.sql.dialect import Connection, Dialect, Fragment, join
from ontologia.storage.sql.event_tables import (
    CLAIM_COLUMNS,
    DEAD_COLUMNS,
    DUE,
    EVENT_COLUMNS,
    HELD,
    OPEN,
    START,
)


class SQLEventReader:
    """What can be read of the events of one namespace."""

    def __init__(
        self, connection: Connection, dialect: Dialect, namespace: str, for_update: str = ""
    ) -> None:
        self._connection, self._dialect, self._namespace = connection, dialect, namespace
        self._for_update = for_update
        """Keeps what was found from being changed by others; readers leave it out."""

    def _rows(self, sql: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = self._connection.execute(sql, parameters).fetchall()
        return rows

    def _done(self, sql: str, *parameters: Any) -> bool:
        return bool(self._connection.execute(sql, parameters).rowcount)

    def _last(self) -> int:
        """The newest event that no event can still appear before."""
        horizon = self._dialect.horizon(self._connection)
        return INT_MAX if horizon is None else horizon.events

    def latest(self, limit: int) -> list[EventRecord]:
        rows = self._rows(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE namespace = ? AND position <= ? "
            "ORDER BY position DESC LIMIT ?",
            *(self._namespace, self._last(), limit),
        )
        return [EventRecord(*row) for row in rows]

    def get(self, event_id: str) -> EventRecord | None:
        rows = self._rows(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE id = ? AND namespace = ?",
            event_id,
            self._namespace,
        )
        return EventRecord(*rows[0]) if rows else None

    def chain(self, root_event_id: str) -> list[EventRecord]:
        rows = self._rows(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE root_event_id = ? AND namespace = ? "
            "ORDER BY position",
            root_event_id,
            self._namespace,
        )
        return [EventRecord(*row) for row in rows]

    def last_tick(self, schedule: str) -> str | None:
        rows = self._rows(
            "SELECT last_tick FROM schedules WHERE namespace = ? AND name = ?",
            *(self._namespace, schedule),
        )
        return rows[0][0] if rows else None

    def cleaned_tick(self, schedule: str) -> str:
        rows = self._rows(
            "SELECT cleaned_tick FROM schedules WHERE namespace = ? AND name = ?",
            *(self._namespace, schedule),
        )
        found: str = rows[0][0] if rows else ""
        return found

    def claims(self, event_id: str) -> list[ClaimRecord]:
        rows = self._rows(
            f"SELECT {CLAIM_COLUMNS} FROM event_claims WHERE event_id = ? AND namespace = ? "
            "AND claimed_at <> '' ORDER BY handler_id",
            event_id,
            self._namespace,
        )
        return [ClaimRecord(*row) for row in rows]

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        rows = self._rows(
            f"SELECT {DEAD_COLUMNS} FROM dead_letters WHERE namespace = ? ORDER BY id DESC LIMIT ?",
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

    def backlog(self, now: str) -> list[Backlog]:
        # Three indexes: what is ready or claimed, what waits for another of its key, the dead.
        rows = self._rows(
            "SELECT handler_id, type, SUM(waits), SUM(claimed), SUM(dead), MIN(CASE WHEN waits = 1 "
            "THEN (SELECT e.created_at FROM events AS e WHERE e.id = event_id) END) FROM ("
            "SELECT handler_id, type, event_id, CASE WHEN lease_until <= ? THEN 1 ELSE 0 END "
            "AS waits, CASE WHEN lease_until > ? THEN 1 ELSE 0 END AS claimed, 0 AS dead "
            f"FROM event_claims WHERE namespace = ? AND {OPEN} AND blocked = 0 UNION ALL "
            "SELECT handler_id, type, event_id, CASE WHEN lease_until <= ? THEN 1 ELSE 0 END, "
            "CASE WHEN lease_until > ? THEN 1 ELSE 0 END, 0 FROM event_claims "
            f"WHERE namespace = ? AND {OPEN} AND order_key IS NOT NULL AND blocked = 1 UNION ALL "
            "SELECT handler_id, type, event_id, 0, 0, 1 FROM event_claims "
            "WHERE namespace = ? AND dead_lettered_at IS NOT NULL) AS c GROUP BY handler_id, type",
            *(now, now, self._namespace) * 2,
            self._namespace,
        )
        known = {row[:2]: Backlog(*row) for row in rows}
        new = self._rows(
            "SELECT h.handler_id, h.type, COUNT(e.id), 0, 0, MIN(e.created_at) "
            "FROM event_handlers AS h LEFT JOIN events AS e ON e.namespace = h.namespace "
            "AND e.type = h.type AND e.position > h.position "
            "WHERE h.namespace = ? AND h.type <> '' GROUP BY h.handler_id, h.type",
            self._namespace,
        )
        return sorted(_added(known.get(row[:2]), Backlog(*row)) for row in new)

    def is_due(self, handler_id: str, types: Sequence[str], now: str) -> bool:
        if not types:
            return False
        among = self._among("type", types)
        due = Fragment(
            f"SELECT 1 FROM event_claims WHERE namespace = ? AND handler_id = ? AND {DUE} "
            f"AND {among.sql}",
            *(self._namespace, handler_id, now, now, now, *among.parameters),
        )
        # To look whether one may look further would cost more than to look in vain.
        return self._has_new(handler_id, types, INT_MAX, due)

    def _among(self, column: str, types: Sequence[str]) -> Fragment:
        return self._dialect.among_values(Fragment(column), list(types), False)

    def _new_events(self, handler_id: str, types: Sequence[str], last: int) -> Fragment:
        """The events that a handler is registered for and was not handed yet."""
        among = self._among("h.type", types)
        return Fragment(
            # CROSS JOIN: from the handler to its events, never over all events of the type.
            "FROM event_handlers AS h CROSS JOIN events AS e WHERE e.namespace = h.namespace "
            "AND e.type = h.type AND e.position > h.position AND e.position <= ? "
            f"AND h.namespace = ? AND h.handler_id = ? AND {among.sql}",
            last,
            self._namespace,
            handler_id,
            *among.parameters,
        )

    def _has_new(
        self, handler_id: str, types: Sequence[str], last: int, other: Fragment | None = None
    ) -> bool:
        """Whether there is something new, or another query finds something."""
        asked = [self._new_events(handler_id, types, last).format("SELECT 1 {}")]
        asked += [] if other is None else [other]
        exists = join([q.format("EXISTS ({})") for q in asked], " OR ")
        among = self._among("type", types)
        ((found, known),) = self._rows(
            f"SELECT {exists.sql}, (SELECT COUNT(*) FROM event_handlers "
            f"WHERE namespace = ? AND handler_id = ? AND {among.sql})",
            *(*exists.parameters, self._namespace, handler_id, *among.parameters),
        )
        if found or known == len(set(types)):
            return bool(found)
        unknown = self._unregistered(handler_id, types)
        others = self._since_start(handler_id, unknown, last)
        return bool(self._rows(f"SELECT 1 {others.sql} LIMIT 1", *others.parameters))

    def _since_start(self, handler_id: str, types: Sequence[str], last: int) -> Fragment:
        """The events of types that a handler is not registered for yet."""
        among = self._among("e.type", types)
        return Fragment(
            f"FROM events AS e WHERE e.namespace = ? AND {among.sql} AND e.position > {START} "
            "AND e.position <= ?",
            self._namespace,
            *among.parameters,
            self._namespace,
            handler_id,
            last,
        )

    def unseen(self, handler_id: str, types: Sequence[str], limit: int) -> list[EventRecord]:
        if not types:
            return []
        columns = ", ".join(f"e.{name}" for name in ("position", *EventRecord._fields))
        last = self._last()
        new = self._new_events(handler_id, types, last)
        rows = self._rows(
            f"SELECT {columns} {new.sql} ORDER BY e.position LIMIT ?", *new.parameters, limit
        )
        unknown = self._unregistered(handler_id, types)
        if unknown:
            others = self._since_start(handler_id, unknown, last)
            rows += self._rows(
                f"SELECT {columns} {others.sql} ORDER BY e.position LIMIT ?",
                *others.parameters,
                limit,
            )
        return [EventRecord(*row[1:]) for row in sorted(rows)[:limit]]

    def matching(
        self,
        *,
        type: str | None = None,
        since: str | None = None,
        until: str | None = None,
        root_event_id: str | None = None,
    ) -> list[EventRecord]:
        wanted = {
            "type = ?": type,
            "created_at >= ?": since,
            "created_at < ?": until,
            "root_event_id = ?": root_event_id,
        }
        given = {sql: value for sql, value in wanted.items() if value is not None}
        rows = self._rows(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE {' AND '.join(['namespace = ?', *given])} "
            "ORDER BY position",
            self._namespace,
            *given.values(),
        )
        return [EventRecord(*row) for row in rows]

    def _unregistered(self, handler_id: str, types: Sequence[str]) -> list[str]:
        known = self._rows(
            "SELECT type FROM event_handlers WHERE namespace = ? AND handler_id = ?",
            self._namespace,
            handler_id,
        )
        return [t for t in types if (t,) not in known]

    def _held(self, claim: Claim, now: str) -> tuple[Any, ...]:
        return (claim.event.id, claim.handler_id, self._namespace, claim.token, now)

    def holds(self, claim: Claim, now: str) -> bool:
        return bool(
            self._rows(
                f"SELECT 1 FROM event_claims WHERE {HELD}{self._for_update}",
                *self._held(claim, now),
            )
        )


def _added(known: Backlog | None, new: Backlog) -> Backlog:
    """A backlog together with events that were not handed out yet."""
    if known is None:
        return new
    times = [t for t in (known.oldest_pending, new.oldest_pending) if t is not None]
    oldest = min(times, default=None)
    return known._replace(pending=known.pending + new.pending, oldest_pending=oldest)
