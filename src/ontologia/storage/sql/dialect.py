"""Dialects: the few places where SQL databases differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ontologia.model.codec import Row
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


class Dialect(Protocol):
    """What a SQL database says in its own way."""

    table_options: str
    """Appended to the definition of every table."""

    clustered_options: str
    """Appended where rows should be stored in the order of the primary key."""

    order_columns: bool
    """Decimals need a column of their own that sorts as they do."""

    def column_type(self, kind: str) -> str:
        """The type of a column that holds stored values of a kind."""
        ...

    def among_keys(self, columns: Sequence[str], keys: Sequence[Row]) -> Fragment:
        """A condition that the columns are one of the keys; one statement however many."""
        ...

    def among_values(self, operand: Fragment, values: Sequence[Any], negated: bool) -> Fragment:
        """A condition that the operand is (not) one of many values of one kind."""
        ...

    def json_value(self, document: str, path: tuple[str, ...]) -> Fragment:
        """The scalar at a path; NULL where there is none; containers as JSON text."""
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

    def declines(self, error: Exception) -> bool:
        """Whether a statement failed for a limit of the database, not for a fault of the plan."""
        ...
