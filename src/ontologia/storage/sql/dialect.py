"""Dialects: the few places where SQL databases differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.model.types import ChoiceType, ValueType


def quote(identifier: str) -> str:
    """An identifier, safe in any statement."""
    return '"' + identifier.replace('"', '""') + '"'


class Fragment:
    """A piece of SQL with the values bound to it, in order."""

    __slots__ = ("parameters", "sql")

    def __init__(self, sql: str, *parameters: Any) -> None:
        self.sql, self.parameters = sql, parameters

    def format(self, template: str, *parameters: Any) -> Fragment:
        """This fragment in place of ``{}``, followed by further values."""
        return Fragment(template.replace("{}", self.sql), *self.parameters, *parameters)


def join(parts: Sequence[Fragment], separator: str) -> Fragment:
    """Fragments side by side."""
    parameters = [value for part in parts for value in part.parameters]
    return Fragment(separator.join(part.sql for part in parts), *parameters)


def join_balanced(parts: Sequence[Fragment], word: str) -> Fragment:
    """Conditions joined by AND or OR as a tree of little depth: databases limit the depth."""
    if len(parts) <= 8:
        return join(parts, f" {word} ").format("({})")
    middle = len(parts) // 2
    halves = [join_balanced(parts[:middle], word), join_balanced(parts[middle:], word)]
    return join(halves, f" {word} ").format("({})")


def column_kind(type_: ValueType) -> str:
    """What a column of this type holds, in words that every dialect translates."""
    if isinstance(type_, ChoiceType):
        return {str: "str", int: "int", float: "float", bool: "bool"}[type_.base]
    return "json" if type_.kind == "any" else type_.kind


class Connection(Protocol):
    """The part of a DB-API connection that the statements need."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any: ...


class Companion(NamedTuple):
    """A column that follows from the stored form of a field."""

    column: str
    type: str
    compute: Callable[[Any], Any]
    sorts: bool
    """Comparisons and indexes use it instead of the stored form."""


class Horizon(NamedTuple):
    """Everything up to here was committed or undone before the reader began to look."""

    commits: int
    events: int


