"""Tables: where everything lies, and the statements that create it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ontologia.model.spec import FieldSpec, TypeSpec
from ontologia.storage.base import StoredType
from ontologia.storage.sql.dialect import Companion, Dialect, column_kind, quote

FORMAT = 1
"""Version of the layout; a store written by a newer one is refused."""

BASE_TABLES = (
    "CREATE TABLE ontologia_meta (key {text} NOT NULL PRIMARY KEY, value {text} NOT NULL){table}",
    "CREATE TABLE commits (commit_id {int} PRIMARY KEY, namespace {text} NOT NULL, "
    "created_at {text} NOT NULL, session_id {text} NOT NULL, metadata {json} NOT NULL, "
    "types {json} NOT NULL){table}",
    "CREATE INDEX commits_namespace ON commits (namespace, commit_id)",
    "CREATE TABLE schema_types (kind {text} NOT NULL, name {text} NOT NULL, "
    "version {int} NOT NULL, indexes {json} NOT NULL, PRIMARY KEY (kind, name)){table}",
    "CREATE TABLE schema_versions (kind {text} NOT NULL, name {text} NOT NULL, "
    "version {int} NOT NULL, fingerprint {text} NOT NULL, description {json} NOT NULL, "
    "created_at {text} NOT NULL, commit_id {int} NOT NULL, PRIMARY KEY (kind, name, version))"
    "{table}",
)

HISTORY_KEYS = {"entity": ("key",), "relation": ("left_key", "right_key", "instance_key")}
COMMIT_ID, NAMESPACE = '"_commit_id"', '"_namespace"'


def current_name(kind: str, name: str) -> str:
    """The table of the current rows of a type, quoted."""
    return quote(f"{kind}_{name}")


def history_name(kind: str, name: str) -> str:
    """The table of the history of a type, quoted."""
    return quote(f"{kind}_{name}_history")


def history_keys(stored: StoredType) -> tuple[str, ...]:
    """The key columns of the history of a type."""
    return HISTORY_KEYS[stored.kind][: len(stored.current.description["key"])]


def history_kinds(stored: StoredType) -> tuple[str, ...]:
    """What the key columns of the history of a type hold."""
    first = stored.versions[0].description  # the history is never laid out anew
    kinds = (first["fields"][name]["type"] for name in first["key"])
    return tuple(kind if isinstance(kind, str) else choice_kind(kind) for kind in kinds)


def choice_kind(description: dict[str, Any]) -> str:
    """What a column of an Enum or Literal holds, as the registry describes it."""
    return type(description["one_of"][0]).__name__


def stored_column(field: FieldSpec, dialect: Dialect) -> str:
    """The column that holds the stored form, quoted; fields never start with an underscore."""
    exact = dialect.exact_column(column_kind(field.type))
    return quote(f"_exact_{field.name}" if exact else field.name)


def sort_column(field: FieldSpec, dialect: Dialect) -> str:
    """The column by which a field compares and sorts, quoted."""
    for companion in dialect.companions(field.name, column_kind(field.type)):
        if companion.sorts:
            return quote(companion.column)
    return stored_column(field, dialect)


@dataclass(frozen=True, eq=False)
class Layout:
    """The tables of one type, and the statements that read and write them."""

    spec: TypeSpec
    dialect: Dialect

    @cached_property
    def current(self) -> str:
        return current_name(self.spec.kind, self.spec.name)

    @cached_property
    def history(self) -> str:
        return history_name(self.spec.kind, self.spec.name)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The field columns, in stored order."""
        return tuple(stored_column(f, self.dialect) for f in self.spec.fields)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key columns of the current table."""
        return self.columns[: self.spec.key_size]

    @cached_property
    def key_kinds(self) -> tuple[str, ...]:
        """What the key columns hold."""
        return tuple(column_kind(f.type) for f in self.spec.key_fields)

    @cached_property
    def history_keys(self) -> tuple[str, ...]:
        """The key columns of the history table."""
        return HISTORY_KEYS[self.spec.kind][: self.spec.key_size]

    @cached_property
    def companions(self) -> tuple[tuple[int, Companion], ...]:
        """Further columns, each with the position of the field that it follows from."""
        return tuple(
            (i, companion)
            for i, f in enumerate(self.spec.fields)
            for companion in self.dialect.companions(f.name, column_kind(f.type))
        )

    @cached_property
    def _companion_names(self) -> tuple[str, ...]:
        return tuple(quote(c.column) for _, c in self.companions)

    @cached_property
    def selected(self) -> str:
        """The columns that make up a stored row with its commit, of the table called ``t``."""
        return ", ".join(f"t.{c}" for c in (*self.columns, COMMIT_ID))

    def create(self, table: str | None = None) -> str:
        """The statement that creates the current table."""
        # The key first, in its own order: older versions of SQLite check such tables wrongly.
        definitions = [f"{NAMESPACE} {self.dialect.column_type('str')} NOT NULL"]
        for f, column in zip(self.spec.fields, self.columns, strict=True):
            null = "" if f.nullable else " NOT NULL"
            definitions.append(f"{column} {self.dialect.column_type(column_kind(f.type))}{null}")
        definitions += [f"{quote(c.column)} {c.type}" for _, c in self.companions]
        definitions.append(f"{COMMIT_ID} {self.dialect.column_type('int')} NOT NULL")
        definitions.append(f"PRIMARY KEY ({NAMESPACE}, {', '.join(self.keys)})")
        return (
            f"CREATE TABLE {table or self.current} ({', '.join(definitions)})"
            f"{self.dialect.clustered_options}"
        )

    @property
    def unquoted(self) -> str:
        """The name of the current table, as catalogs know it."""
        return f"{self.spec.kind}_{self.spec.name}"

    def name(self, *parts: str) -> str:
        """The name of an index or a trigger; no type or field name holds a colon."""
        return ":".join((self.spec.kind, self.spec.name, *parts))

    def _name(self, *parts: str) -> str:
        return quote(self.name(*parts))

    def create_history(self) -> list[str]:
        """The statements that create the history, and keep it append-only."""
        spec, text = self.spec, self.dialect.column_type("str")
        integer, json = self.dialect.column_type("int"), self.dialect.column_type("json")
        keys = ", ".join(
            f"{column} {self.dialect.column_type(column_kind(f.type))} NOT NULL"
            for column, f in zip(self.history_keys, spec.key_fields, strict=True)
        )
        identity = ", ".join(("namespace", *self.history_keys, "commit_id"))
        fixed = ", ".join((identity, "schema_version", "fields_json"))
        statements = [
            f"CREATE TABLE {self.history} (namespace {text} NOT NULL, {keys}, "
            f"commit_id {integer} NOT NULL, until_commit {integer}, "
            f"schema_version {integer} NOT NULL, fields_json {json} NOT NULL, "
            f"PRIMARY KEY ({identity})){self.dialect.clustered_options}",
            f"CREATE INDEX {self._name('history', 'commit')} ON {self.history} (commit_id)",
            f"CREATE TRIGGER {self._name('history', 'keep')} "
            f"BEFORE DELETE ON {self.history} {self.dialect.refuse}",
            f"CREATE TRIGGER {self._name('history', 'fixed')} "
            f"BEFORE UPDATE OF {fixed} ON {self.history} {self.dialect.refuse}",
        ]
        if spec.kind == "relation":
            index = self._name("history", "right")
            statements.append(f"CREATE INDEX {index} ON {self.history} (namespace, right_key)")
        return statements

    def create_indexes(self, names: frozenset[str]) -> list[str]:
        """The statements that create the indexes of these fields."""
        statements = []
        for f in self.spec.fields:
            if f.name in names:
                index = self._name("field", f.name)
                column = sort_column(f, self.dialect)
                statements.append(f"CREATE INDEX {index} ON {self.current} ({NAMESPACE}, {column})")
        return statements

    def create_right(self) -> list[str]:
        """The index by which relations are found from their right end."""
        if self.spec.kind != "relation":
            return []
        index = self._name("current", "right")
        return [f"CREATE INDEX {index} ON {self.current} ({NAMESPACE}, {self.keys[1]})"]

    @cached_property
    def insert(self) -> str:
        return self.insert_into(self.current)

    def insert_into(self, table: str) -> str:
        """Insert into a table laid out as the current one."""
        names = (*self.columns, *self._companion_names, COMMIT_ID, NAMESPACE)
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({_marks(len(names))})"

    @cached_property
    def update(self) -> str:
        names = (*self.columns[self.spec.key_size :], *self._companion_names, COMMIT_ID)
        changes = ", ".join(f"{c} = ?" for c in names)
        return f"UPDATE {self.current} SET {changes} WHERE {_equal((NAMESPACE, *self.keys))}"

    @cached_property
    def insert_version(self) -> str:
        names = ("namespace", *self.history_keys, "commit_id", "schema_version", "fields_json")
        return f"INSERT INTO {self.history} ({', '.join(names)}) VALUES ({_marks(len(names))})"

    @cached_property
    def end_version(self) -> str:
        identity = _equal(("namespace", *self.history_keys, "commit_id"))
        return f"UPDATE {self.history} SET until_commit = ? WHERE {identity}"

    @cached_property
    def select_one(self) -> str:
        condition = _equal([f"t.{c}" for c in (NAMESPACE, *self.keys)])
        return f"SELECT {self.selected} FROM {self.current} AS t WHERE {condition}"

    @cached_property
    def select_version(self) -> str:
        identity = _equal(("namespace", *self.history_keys))
        return (
            f"SELECT fields_json, commit_id FROM {self.history} WHERE {identity} "
            "AND commit_id <= ? AND (until_commit IS NULL OR until_commit > ?)"
        )

    @cached_property
    def select_all(self) -> str:
        return (
            f"SELECT {self.selected} FROM {self.current} AS t WHERE t.{NAMESPACE} = ? "
            f"ORDER BY {', '.join(f't.{c}' for c in self.keys)}"
        )


def _marks(n: int) -> str:
    return ", ".join("?" * n)


def _equal(columns: tuple[str, ...] | list[str]) -> str:
    return " AND ".join(f"{c} = ?" for c in columns)
