"""The floor: what a careful programmer writes by hand with sqlite3, on the same tables.

One transaction per commit, ``executemany`` for many rows, statements from the cache of the
driver, payloads encoded with orjson. Nothing is validated and nothing is read that the case does
not need.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bench.data import Plain

Row = tuple[Any, ...]

NAMESPACE = "default"
SESSION = "01900000-0000-7000-8000-000000000000"

LAST_COMMIT = "SELECT commit_id FROM commits ORDER BY commit_id DESC LIMIT 1"
INSERT_COMMIT = (
    "INSERT INTO commits (commit_id, namespace, created_at, session_id, metadata, types) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
INSERT = (
    'INSERT INTO "entity_Customer" (id, name, city, age, balance, active, joined, note, '
    "_commit_id, _namespace) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
UPDATE = (
    'UPDATE "entity_Customer" SET name = ?, city = ?, age = ?, balance = ?, active = ?, '
    "joined = ?, note = ?, _commit_id = ? WHERE _namespace = ? AND id = ?"
)
INSERT_VERSION = (
    'INSERT INTO "entity_Customer_history" (namespace, key, commit_id, schema_version, '
    "fields_json) VALUES (?, ?, ?, 1, ?)"
)
END_VERSION = (
    'UPDATE "entity_Customer_history" SET until_commit = ? '
    "WHERE namespace = ? AND key = ? AND commit_id = ?"
)
COLUMNS = "t.id, t.name, t.city, t.age, t.balance, t.active, t.joined, t.note, t._commit_id"
SELECT_MANY = (
    f"SELECT {COLUMNS} "
    'FROM json_each(?) AS k CROSS JOIN "entity_Customer" AS t '
    "ON t._namespace = ? AND t.id = k.value"
)
SELECT_ONE = f'SELECT {COLUMNS} FROM "entity_Customer" AS t WHERE _namespace = ? AND id = ?'
SELECT_ONE_AS_OF = (
    'SELECT fields_json, commit_id FROM "entity_Customer_history" '
    "WHERE namespace = ? AND key = ? AND commit_id <= ? "
    "AND (until_commit IS NULL OR until_commit > ?)"
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the pragmas that Ontologia sets; the file is in WAL mode already."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def age_index(path: Path) -> str:
    """The name of the index on the age of customers, quoted."""
    with closing(connect(path)) as connection:
        (name,) = connection.execute(
            "SELECT i.name FROM pragma_index_list('entity_Customer') AS i, "
            "pragma_index_info(i.name) AS c WHERE c.name = 'age'"
        ).fetchone()
    return f'"{name}"'


def _add_commit(connection: sqlite3.Connection) -> int:
    last = connection.execute(LAST_COMMIT).fetchone()
    commit_id: int = last[0] + 1 if last else 1
    created_at = text(datetime.now(UTC))
    connection.execute(
        INSERT_COMMIT,
        (
            commit_id,
            NAMESPACE,
            created_at,
            SESSION,
            '{"namespace":"default"}',
            '[["entity","Customer"]]',
        ),
    )
    return commit_id


def text(moment: datetime) -> str:
    """A time as stored."""
    # orjson is faster than isoformat(), but leaves a fraction of zero out.
    if moment.microsecond:
        return orjson.dumps(moment).decode()[1:-1]
    return moment.isoformat(timespec="microseconds")


def _row(c: Plain) -> Row:
    return (
        c["id"],
        c["name"],
        c["city"],
        c["age"],
        c["balance"],
        c["active"],
        text(c["joined"]),
        c["note"],
    )


def _payload(row: Row) -> str:
    return orjson.dumps(
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


def add(connection: sqlite3.Connection, customers: Sequence[Plain]) -> None:
    """Commit new customers: a commit row, the current rows, the versions."""
    connection.execute("BEGIN IMMEDIATE")
    commit_id = _add_commit(connection)
    rows = [
        (
            c["id"],
            c["name"],
            c["city"],
            c["age"],
            c["balance"],
            c["active"],
            text(c["joined"]),
            c["note"],
            commit_id,
            NAMESPACE,
        )
        for c in customers
    ]
    connection.executemany(INSERT, rows)
    connection.executemany(
        INSERT_VERSION, [(NAMESPACE, row[0], commit_id, _payload(row)) for row in rows]
    )
    connection.execute("COMMIT")


def add_one(connection: sqlite3.Connection, c: Plain) -> None:
    """Commit one new customer."""
    connection.execute("BEGIN IMMEDIATE")
    insert_one(connection, c)
    connection.execute("COMMIT")


def insert_one(connection: sqlite3.Connection, c: Plain) -> None:
    """One new customer, inside a transaction."""
    commit_id = _add_commit(connection)
    row = _row(c)
    connection.execute(INSERT, (*row, commit_id, NAMESPACE))
    connection.execute(INSERT_VERSION, (NAMESPACE, row[0], commit_id, _payload(row)))


def reconcile(connection: sqlite3.Connection, customers: Sequence[Plain]) -> None:
    """Read the stored rows of the same keys, compare, and write those that differ.

    All customers are stored already.
    """
    wanted = {c["id"]: _row(c) for c in customers}
    connection.execute("BEGIN IMMEDIATE")
    keys = orjson.dumps(list(wanted)).decode()
    differing = [
        (wanted[stored[0]], stored[-1])
        for stored in connection.execute(SELECT_MANY, (keys, NAMESPACE))
        if stored[:-1] != wanted[stored[0]]
    ]
    if not differing:
        connection.execute("ROLLBACK")
        return
    commit_id = _add_commit(connection)
    connection.executemany(
        UPDATE, [(*row[1:], commit_id, NAMESPACE, row[0]) for row, _ in differing]
    )
    connection.executemany(
        END_VERSION, [(commit_id, NAMESPACE, row[0], before) for row, before in differing]
    )
    connection.executemany(
        INSERT_VERSION, [(NAMESPACE, row[0], commit_id, _payload(row)) for row, _ in differing]
    )
    connection.execute("COMMIT")


def checkpoint(path: Path) -> None:
    """Move everything from the WAL into the file."""
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def content(path: Path) -> list[Any]:
    """Everything that a commit of customers writes, apart from times and session ids."""
    with closing(connect(path)) as connection:
        return [
            connection.execute(statement).fetchall()
            for statement in (
                "SELECT commit_id, namespace, metadata, types FROM commits ORDER BY commit_id",
                'SELECT * FROM "entity_Customer" ORDER BY _namespace, id',
                'SELECT * FROM "entity_Customer_history" ORDER BY namespace, key, commit_id',
            )
        ]
