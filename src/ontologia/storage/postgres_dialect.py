"""SQL as PostgreSQL speaks it, and the connection that the shared statements run on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import AdaptersMap, Loader
from psycopg.types.numeric import Int8BinaryDumper, IntNumericBinaryDumper
from psycopg.types.string import StrDumperUnknown, TextLoader

from ontologia.model.canonical import (
    INT_MAX,
    INT_MIN,
    datetime_text,
    decimal_from_order,
    decimal_order,
    dumps,
)
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.storage.sql.dialect import Companion, Connection, Fragment, Horizon, join
from ontologia.storage.sql.layout import Layout

# Beyond this, one lock for the namespace: the server's table of locks is of limited size.
MANY_IDENTITIES = 256
READ_HORIZON = "SELECT commits, events FROM ontologia_horizon()"

_TEXT = 'TEXT COLLATE "C"'
_COLUMN_TYPES = {
    "int": "BIGINT",
    "float": "DOUBLE PRECISION",
    "bool": "BOOLEAN",
    "bytes": "BYTEA",
    "date": "DATE",
    "uuid": "UUID",
    "json": "JSON",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class PostgresConnection:
    """A connection that takes the shared statements, in one transaction.

    What has no result is sent without waiting for an answer, until something has one or the
    transaction ends: a commit costs as many round trips as it has questions.
    """

    def __init__(
        self, raw: psycopg.Connection[Any], look: Callable[[], Horizon] | None = None
    ) -> None:
        self.raw, self.look = raw, look
        self.horizon: Horizon | None = None
        """Of a snapshot, which begins anew when it is asked how far it may look."""
        self.marked = self.announced = False
        self.xid: str | None = None
        self.witness: tuple[str, Any] | None = None
        """A table and what only this transaction has written there: after a crash the server
        may give the number of a transaction that it forgot to another one."""
        self._unanswered = ExitStack()
        self._waits = False

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Execute a statement with ``?`` for its values."""
        cursor = self.raw.execute(translate(sql), parameters)
        if self._waits:
            self.settle()  # one round trip for all
        return cursor

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each row of values, without waiting for the answers."""
        if not parameters:
            return
        self._defer()
        if len(parameters) == 1:
            self.raw.execute(translate(sql), parameters[0])
        else:
            self.raw.cursor().executemany(translate(sql), parameters)

    def _defer(self) -> None:
        """Do not wait for answers from now on."""
        if not self._waits:
            self._unanswered.enter_context(self.raw.pipeline())
            self._waits = True

    def finish(self, *statements: str) -> None:
        """Execute the last statements, and wait for all answers."""
        if self._waits:
            for statement in statements:
                self.raw.execute(statement.encode(), prepare=False)
            self.settle()
        else:
            self.raw.execute("; ".join(statements).encode(), prepare=False)

    def settle(self) -> None:
        """Wait for all answers; raises the first error among them."""
        self._waits = False
        self._unanswered.close()


_TOKEN = re.compile(r"""('(?:[^']|'')*')|("(?:[^"]|"")*")|\?|%""")
_LONGEST_NAME = 63


@lru_cache(maxsize=2048)
def translate(sql: str) -> bytes:
    """A statement in the form that the driver takes; names that are too long are shortened."""
    return _TOKEN.sub(_token, sql).encode()


def _token(match: re.Match[str]) -> str:
    text = match[0]
    if text == "?":
        return "%s"
    if match[2]:
        text = shortened(text)
    return text.replace("%", "%%")


def shortened(identifier: str) -> str:
    """A quoted identifier that PostgreSQL does not cut off, still another one for each name."""
    name = identifier[1:-1].replace('""', '"')
    if len(name.encode()) <= _LONGEST_NAME:
        return identifier
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _LONGEST_NAME - 17].decode(errors="ignore")
    return '"' + f"{head}~{digest}".replace('"', '""') + '"'


class _NumericLoader(Loader):
    """Whole numbers as integers, others as text."""

    def load(self, data: Any) -> Any:
        text = bytes(data).decode()
        return text if "." in text or text[-1] in "Ny" else int(text)


