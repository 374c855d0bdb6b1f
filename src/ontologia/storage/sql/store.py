"""Snapshots and transactions over a SQL connection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from uuid_utils.compat import uuid7

from ontologia.model.canonical import INT_MAX, dumps, loads
from ontologia.model.codec import Row
from ontologia.model.spec import Kind, TypeSpec
from ontologia.query.plan import Window
from ontologia.storage.base import (
    Addition,
    ChangeRecord,
    CommitRecord,
    Replacement,
    SchemaVersion,
    StoredRow,
    StoredSchema,
    StoredType,
    StoredVersion,
    TypeId,
)
from ontologia.storage.sql.dialect import Connection, Dialect, Fragment, join
from ontologia.storage.sql.engine import SQLEngine
from ontologia.storage.sql.events import SQLEvents
from ontologia.storage.sql.layout import (
    Layout,
    current_name,
    history_keys,
    history_kinds,
    history_name,
)

_COMMIT_COLUMNS = "commit_id, namespace, created_at, session_id, metadata, types"
_CHUNK = 2_000
READ_EPOCH = "SELECT value FROM ontologia_meta WHERE key = 'schema_epoch'"


class Catalog:
    """What snapshots of one store share: layouts, and the registry as last read."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._layouts: dict[TypeSpec, Layout] = {}
        self.schema = StoredSchema("?")
        self.settled = 0
        """No commit up to this one is still being written."""

    def apart(self) -> Catalog:
        """A catalog for transactions that see what others do not see yet."""
        catalog = Catalog(self.dialect)
        catalog._layouts = self._layouts
        return catalog

    def layout(self, spec: TypeSpec) -> Layout:
        """The layout of a type, made once."""
        found = self._layouts.get(spec)
        if found is None:
            found = self._layouts[spec] = Layout(spec, self.dialect)
        return found