class Dialect(Protocol):
    """What a SQL database says in its own way."""

    words: Mapping[str, str]
    """What stands for ``{text}``, ``{int}``, ``{json}``, ``{serial}``, ``{position}``
    and ``{table}`` in the definitions of tables."""

    clustered_options: str
    """Appended where rows should be stored in the order of the primary key."""

    refuse: str
    """The body of a trigger that refuses to change history."""

    unlimited: Any
    """The value of LIMIT for all rows."""

    for_update: str
    """Appended to a SELECT that keeps others from changing what it finds."""

    skip_locked: str
    """Appended to a SELECT that takes what nobody else works on."""

    def column_type(self, kind: str) -> str:
        """The type of a column that holds stored values of a kind."""
        ...

    def exact_column(self, kind: str) -> bool:
        """Whether the stored form is kept beside a native column that cannot hold it exactly."""
        ...

    def companions(self, name: str, kind: str) -> Sequence[Companion]:
        """Further columns of a field, computed from its stored form."""
        ...

    def among_keys(
        self, columns: Sequence[str], kinds: Sequence[str], keys: Sequence[Row]
    ) -> Fragment:
        """A condition that the columns are one of the keys; one statement however many."""
        ...

    def among_values(self, operand: Fragment, values: Sequence[Any], negated: bool) -> Fragment:
        """A condition that the operand is (not) one of many values of one kind."""
        ...

    def json_value(self, document: str, path: tuple[str, ...], kind: str) -> Fragment:
        """The scalar at a path; NULL where there is none; containers as JSON text.

        ``kind`` says what is expected there: ``text``, ``integer``, ``number`` (a float),
        ``numeric`` (any number) or ``bool``; something else may be found all the same.
        """
        ...

    def json_item(self, kind: str) -> Fragment:
        """The scalar in the column ``value`` of ``item``, a table of :meth:`json_items`."""
        ...

    def json_text(self, column: str) -> str:
        """A column that holds JSON, in a form that compares."""
        ...

    def number(self, value: Any, kind: str) -> Any:
        """The constant that compares with a column of a kind as Python's numbers do."""
        ...

    def order(self, operand: Fragment, descending: bool) -> Fragment:
        """A sort key; nulls sort lowest."""
        ...

    def extreme(self, operand: Fragment, kind: str) -> Fragment:
        """A form of the operand that MIN and MAX take, and that decodes to the same."""
        ...

    def json_type(self, document: str, path: tuple[str, ...]) -> Fragment:
        """``integer``, ``real``, ``text``, ``true``, ``false``, ``null``, ``array``, ``object``."""
        ...

    def json_length(self, document: str, path: tuple[str, ...]) -> Fragment:
        """The number of items of a list."""
        ...

    def json_items(self, document: str, path: tuple[str, ...], alias: str) -> Fragment:
        """A table of the items of a list, with columns ``type`` and ``value``."""
        ...

    def decimal_order(self, operand: Fragment) -> Fragment:
        """A value that sorts as the decimal text does."""
        ...

    def decimal_constant(self, text: str) -> Any:
        """The constant that compares with :meth:`decimal_order`."""
        ...

    def decimal_result(self, value: Any) -> Any:
        """The decimal behind a value of :meth:`decimal_order`."""
        ...

    def decimal_sum(self, operand: Fragment) -> Fragment:
        """The exact sum of decimal texts."""
        ...

    def decimal_avg(self, operand: Fragment) -> Fragment:
        """The mean of decimal texts."""
        ...

    def decimal_total(self, operand: Fragment) -> Fragment:
        """A sum or mean of decimals in a form that compares."""
        ...

    def decimal_total_constant(self, text: str) -> Any:
        """The constant that compares with :meth:`decimal_total`."""
        ...

    def bytes_value(self, operand: Fragment) -> Fragment:
        """The bytes behind base64 text."""
        ...

    def text_contains(self, operand: Fragment, text: str) -> Fragment:
        """A condition that the operand holds a text literally."""
        ...

    def text_ends(self, operand: Fragment, text: str) -> Fragment:
        """A condition that the operand ends with a text literally."""
        ...

    def describe_data(self, connection: Connection, layout: Any) -> None:
        """Tell the planner what to expect of the tables of a type, before they are created."""
        ...

    def sort_only(self, column: str) -> str:
        """A sort key that must not tempt the planner away from the index of a filter."""
        ...

    def horizon(self, connection: Connection) -> Horizon | None:
        """How far commits and events can be read without gaps; None: all that is visible."""
        ...

    def draw_commit(self, connection: Connection, created_at: str) -> tuple[int, str] | None:
        """The id and the time of a new commit; None: those that follow the last one."""
        ...

    def lock(
        self,
        connection: Connection,
        namespace: str,
        identities: Mapping[TypeSpec, Collection[Row]],
    ) -> None:
        """Keep others from writing these identities until the transaction ends."""
        ...

    def lock_types(self, connection: Connection) -> None:
        """Keep others from registering types until the transaction ends."""
        ...

    def before_enqueue(self, connection: Connection, event_ids: Sequence[str]) -> None:
        """Prepare for new events: they will be announced, and count as being written."""
        ...

    def announce(self, connection: Connection) -> None:
        """Wake those who wait, once the transaction has ended."""
        ...

    def update_each(
        self,
        connection: Connection,
        table: str,
        same: Fragment,
        own: Mapping[str, str],
        keys: Mapping[str, str],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """Change many rows: columns that become the same everywhere, and those with own values.

        ``own`` and ``keys`` are columns and their kinds; each of the rows has a value for all.
        """
        ...

    def attempt(self, connection: Connection, statement: Fragment) -> Any:
        """Execute a query that may fail without ending the transaction."""
        ...

    def explain(self, connection: Connection, statement: Fragment) -> list[str]:
        """The plan of a query, a line per step."""
        ...

    def declines(self, error: Exception) -> bool:
        """Whether a statement failed for a limit of the database, not for a fault of the plan."""
        ...
