"""The floor for events: batch claim and batch acknowledgement with sqlite3, on the same tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from uuid_utils.compat import uuid7

from bench import raw
from bench.data import Plain
from bench.raw import NAMESPACE, SESSION

HANDLER = "raw"
TYPE = "order.placed"
LEASE = timedelta(seconds=30)

INSERT = (
    "INSERT INTO events (id, namespace, type, payload, created_at, priority, root_event_id, "
    "chain_depth) VALUES (?, ?, ?, ?, ?, 100, ?, 0)"
)
NEW = (
    "SELECT e.id, e.payload, e.position, e.priority FROM event_handlers AS h "
    "JOIN events AS e ON e.namespace = h.namespace AND e.type = h.type AND e.position > h.position "
    "WHERE h.namespace = ? AND h.handler_id = ? AND h.type = ? ORDER BY e.position LIMIT ?"
)
CLAIM = (
    "INSERT INTO event_claims (event_id, handler_id, namespace, type, position, priority, "
    "session_id, token, claimed_at, lease_until, available_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
MOVE = "UPDATE event_handlers SET position = ? WHERE namespace = ? AND handler_id = ? AND type = ?"
ACK = (
    "UPDATE event_claims SET ack_at = ? WHERE event_id = ? AND handler_id = ? AND token = ? "
    "AND lease_until > ?"
)

Claimed = tuple[str, str, str]
"""The id of an event, its payload, and the token of the claim."""


def _event(plain: Plain, now: str) -> tuple[Any, ...]:
    event_id = str(uuid7())
    payload = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
    return (event_id, NAMESPACE, TYPE, payload, now, event_id)


def _now() -> str:
    return raw.text(datetime.now(UTC))


def enqueue(connection: sqlite3.Connection, events: Sequence[Plain]) -> None:
    """Store events in one transaction."""
    now = _now()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, [_event(plain, now) for plain in events])
    connection.execute("COMMIT")


def enqueue_one(connection: sqlite3.Connection, event: Plain) -> None:
    """Store one event."""
    row = _event(event, _now())
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT, row)
    connection.execute("COMMIT")


def register(connection: sqlite3.Connection) -> None:
    """Make the handler known, at the beginning of the log."""
    connection.execute(
        "INSERT INTO event_handlers (namespace, handler_id, type, position, registered_at) "
        "VALUES (?, ?, ?, 0, ?)",
        (NAMESPACE, HANDLER, TYPE, _now()),
    )


def claim(connection: sqlite3.Connection, limit: int) -> list[Claimed]:
    """Take the next events under a lease."""
    now = datetime.now(UTC)
    claimed_at, lease_until = raw.text(now), raw.text(now + LEASE)
    connection.execute("BEGIN IMMEDIATE")
    found = connection.execute(NEW, (NAMESPACE, HANDLER, TYPE, limit)).fetchall()
    claimed = [(event_id, payload, str(uuid7())) for event_id, payload, _, _ in found]
    connection.executemany(
        CLAIM,
        [
            (
                event_id,
                HANDLER,
                NAMESPACE,
                TYPE,
                position,
                priority,
                SESSION,
                token,
                claimed_at,
                lease_until,
                claimed_at,
            )
            for (event_id, _, position, priority), (_, _, token) in zip(found, claimed, strict=True)
        ],
    )
    if found:
        connection.execute(MOVE, (found[-1][2], NAMESPACE, HANDLER, TYPE))
    connection.execute("COMMIT")
    return claimed


def ack(connection: sqlite3.Connection, claimed: Sequence[Claimed]) -> None:
    """Finish claims."""
    now = _now()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(ACK, [(now, e, HANDLER, token, now) for e, _, token in claimed])
    connection.execute("COMMIT")


def process(connection: sqlite3.Connection, limit: int, handle: Callable[[Plain], object]) -> None:
    """Claim batches, decode, handle, and acknowledge batches, until nothing is left."""
    while claimed := claim(connection, limit):
        for _, payload, _ in claimed:
            handle(orjson.loads(payload))
        ack(connection, claimed)


def process_state(
    connection: sqlite3.Connection, limit: int, customer: Callable[[Plain], Plain]
) -> None:
    """Claim batches; per event one transaction that adds a customer and finishes the claim."""
    while claimed := claim(connection, limit):
        for event_id, payload, token in claimed:
            plain = customer(orjson.loads(payload))
            now = _now()
            connection.execute("BEGIN IMMEDIATE")
            raw.insert_one(connection, plain)
            connection.execute(ACK, (now, event_id, HANDLER, token, now))
            connection.execute("COMMIT")


def fill_acked(connection: sqlite3.Connection, handler_ids: Sequence[str], n: int) -> None:
    """Store events that all handlers have acknowledged."""
    now = datetime.now(UTC)
    before, lease_until = raw.text(now), raw.text(now + LEASE)
    claim = CLAIM.replace("available_at)", "available_at, ack_at)").replace("?)", "?, ?)")
    rows = [_event({"order_id": f"o{i}", "total": 1.5}, before) for i in range(n)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    (last,) = connection.execute("SELECT COALESCE(MAX(position), 0) FROM events").fetchone()
    for handler_id in handler_ids:
        same = (handler_id, NAMESPACE, TYPE)
        times = (before, lease_until, before, before)
        connection.executemany(
            claim,
            [
                (row[0], *same, position, 100, SESSION, str(position), *times)
                for position, row in enumerate(rows, last - n + 1)
            ],
        )
        for type_ in ("", TYPE):
            connection.execute(
                "INSERT INTO event_handlers (namespace, handler_id, type, position, "
                "registered_at) VALUES (?, ?, ?, ?, ?)",
                (NAMESPACE, handler_id, type_, last, before),
            )
    connection.execute("COMMIT")