class SQLSnapshot:
    """A view of one namespace, inside a transaction of the connection."""

    def __init__(self, connection: Connection, catalog: Catalog, namespace: str) -> None:
        self._connection, self._catalog, self._namespace = connection, catalog, namespace

    def _epoch(self) -> str:
        """Another text after every change of the registry."""
        epoch: str = self._connection.execute(READ_EPOCH).fetchone()[0]
        return epoch

    def schema(self) -> StoredSchema:
        epoch = self._epoch()
        cached = self._catalog.schema
        if cached.epoch != epoch:
            cached = self._catalog.schema = self._read_schema(epoch)
        return cached

    def _read_schema(self, epoch: str) -> StoredSchema:
        indexes = {
            (kind, name): frozenset(loads(text))
            for kind, name, text in self._connection.execute(
                "SELECT kind, name, indexes FROM schema_types"
            )
        }
        versions: dict[TypeId, list[SchemaVersion]] = {}
        for kind, name, version, fingerprint, description, commit_id in self._connection.execute(
            "SELECT kind, name, version, fingerprint, description, commit_id "
            "FROM schema_versions ORDER BY kind, name, version"
        ):
            versions.setdefault((kind, name), []).append(
                SchemaVersion(version, fingerprint, loads(description), commit_id)
            )
        types = {
            type_id: StoredType(*type_id, tuple(versions[type_id]), names)
            for type_id, names in indexes.items()
        }
        return StoredSchema(epoch, types)

    def head(self) -> int:
        (head,) = self._connection.execute("SELECT MAX(commit_id) FROM commits").fetchone()
        return head or 0

    def settle(self, commit_id: int) -> None:
        pass  # where one transaction writes at a time

    def engine(self) -> SQLEngine:
        catalog = self._catalog
        return SQLEngine(self._connection, catalog.dialect, catalog.layout, self._namespace)

    def current(self, spec: TypeSpec, keys: Iterable[Row] | None = None) -> Iterable[StoredRow]:
        layout, execute = self._catalog.layout(spec), self._connection.execute
        rows: Iterable[StoredRow]
        if keys is None:
            rows = execute(layout.select_all, (self._namespace,))
            return rows
        wanted = list(keys)
        if len(wanted) < 2:
            rows = execute(layout.select_one, (self._namespace, *wanted[0])) if wanted else ()
            return rows
        among = self._catalog.dialect.among_keys(
            [f"t.{c}" for c in layout.keys], layout.key_kinds, wanted
        )
        rows = execute(
            f'SELECT {layout.selected} FROM {layout.current} AS t WHERE t."_namespace" = ? '
            f"AND {among.sql}",
            (self._namespace, *among.parameters),
        )
        return rows

    def versions(
        self, stored: StoredType, window: Window, keys: Iterable[Row] | None = None
    ) -> Iterator[StoredVersion]:
        names = history_keys(stored)
        conditions = [Fragment("h.namespace = ?", self._namespace)]
        if window.mode == "history":
            conditions.append(Fragment("h.commit_id > ?", window.commit_id))
            if window.until is not None:
                conditions.append(Fragment("h.commit_id <= ?", window.until))
        else:
            at = window.commit_id
            conditions.append(
                Fragment(
                    "h.commit_id <= ? AND (h.until_commit IS NULL OR h.until_commit > ?)", at, at
                )
            )
        if keys is not None:
            wanted = list(keys)
            if not wanted:
                return
            columns = [f"h.{n}" for n in names]
            conditions.append(
                self._catalog.dialect.among_keys(columns, history_kinds(stored), wanted)
            )
        where = join(conditions, " AND ")
        yield from self._read_versions(stored, where, f"h.commit_id, {', '.join(names)}")

    def _read_versions(
        self, stored: StoredType, where: Fragment, order: str, extra: str = ""
    ) -> Iterator[Any]:
        names = history_keys(stored)
        n = len(names)
        cursor = self._connection.execute(
            f"SELECT {', '.join(names)}, commit_id, until_commit, schema_version, fields_json"
            f"{extra} FROM {history_name(stored.kind, stored.name)} AS h WHERE {where.sql} "
            f"ORDER BY {order}",
            where.parameters,
        )
        for row in cursor:
            version = StoredVersion(row[:n], *row[n : n + 4])
            yield (row[-1], version) if extra else version

    def commit(self, commit_id: int) -> CommitRecord | None:
        found = self._commits("commit_id = ? AND namespace = ?", (commit_id, self._namespace))
        return found[0] if found else None

    def commits(self, limit: int, since: int | None) -> list[CommitRecord]:
        if since is None:
            return self._commits(
                "namespace = ? AND commit_id <= ? ORDER BY commit_id DESC LIMIT ?",
                (self._namespace, self._last(), limit),
            )
        return self._commits(
            "namespace = ? AND commit_id > ? AND commit_id <= ? ORDER BY commit_id LIMIT ?",
            (self._namespace, since, self._last(), limit),
        )

    def settled(self) -> int | None:
        horizon = self._catalog.dialect.horizon(self._connection)
        return None if horizon is None else horizon.commits

    def _last(self) -> int:
        """The newest commit that no commit can still appear before."""
        last = self.settled()
        return INT_MAX if last is None else last

    def _commits(self, condition: str, parameters: Sequence[Any]) -> list[CommitRecord]:
        rows = self._connection.execute(
            f"SELECT {_COMMIT_COLUMNS} FROM commits WHERE {condition}", parameters
        ).fetchall()
        return [
            CommitRecord(
                commit_id, namespace, at, session, loads(metadata), [_type_id(t) for t in loads(ts)]
            )
            for commit_id, namespace, at, session, metadata, ts in rows
        ]

    def commit_at(self, created_at: str) -> int:
        # Times never decrease, so halving finds it without an index; some ids were not used.
        (last,) = self._connection.execute(
            "SELECT MAX(commit_id) FROM commits WHERE commit_id <= ?", (self._last(),)
        ).fetchone()
        low, high = 0, last or 0
        while low < high:
            middle = (low + high + 1) // 2
            commit_id, at = self._connection.execute(
                "SELECT commit_id, created_at FROM commits WHERE commit_id >= ? "
                "ORDER BY commit_id LIMIT 1",
                (middle,),
            ).fetchone()
            if at <= created_at:
                low = commit_id
            else:
                high = middle - 1
        return low

    def changes(self, stored: StoredType, after: int, until: int) -> list[ChangeRecord]:
        names = history_keys(stored)
        table, keys = history_name(stored.kind, stored.name), ", ".join(f"h.{n}" for n in names)
        same = " AND ".join(f"e.{n} = h.{n}" for n in ("namespace", *names))
        rows = self._connection.execute(
            f"SELECT DISTINCT {keys}, NOT EXISTS (SELECT 1 FROM {table} AS e WHERE {same} "
            f"AND e.commit_id <= ?) FROM {table} AS h "
            f"WHERE h.namespace = ? AND h.commit_id > ? AND h.commit_id <= ? ORDER BY {keys}",
            (after, self._namespace, after, until),
        ).fetchall()
        return [ChangeRecord(row[:-1], bool(row[-1])) for row in rows]

    def census(self, stored: StoredType) -> dict[str, int]:
        rows = self._connection.execute(
            f'SELECT "_namespace", COUNT(*) FROM {current_name(stored.kind, stored.name)} '
            'GROUP BY "_namespace"'
        )
        return dict(rows.fetchall())

    @property
    def events(self) -> SQLEvents:
        return SQLEvents(self._connection, self._catalog.dialect, self._namespace)


