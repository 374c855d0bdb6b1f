"""The floor on PostgreSQL: the same statements by hand with psycopg, on the same tables.

Values are bound, statements are prepared, and those whose answers nobody needs are sent in one
pipeline, as a careful programmer would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import psycopg
from uuid_utils.compat import uuid7

from bench.data import Plain
from bench.postgres import connect
from bench.raw import NAMESPACE, SESSION, text
from bench.raw_events import HANDLER, LEASE, TYPE

Connection = psycopg.Connection[Any]

BEGIN = (
    b"BEGIN ISOLATION LEVEL READ COMMITTED; LOCK TABLE schema_types IN ACCESS SHARE MODE; "
    b"SELECT value FROM ontologia_meta WHERE key = 'schema_epoch'"
)
LOCK = (
    "SELECT pg_advisory_xact_lock_shared(%s) UNION ALL "
    "SELECT pg_advisory_xact_lock(k) FROM unnest(%s::bigint[]) AS k"
)
LOCK_ALL = "SELECT pg_advisory_xact_lock(%s)"
COLUMNS = "t.id, t.name, t.city, t.age, t.balance, t.active, t._exact_joined, t.note, t._commit_id"
SELECT_ONE = f'SELECT {COLUMNS} FROM "entity_Customer" AS t WHERE t._namespace = %s AND t.id = %s'
SELECT_MANY = (
    f'SELECT {COLUMNS} FROM "entity_Customer" AS t WHERE t._namespace = %s AND t.id = ANY(%s)'
)
DRAW = "SELECT id, created, xid FROM ontologia_draw_commit(%s)"
NEXT = "SELECT nextval('commit_ids')"
INSERT_COMMIT = (
    "INSERT INTO commits (commit_id, namespace, created_at, session_id, metadata, types) "
    "VALUES (%s, %s, %s, %s, %s, %s)"
)
INSERT = (
    'INSERT INTO "entity_Customer" (id, name, city, age, balance, active, _exact_joined, note, '
    "joined, _commit_id, _namespace) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
INSERT_VERSION = (
    'INSERT INTO "entity_Customer_history" (namespace, key, commit_id, schema_version, '
    "fields_json) VALUES (%s, %s, %s, 1, %s)"
)

INSERT_EVENT = (
    "INSERT INTO events (id, namespace, type, payload, created_at, priority, root_event_id, "
    "chain_depth) VALUES (%s, %s, %s, %s, %s, 100, %s, 0)"
)
FAN_OUT = (
    "INSERT INTO event_claims (event_id, handler_id, namespace, type, position, priority, "
    "session_id, token, claimed_at, lease_until, available_at) "
    "SELECT e.id, %s, e.namespace, e.type, e.position, e.priority, '', '', '', '', '' "
    "FROM events AS e WHERE e.namespace = %s AND e.type = %s ORDER BY e.position"
)
CLAIM = (
    "WITH due AS (SELECT event_id FROM event_claims WHERE namespace = %s AND handler_id = %s "
    "AND ack_at IS NULL AND dead_lettered_at IS NULL AND blocked = 0 AND lease_until <= %s "
    "AND available_at <= %s ORDER BY priority DESC, position LIMIT %s FOR UPDATE SKIP LOCKED) "
    "UPDATE event_claims AS c SET session_id = %s, token = %s, claimed_at = %s, lease_until = %s "
    "FROM due JOIN events AS e ON e.id = due.event_id "
    "WHERE c.event_id = due.event_id AND c.handler_id = %s RETURNING c.event_id, e.payload"
)
ACK = (
    "UPDATE event_claims SET ack_at = %s WHERE event_id = ANY(%s) AND handler_id = %s "
    "AND token = %s AND lease_until > %s"
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLACE = 4_711


def _rows(commit_id: int, customers: Sequence[Plain]) -> list[tuple[Any, ...]]:
    rows = []
    for c in customers:
        joined = text(c["joined"])
        values = (c["id"], c["name"], c["city"], c["age"], c["balance"], c["active"])
        rows.append((*values, joined, c["note"], joined, commit_id, NAMESPACE))
    return rows


def _version(row: tuple[Any, ...]) -> tuple[Any, ...]:
    payload = orjson.dumps(
        {
            "active": row[5],
            "age": row[3],
            "balance": row[4],
            "city": row[2],
            "id": row[0],
            "joined": row[6],
            "name": row[1],
            "note": row[7],
        }
    ).decode()
    return (NAMESPACE, row[0], row[9], payload)


def _commit_row(commit_id: int, now: datetime) -> tuple[Any, ...]:
    return (
        commit_id,
        NAMESPACE,
        text(now),
        SESSION,
        '{"namespace":"default"}',
        '[["entity","Customer"]]',
    )


def _write(connection: Connection, commit_id: int, now: datetime, new: Sequence[Plain]) -> None:
    """All rows and the end of the transaction, in one pipeline."""
    rows = _rows(commit_id, new)
    with connection.pipeline():
        connection.execute(INSERT_COMMIT, _commit_row(commit_id, now))
        if len(rows) == 1:
            connection.execute(INSERT, rows[0])
            connection.execute(INSERT_VERSION, _version(rows[0]))
        else:
            connection.cursor().executemany(INSERT, rows)
            connection.cursor().executemany(INSERT_VERSION, [_version(row) for row in rows])
        connection.execute("COMMIT", prepare=False)


def _draw(connection: Connection, now: datetime) -> int:
    found = connection.execute(DRAW, ((now - _EPOCH) // _MICROSECOND,)).fetchone()
    assert found is not None
    return int(found[0])


def add_one(connection: Connection, c: Plain) -> None:
    """Commit one new customer: every statement that our commit sends."""
    connection.execute(BEGIN, prepare=False)
    connection.execute(LOCK, (_PLACE, [hash(c["id"])]))
    connection.execute(SELECT_ONE, (NAMESPACE, c["id"])).fetchall()
    now = datetime.now(UTC)
    _write(connection, _draw(connection, now), now, [c])


def add(connection: Connection, new: Sequence[Plain]) -> None:
    """Commit many new customers: every statement that our commit sends."""
    connection.execute(BEGIN, prepare=False)
    connection.execute(LOCK_ALL, (_PLACE,))
    connection.execute(SELECT_MANY, (NAMESPACE, [c["id"] for c in new])).fetchall()
    now = datetime.now(UTC)
    _write(connection, _draw(connection, now), now, new)


def add_least(connection: Connection, new: Sequence[Plain]) -> None:
    """Commit new customers without looking, locking or ordering: the rows and nothing else."""
    connection.execute("BEGIN", prepare=False)
    found = connection.execute(NEXT).fetchone()
    assert found is not None
    _write(connection, found[0], datetime.now(UTC), new)


def content(uri: str) -> list[Any]:
    """Everything that a commit of customers writes, apart from ids of commits and times."""
    with closing(connect(uri)) as connection:
        return [
            connection.execute(statement).fetchall()
            for statement in (
                "SELECT namespace, metadata::text, types::text FROM commits ORDER BY commit_id",
                "SELECT _namespace, id, name, city, age, balance, active, joined, _exact_joined, "
                'note FROM "entity_Customer" ORDER BY _namespace, id',
                "SELECT namespace, key, until_commit, schema_version, fields_json::text "
                'FROM "entity_Customer_history" ORDER BY namespace, key, commit_id',
            )
        ]


# Events


def _now() -> datetime:
    return datetime.now(UTC)


def enqueue(connection: Connection, events: Sequence[Plain]) -> None:
    """Store events in one transaction."""
    now, rows = text(_now()), []
    for plain in events:
        event_id = str(uuid7())
        payload = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
        rows.append((event_id, NAMESPACE, TYPE, payload, now, event_id))
    with connection.transaction():
        connection.cursor().executemany(INSERT_EVENT, rows)


def fan_out(connection: Connection) -> None:
    """Make a claim that is open of each event."""
    connection.execute(FAN_OUT, (HANDLER, NAMESPACE, TYPE))


def process(connection: Connection, limit: int, handle: Callable[[Plain], object]) -> None:
    """Claim batches with SKIP LOCKED, decode, handle, and acknowledge batches, until none is left.

    Two statements per batch, each a transaction of its own.
    """
    while True:
        now, token = _now(), str(uuid7())
        at, until = text(now), text(now + LEASE)
        found = connection.execute(
            CLAIM,
            (NAMESPACE, HANDLER, at, at, limit, SESSION, token, at, until, HANDLER),
        ).fetchall()
        if not found:
            return
        for _, payload in found:
            handle(payload)
        done, ids = text(_now()), [event_id for event_id, _ in found]
        connection.execute(ACK, (done, ids, HANDLER, token, done))