class _IntDumper(Int8BinaryDumper):
    """Always 64 bits, so that a statement is prepared once."""

    def upgrade(self, obj: int, format: Any) -> Any:
        return self if INT_MIN <= obj <= INT_MAX else IntNumericBinaryDumper(int)

    def get_key(self, obj: int, format: Any) -> Any:
        return self.cls if INT_MIN <= obj <= INT_MAX else (self.cls, "numeric")


class Adaptation:
    """How values travel: stored forms are text where the driver would make objects."""

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.connection = None
        for name in ("uuid", "date", "json", "xid8"):
            self.adapters.register_loader(name, TextLoader)
        self.adapters.register_loader("numeric", _NumericLoader)
        self.adapters.register_dumper(int, _IntDumper)
        # Without a type of its own, text takes that of the column it meets.
        self.adapters.register_dumper(str, StrDumperUnknown)


def lock_key(*parts: Any) -> int:
    """A number for an advisory lock."""
    digest = hashlib.blake2b(dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


class PostgresDialect:
    """SQL as PostgreSQL speaks it."""

    words: Mapping[str, str] = {
        "text": _TEXT,
        "int": "BIGINT",
        "json": "JSON",
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "position": "BIGINT PRIMARY KEY DEFAULT nextval('event_positions')",
        "table": "",
    }
    clustered_options = ""
    refuse = "FOR EACH ROW EXECUTE FUNCTION ontologia_refuse()"
    unlimited = None
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def column_type(self, kind: str) -> str:
        return _COLUMN_TYPES.get(kind, _TEXT)

    def exact_column(self, kind: str) -> bool:
        # A timestamptz does not tell whether a time was naive, and a numeric neither takes every
        # exponent nor gives it back: people and tools read those, the library the exact text.
        return kind in ("datetime", "decimal")

    def companions(self, name: str, kind: str) -> Sequence[Companion]:
        if kind == "datetime":
            return (Companion(name, "TIMESTAMPTZ", str, sorts=False),)
        if kind == "decimal":
            return (
                Companion(name, "NUMERIC", _numeric, sorts=False),
                Companion(f"_order_{name}", _TEXT, _decimal_order, sorts=True),
            )
        return ()

    def among_keys(
        self, columns: Sequence[str], kinds: Sequence[str], keys: Sequence[Row]
    ) -> Fragment:
        if len(keys) == 1:
            return Fragment(" AND ".join(f"{c} = ?" for c in columns), *keys[0])
        arrays = [array([key[i] for key in keys]) for i in range(len(columns))]
        if len(columns) == 1:
            return Fragment(f"{columns[0]} = ANY(?)", *arrays)
        types = [self.column_type(kind).split(" COLLATE")[0] for kind in kinds]
        given = ", ".join(f"?::{type_}[]" for type_ in types)
        return Fragment(f"({', '.join(columns)}) IN (SELECT * FROM unnest({given}))", *arrays)

    def among_values(self, operand: Fragment, values: Sequence[Any], negated: bool) -> Fragment:
        word = "<> ALL" if negated else "= ANY"
        cast = "::numeric[]" if any(isinstance(v, Decimal) for v in values) else ""
        return operand.format(f"{{}} {word}(?{cast})", array(values))

    # JSON is kept as it was written: jsonb would make a whole number of 1e16.

    def _at(self, document: str, path: tuple[str, ...]) -> Fragment:
        # Not by a path: that would take "0" for the first item of a list.
        return Fragment("(" + document + "".join(" -> ?::text" for _ in path) + ")", *path)

    def json_value(self, document: str, path: tuple[str, ...], kind: str) -> Fragment:
        return _scalar(self._at(document, path), kind)

    def json_item(self, kind: str) -> Fragment:
        return _scalar(Fragment("item.value"), kind)

    def json_text(self, column: str) -> str:
        return f'({column}::text COLLATE "C")'

    def json_type(self, document: str, path: tuple[str, ...]) -> Fragment:
        return _type_of(self._at(document, path))

    def json_length(self, document: str, path: tuple[str, ...]) -> Fragment:
        return self._at(document, path).format("json_array_length({})")

    def json_items(self, document: str, path: tuple[str, ...], alias: str) -> Fragment:
        items = self._at(document, path).format(
            "(SELECT CASE WHEN json_typeof(d) = 'array' THEN d ELSE '[]' END FROM (SELECT {} AS d) "
            "AS document)"
        )
        kind = _type_of(Fragment("e.value")).sql
        return items.format(
            f"LATERAL (SELECT e.value, {kind} AS type "
            f"FROM json_array_elements({{}}) AS e (value)) AS {alias}"
        )

    def number(self, value: Any, kind: str) -> Any:
        if kind == "number":
            return float(value)
        if isinstance(value, float) and kind == "integer":
            return int(value) if value.is_integer() else Decimal(value)
        return Decimal(repr(value)) if isinstance(value, float) else value

    def order(self, operand: Fragment, descending: bool) -> Fragment:
        return operand.format("{} DESC NULLS LAST" if descending else "{} NULLS FIRST")

    def sort_only(self, column: str) -> str:
        return column

    def extreme(self, operand: Fragment, kind: str) -> Fragment:
        # Not every version has MIN and MAX of these types.
        if kind == "bool":
            return operand.format("CAST({} AS INTEGER)")
        if kind == "uuid":
            return operand.format('(CAST({} AS TEXT) COLLATE "C")')
        return operand

    def decimal_order(self, operand: Fragment) -> Fragment:
        return operand.format('(ontologia_decimal_order({}) COLLATE "C")')

    def decimal_constant(self, text: str) -> Any:
        return decimal_order(Decimal(text))

    def decimal_result(self, value: Any) -> Any:
        return decimal_from_order(value)

    def decimal_sum(self, operand: Fragment) -> Fragment:
        return operand.format("SUM(CAST({} AS NUMERIC))")

    def decimal_avg(self, operand: Fragment) -> Fragment:
        number = operand.format("CAST({} AS NUMERIC)")
        parts = [number.format("SUM({})"), number.format("COUNT({})")]
        return join(parts, ", ").format("ontologia_mean({})")

    def decimal_total(self, operand: Fragment) -> Fragment:
        return operand

    def decimal_total_constant(self, text: str) -> Any:
        return Decimal(text)

    def bytes_value(self, operand: Fragment) -> Fragment:
        return operand.format("decode({}, 'base64')")

    def text_contains(self, operand: Fragment, text: str) -> Fragment:
        return operand.format("strpos({}, ?) > 0", text)

    def text_ends(self, operand: Fragment, text: str) -> Fragment:
        return operand.format("right({}, ?::integer) = ?", len(text), text)

    def describe_data(self, connection: Connection, layout: Layout) -> None:
        pass  # the server collects its own statistics

    def declines(self, error: Exception) -> bool:
        return isinstance(error, _LIMITS)

    def update_each(
        self,
        connection: Connection,
        table: str,
        same: Fragment,
        own: Mapping[str, str],
        keys: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        if not rows:
            return
        columns = {**own, **keys}
        types = [self.column_type(kind).split(" COLLATE")[0] for kind in columns.values()]
        arrays = [array(values) for values in zip(*rows, strict=True)]
        changes = ", ".join([same.sql, *(f"{column} = given.{column}" for column in own)])
        connection.executemany(
            f"UPDATE {table} SET {changes} "
            f"FROM unnest({', '.join(f'?::{type_}[]' for type_ in types)}) "
            f"AS given ({', '.join(columns)}) "
            f"WHERE {' AND '.join(f'{table}.{column} = given.{column}' for column in keys)}",
            [(*same.parameters, *arrays)],
        )

    def attempt(self, connection: Connection, statement: Fragment) -> Any:
        # A failed statement would end the transaction, and with it the snapshot.
        connection.execute("SAVEPOINT attempt")
        try:
            return connection.execute(statement.sql, statement.parameters)
        except _LIMITS:
            connection.execute("ROLLBACK TO SAVEPOINT attempt")
            raise
        finally:
            connection.execute("RELEASE SAVEPOINT attempt")

    def explain(self, connection: Connection, statement: Fragment) -> list[str]:
        rows = connection.execute(f"EXPLAIN {statement.sql}", statement.parameters)
        return [line for (line,) in rows]

    # Order among transactions that run at the same time

    def horizon(self, connection: Connection) -> Horizon | None:
        assert isinstance(connection, PostgresConnection)
        if connection.look is not None:
            if connection.horizon is None:
                connection.horizon = connection.look()
            return connection.horizon
        commits, events = connection.execute(READ_HORIZON).fetchone()  # type: ignore[misc]
        return Horizon(commits, events)

    def draw_commit(self, connection: Connection, created_at: str) -> tuple[int, str] | None:
        assert isinstance(connection, PostgresConnection)
        at = (datetime.fromisoformat(created_at) - _EPOCH) // _MICROSECOND
        commit_id, created = connection.execute(
            "SELECT id, created FROM ontologia_draw_commit(?)", (at,)
        ).fetchone()  # type: ignore[misc]
        if created != at:
            created_at = datetime_text(_EPOCH + created * _MICROSECOND)
        connection.witness = ("commits", (commit_id, created_at))
        return commit_id, created_at

    def lock(
        self,
        connection: Connection,
        namespace: str,
        identities: Mapping[TypeSpec, Collection[Row]],
    ) -> None:
        place = lock_key(self._schema, namespace)
        if sum(map(len, identities.values())) > MANY_IDENTITIES:
            connection.executemany("SELECT pg_advisory_xact_lock(?)", [(place,)])
            return
        # In one order everywhere, so that two transactions never wait for each other.
        keys = sorted(
            {
                lock_key(self._schema, namespace, spec.kind, spec.name, *map(str, key))
                for spec, rows in identities.items()
                for key in rows
            }
        )
        if keys:
            # Whoever reads next waits for the locks; what is read is read after them.
            connection.executemany(
                "SELECT pg_advisory_xact_lock_shared(?) UNION ALL "
                "SELECT pg_advisory_xact_lock(k) FROM unnest(?::bigint[]) AS k",
                [(place, array(keys))],
            )

    def lock_types(self, connection: Connection) -> None:
        connection.execute("LOCK TABLE schema_types IN SHARE ROW EXCLUSIVE MODE")

    def before_enqueue(self, connection: Connection, event_ids: Sequence[str]) -> None:
        assert isinstance(connection, PostgresConnection)
        connection.witness = connection.witness or ("events", (list(event_ids),))
        connection.announced = True
        if not connection.marked:
            connection.marked = True
            connection.executemany("SELECT ontologia_mark_events()", [()])

    def announce(self, connection: Connection) -> None:
        assert isinstance(connection, PostgresConnection)
        connection.announced = True


_LIMITS = (
    errors.NumericValueOutOfRange,
    errors.ProgramLimitExceeded,
    errors.StatementTooComplex,
    errors.TooManyArguments,
)


def _type_of(value: Fragment) -> Fragment:
    """What a JSON value is, in the words that SQLite uses."""
    return Fragment(
        "(SELECT CASE json_typeof(v) WHEN 'number' THEN 'real' WHEN 'string' THEN 'text' "
        f"WHEN 'boolean' THEN v::text ELSE json_typeof(v) END FROM (SELECT {value.sql} AS v) "
        "AS value_of)",
        *value.parameters,
    )


_CASTS = {"integer": "BIGINT", "number": "DOUBLE PRECISION", "bool": "BOOLEAN"}


def _scalar(value: Fragment, kind: str) -> Fragment:
    """A JSON value as a value of a kind."""
    if kind == "numeric":  # anything may be there, and a cast of something else would fail
        return value.format(
            "(SELECT CASE WHEN json_typeof(v) = 'number' THEN (v #>> ARRAY[]::text[])::numeric END "
            "FROM (SELECT {} AS v) AS value_of)"
        )
    text = value.format("({} #>> ARRAY[]::text[])")
    if kind == "text":
        return text.format('({} COLLATE "C")')
    return text.format(f"CAST({{}} AS {_CASTS[kind]})")


def array(values: Sequence[Any]) -> str:
    """An array as text; its type follows from what it is compared with."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _decimal_order(text: str) -> str:
    return decimal_order(Decimal(text))


def _numeric(text: str) -> str | None:
    """The text, if a numeric takes it."""
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    fits = value.adjusted() < 131_072 and isinstance(exponent, int) and exponent > -16_383
    return text if fits else None