class SQLTransaction(SQLSnapshot):
    """A write transaction; the driver begins and ends it."""

    @property
    def events(self) -> SQLEvents:
        dialect = self._catalog.dialect
        return SQLEvents(self._connection, dialect, self._namespace, dialect.for_update)

    def _touch_schema(self) -> None:
        # Never a counter: a value that was rolled back must not come back with another meaning.
        self._connection.execute(
            "UPDATE ontologia_meta SET value = ? WHERE key = 'schema_epoch'", (str(uuid7()),)
        )

    def _add_version(self, spec: TypeSpec, version: int, created_at: str) -> None:
        self._connection.execute(
            "INSERT INTO schema_versions (kind, name, version, fingerprint, description, "
            "created_at, commit_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                spec.kind,
                spec.name,
                version,
                spec.fingerprint,
                dumps(spec.document),
                created_at,
                self.head(),
            ),
        )
        self._touch_schema()

    def register(self, spec: TypeSpec, created_at: str) -> None:
        layout = self._catalog.layout(spec)
        names = _indexed(spec)
        self._catalog.dialect.describe_data(self._connection, layout)
        for statement in (
            layout.create(),
            *layout.create_history(),
            *layout.create_right(),
            *layout.create_indexes(names),
        ):
            self._connection.execute(statement)
        self._connection.execute(
            "INSERT INTO schema_types (kind, name, version, indexes) VALUES (?, ?, 1, ?)",
            (spec.kind, spec.name, dumps(sorted(names))),
        )
        self._add_version(spec, 1, created_at)

    def add_indexes(self, spec: TypeSpec) -> None:
        present = self.schema().types[spec.kind, spec.name].indexes
        missing = _indexed(spec) - present
        self._catalog.dialect.describe_data(self._connection, self._catalog.layout(spec))
        for statement in self._catalog.layout(spec).create_indexes(missing):
            self._connection.execute(statement)
        self._connection.execute(
            "UPDATE schema_types SET indexes = ? WHERE kind = ? AND name = ?",
            (dumps(sorted(present | missing)), spec.kind, spec.name),
        )
        self._touch_schema()

    def add_commit(
        self, created_at: str, session_id: str, metadata: dict[str, str], types: Sequence[TypeId]
    ) -> int:
        drawn = self._catalog.dialect.draw_commit(self._connection, created_at)
        commit_id, created_at = drawn or self._next_commit(created_at)
        record = (commit_id, self._namespace, created_at, session_id)
        self._connection.executemany(
            f"INSERT INTO commits ({_COMMIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            [(*record, dumps(metadata), dumps(types))],
        )
        return commit_id

    def _next_commit(self, created_at: str) -> tuple[int, str]:
        last = self._connection.execute(
            "SELECT created_at, commit_id FROM commits ORDER BY commit_id DESC LIMIT 1"
        ).fetchone()
        return (1, created_at) if last is None else (last[1] + 1, max(created_at, last[0]))

    def lock(self, identities: Mapping[TypeSpec, Collection[Row]]) -> None:
        self._catalog.dialect.lock(self._connection, self._namespace, identities)

    def lock_types(self) -> None:
        self._catalog.dialect.lock_types(self._connection)

    def write(
        self,
        spec: TypeSpec,
        schema_version: int,
        commit_id: int,
        added: Sequence[Addition],
        replaced: Sequence[Replacement],
    ) -> None:
        layout, namespace, k = self._catalog.layout(spec), self._namespace, spec.key_size
        many = self._connection.executemany
        extended = _extender(layout)
        if added:
            many(layout.insert, [(*extended(r), commit_id, namespace) for r, _ in added])
            many(
                layout.insert_version,
                [(namespace, *r[:k], commit_id, schema_version, p) for r, p in added],
            )
        if replaced:
            many(
                layout.update,
                [(*extended(r)[k:], commit_id, namespace, *r[:k]) for r, _, _ in replaced],
            )
            many(
                layout.end_version,
                [(commit_id, namespace, *r[:k], before) for r, _, before in replaced],
            )
            many(
                layout.insert_version,
                [(namespace, *r[:k], commit_id, schema_version, p) for r, p, _ in replaced],
            )

    def all_rows(self, stored: StoredType) -> Iterator[tuple[str, StoredVersion]]:
        yield from self._read_versions(
            stored, Fragment("h.until_commit IS NULL"), "h.namespace", ", namespace"
        )

    def replace_type(
        self, spec: TypeSpec, created_at: str, rows: Iterable[tuple[str, StoredRow]]
    ) -> None:
        layout, execute = self._catalog.layout(spec), self._connection.execute
        fresh, extended = '"ontologia_migration"', _extender(layout)
        execute(layout.create(fresh))
        insert = layout.insert_into(fresh)
        for chunk in _chunks(rows):
            self._connection.executemany(
                insert, [(*extended(r[:-1]), r[-1], namespace) for namespace, r in chunk]
            )
        execute(f"DROP TABLE {layout.current}")
        self._catalog.dialect.describe_data(self._connection, layout)
        execute(f"ALTER TABLE {fresh} RENAME TO {layout.current}")
        names = _indexed(spec)
        for statement in (*layout.create_right(), *layout.create_indexes(names)):
            execute(statement)
        version = self.schema().types[spec.kind, spec.name].current.version + 1
        execute(
            "UPDATE schema_types SET version = ?, indexes = ? WHERE kind = ? AND name = ?",
            (version, dumps(sorted(names)), spec.kind, spec.name),
        )
        self._add_version(spec, version, created_at)

    def drop(self, stored: StoredType) -> None:
        execute = self._connection.execute
        execute(f"DROP TABLE {current_name(stored.kind, stored.name)}")
        execute(f"DROP TABLE {history_name(stored.kind, stored.name)}")
        for table in ("schema_types", "schema_versions"):
            execute(f"DELETE FROM {table} WHERE kind = ? AND name = ?", (stored.kind, stored.name))
        self._touch_schema()


def _indexed(spec: TypeSpec) -> frozenset[str]:
    return frozenset(f.name for f in spec.fields if f.index)


def _type_id(pair: list[Any]) -> TypeId:
    kind: Kind = pair[0]
    return kind, pair[1]


def _chunks(rows: Iterable[Any]) -> Iterator[Sequence[Any]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _extender(layout: Layout) -> Callable[[Row], Row]:
    """A function that adds the further columns to a row, where there are any."""
    computed = [(i, companion.compute) for i, companion in layout.companions]
    if not computed:
        return lambda row: row

    def extend(row: Row) -> Row:
        extra = [None if row[i] is None else compute(row[i]) for i, compute in computed]
        return (*row, *extra)

    return extend
