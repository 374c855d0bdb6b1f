"""The schema of a PostgreSQL datastore: numbered migrations, and how they are applied."""

from __future__ import annotations

from typing import Any

import psycopg

from ontologia.errors import InvalidDatastoreError
from ontologia.storage.postgres_dialect import PostgresDialect, lock_key, shortened
from ontologia.storage.sql.dialect import quote
from ontologia.storage.sql.event_tables import EVENT_TABLES
from ontologia.storage.sql.layout import BASE_TABLES, FORMAT

_FUNCTIONS = (
    "CREATE FUNCTION ontologia_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "RAISE EXCEPTION 'history is append-only'; END $$",
    # A transaction marks the lowest number that it may draw before it draws one. Everybody sees
    # the mark until the transaction has ended, also when it was killed.
    """CREATE FUNCTION ontologia_mark(sequence regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(sequence::oid::integer,
    ((coalesce(pg_sequence_last_value(sequence), 0) + 1) & 2147483647)::integer);
END $$""",
    # The last number that was drawn is read before the marks: one that is not marked any more
    # belongs to a transaction that has ended, and a later snapshot shows what it did.
    """CREATE FUNCTION ontologia_horizon(OUT commits bigint, OUT events bigint)
LANGUAGE plpgsql AS $$
DECLARE
  commit_ids CONSTANT oid := 'commit_ids'::regclass;
  positions CONSTANT oid := 'event_positions'::regclass;
  last_commit CONSTANT bigint := coalesce(pg_sequence_last_value(commit_ids), 0);
  last_event CONSTANT bigint := coalesce(pg_sequence_last_value(positions), 0);
  mark record;
  distance bigint;
BEGIN
  commits := last_commit;
  events := last_event;
  FOR mark IN SELECT classid, objid::bigint AS low FROM pg_locks
    WHERE locktype = 'advisory' AND classid IN (commit_ids, positions) AND objsubid = 2
    AND objid::bigint <= 2147483647 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  LOOP  -- marks hold 31 bits; those beyond the last number are of no concern
    IF mark.classid = commit_ids THEN
      distance := (last_commit + 1 - mark.low) & 2147483647;
      IF distance < 1073741824 THEN
        commits := least(commits, last_commit - distance);
      END IF;
    ELSE
      distance := (last_event + 1 - mark.low) & 2147483647;
      IF distance < 1073741824 THEN
        events := least(events, last_event - distance);
      END IF;
    END IF;
  END LOOP;
END $$""",
    # Ids and times grow together, so they are drawn one transaction after the other. The lock is
    # given back at once, not when the transaction ends.
    """CREATE FUNCTION ontologia_draw_commit(
  at bigint, OUT id bigint, OUT created bigint, OUT xid text) LANGUAGE plpgsql AS $$
DECLARE
  place CONSTANT integer := 'commit_ids'::regclass::oid::integer;
BEGIN
  PERFORM pg_advisory_lock(place, -1);
  BEGIN
    PERFORM ontologia_mark('commit_ids');
    created := setval('commit_times', greatest(at, pg_sequence_last_value('commit_times')));
    id := nextval('commit_ids');
  EXCEPTION WHEN query_canceled OR OTHERS THEN
    PERFORM pg_advisory_unlock(place, -1);
    RAISE;
  END;
  PERFORM pg_advisory_unlock(place, -1);
  xid := pg_current_xact_id()::text;
END $$""",
    """CREATE FUNCTION ontologia_mark_events() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM ontologia_mark('event_positions');
  RETURN pg_current_xact_id()::text;
END $$""",
    # A text that sorts as the decimal does; the library computes the same in Python.
    """CREATE FUNCTION ontologia_decimal_order(value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  parts text[] := regexp_match(value, '^(-?)([0-9]*)[.]?([0-9]*)(?:[eE]([+-]?[0-9]+))?$');
  digits text := parts[2] || parts[3];
  significant text := ltrim(digits, '0');
  body text;
BEGIN
  IF significant = '' THEN
    RETURN '1';
  END IF;
  body := lpad((length(parts[2]) - 1 - (length(digits) - length(significant))
    + coalesce(parts[4], '0')::integer + 4999999)::text, 7, '0') || rtrim(significant, '0');
  IF parts[1] = '' THEN
    RETURN '2' || body;
  END IF;
  RETURN '0' || translate(body, '0123456789', '9876543210') || '~';
END $$""",
    # The quotient to 28 digits.
    """CREATE FUNCTION ontologia_mean(total numeric, n bigint) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  mean numeric;
BEGIN
  IF n = 0 THEN
    RETURN NULL;
  END IF;
  IF total = 0 THEN
    RETURN 0;
  END IF;
  mean := (total + 1e-80 - 1e-80) / n;
  RETURN trim_scale(round(mean, 27 - floor(log(abs(mean)))::integer));
END $$""",
)

_SEQUENCES = (
    "CREATE SEQUENCE commit_ids",
    "CREATE SEQUENCE commit_times MINVALUE -9223372036854775808 START 1",
    "CREATE SEQUENCE event_positions",
)

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *_SEQUENCES,
        *(statement.format(**PostgresDialect.words) for statement in (*BASE_TABLES, *EVENT_TABLES)),
        *_FUNCTIONS,
        "INSERT INTO ontologia_meta (key, value) VALUES "
        f"('format', '{FORMAT}'), ('schema_epoch', '0'), ('migration', '0')",
    ),
)
"""Append only: what was released is never changed."""


def schema_name(schema: str) -> str:
    """The schema, quoted."""
    return shortened(quote(schema))


def migrations(schema: str = "ontologia") -> list[str]:
    """The SQL that creates a datastore and brings it up to date, one script per migration.

    To be run in order, each in one transaction, by a role that may create the schema.
    """
    scripts = []
    for number, statements in enumerate(_MIGRATIONS, 1):
        lines = [
            f"CREATE SCHEMA IF NOT EXISTS {schema_name(schema)}",
            f"SET LOCAL search_path = {schema_name(schema)}",
            *statements,
            f"UPDATE ontologia_meta SET value = '{number}' WHERE key = 'migration'",
        ]
        scripts.append(";\n".join(lines) + ";\n")
    return scripts


def migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Bring the schema up to date; many may try at once, one does it."""
    if _number(connection, schema) == len(_MIGRATIONS):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("migrate", schema),))
        done = _number(connection, schema)
        if done > len(_MIGRATIONS):
            raise InvalidDatastoreError(
                f"the schema {schema!r} has migration {done}, "
                f"this version knows {len(_MIGRATIONS)}.",
                fix="use the version of the ontologia package that wrote it, or a newer one.",
            )
        if not done:
            _refuse_foreign(connection, schema)
        for script in migrations(schema)[done:]:
            connection.execute(script.encode())


def _number(connection: psycopg.Connection[Any], schema: str) -> int:
    """The last migration that was applied, 0 if there was none."""
    table = f"{schema_name(schema)}.ontologia_meta"
    # Not to_regclass(): it answers from a cache that waiting for a lock does not refresh.
    present = connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'ontologia_meta'", (schema,)
    ).fetchone()
    if present is None:
        return 0
    row = connection.execute(
        f"SELECT value FROM {table} WHERE key = 'migration'".encode()
    ).fetchone()
    return int(row[0]) if row else 0


def _refuse_foreign(connection: psycopg.Connection[Any], schema: str) -> None:
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename IN "
        "('commits', 'schema_types', 'schema_versions', 'events', 'sessions', 'ontologia_meta')",
        (schema,),
    ).fetchall()
    if rows:
        raise InvalidDatastoreError(
            f"the schema {schema!r} belongs to another application.",
            why=f"it already has the tables {', '.join(sorted(name for (name,) in rows))}.",
            fix="choose another one with postgres_schema in OntologiaConfig.",
        )
