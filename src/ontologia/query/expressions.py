"""Expressions: what ``Customer.age > 30`` is made of.

Class-level access to a field gives a :class:`FieldRef`; comparing one gives a :class:`Filter`.
Neither knows a datastore: they are bound to a type and compiled elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ontologia.errors import FilterTruthError, QueryError, UnknownOperatorError, shorten

T = TypeVar("T")
OwnerT = TypeVar("OwnerT")
OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)

# A JSON path inside a stored document is quoted with these; a segment that holds one of them
# could not be addressed in the same way on every backend.
_PATH_FORBIDDEN = frozenset('"\\') | {chr(c) for c in (*range(32), *range(0xD800, 0xE000))}


class Filter(Generic[OwnerT_contra]):
    """A predicate over the fields of one type; never a bool."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, *args: Any) -> None:
        self.op, self.args = op, args

    def __and__(self: Filter[OwnerT], other: Filter[OwnerT]) -> Filter[OwnerT]:
        return Filter("and", self, _as_filter(other, "&"))

    def __or__(self: Filter[OwnerT], other: Filter[OwnerT]) -> Filter[OwnerT]:
        return Filter("or", self, _as_filter(other, "|"))

    # For the checkers only: lets ``Filter[Base] & Filter[Sub]`` solve to Filter[Sub].
    def __rand__(self: Filter[OwnerT], other: Filter[OwnerT]) -> Filter[OwnerT]:
        return Filter("and", _as_filter(other, "&"), self)

    def __ror__(self: Filter[OwnerT], other: Filter[OwnerT]) -> Filter[OwnerT]:
        return Filter("or", _as_filter(other, "|"), self)

    def __invert__(self) -> Filter[OwnerT_contra]:
        return Filter("not", self)

    def __bool__(self) -> NoReturn:
        raise FilterTruthError(
            f"{self!r} is a filter, not a truth value.",
            why="'and', 'or', 'not', 'if' and chained comparisons call bool().",
            fix="combine filters with &, | and ~, e.g. (A.x > 1) & (A.x < 9).",
        )

    def __repr__(self) -> str:
        try:
            return self._text()
        except RecursionError:
            return f"<a filter of many parts joined by {self.op}>"

    def _text(self) -> str:
        if self.op in ("and", "or"):
            return f"({self.args[0]!r} {'&' if self.op == 'and' else '|'} {self.args[1]!r})"
        if self.op == "not":
            return f"~{self.args[0]!r}"
        if len(self.args) == 2 and not self.op[0].isalpha():
            return f"({self.args[0]!r} {self.op} {shorten(self.args[1])})"
        return f"{self.args[0]!r}.{self.op}({', '.join(shorten(a) for a in self.args[1:])})"


def _as_filter(value: object, operator: str) -> Filter[Any]:
    if isinstance(value, Filter):
        return value
    raise QueryError(
        f"{shorten(value)} cannot be combined with a filter by {operator}.",
        why="& and | bind tighter than comparisons in Python.",
        fix="put each comparison in parentheses: (A.x > 1) & (A.y == 2).",
    )


class _Comparable(Generic[OwnerT, T]):
    """The comparison operators, shared by fields and aggregates."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _compare(self, op: str, other: object) -> Filter[OwnerT]:
        if other is None or other is True or other is False:
            name = {None: "is_null", True: "is_true", False: "is_false"}[other]
            raise QueryError(
                f"{self!r} {op} {other!r} is not a filter.",
                why="SQL compares with NULL and with truth values in its own way.",
                fix=f"use {self!r}.{name}(), or its negation with ~.",
            )
        if isinstance(other, _Comparable):
            raise QueryError(
                f"{self!r} {op} {other!r} compares two expressions.",
                why="a filter compares a field with a value.",
                fix="read one side first, or store the comparison in a field of its own.",
            )
        return Filter(op, self, other)

    def __eq__(self, other: T) -> Filter[OwnerT]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("==", other)

    def __ne__(self, other: T) -> Filter[OwnerT]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("!=", other)

    def __gt__(self, other: T) -> Filter[OwnerT]:
        return self._compare(">", other)

    def __ge__(self, other: T) -> Filter[OwnerT]:
        return self._compare(">=", other)

    def __lt__(self, other: T) -> Filter[OwnerT]:
        return self._compare("<", other)

    def __le__(self, other: T) -> Filter[OwnerT]:
        return self._compare("<=", other)

    def in_(self, values: Iterable[T]) -> Filter[OwnerT]:
        """True where the value is one of ``values``."""
        if isinstance(values, str | bytes):
            raise QueryError(
                f"{self!r}.in_({shorten(values)}) got one text.",
                why="a text is a sequence of characters; that is rarely what is meant.",
                fix=f"pass a list: {self!r}.in_([{shorten(values)}]).",
            )
        if not isinstance(values, Iterable) or isinstance(values, type):
            raise QueryError(
                f"{self!r}.in_({shorten(values)}) got no collection.", fix="pass a list of values."
            )
        items = list(values)
        if any(item is None for item in items):
            raise QueryError(
                f"{self!r}.in_() got None among its values.",
                why="nothing is equal to NULL.",
                fix=f"use {self!r}.in_([...]) | {self!r}.is_null().",
            )
        return Filter("in_", self, items)

    def __bool__(self) -> NoReturn:
        raise FilterTruthError(
            f"{self!r} is an expression, not a truth value.",
            fix="compare it with a value, or read the field from an instance.",
        )

    # Hidden from the checkers, which would otherwise accept any operation.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__") or name in type(self).__slots__:
                raise AttributeError(name)
            raise UnknownOperatorError(
                f"{self!r} has no operation {name!r}.",
                fix="compare with ==, !=, <, <=, >, >=, or use in_(), startswith(), endswith(), "
                "contains(), is_null(), is_true(), path() or any_path().",
            )

        def _arithmetic(self, *_: object) -> NoReturn:
            raise UnknownOperatorError(
                f"{self!r} cannot be computed with.",
                why="a filter compares a field with a value.",
                fix="compute on the value's side: Customer.age > 30 - 1.",
            )

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
        __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = _arithmetic
        __neg__ = __pos__ = __abs__ = __contains__ = _arithmetic
        __and__ = __or__ = __xor__ = __invert__ = __rand__ = __ror__ = _arithmetic


class FieldRef(_Comparable[OwnerT, T]):
    """What ``Customer.age`` is: a typed reference usable in filters, orders and aggregates."""

    __slots__ = ("items", "name", "owner", "segments", "side")
    __hash__ = object.__hash__

    def __init__(
        self,
        owner: type[OwnerT],
        name: str,
        segments: tuple[str, ...] = (),
        *,
        side: str | None = None,
        items: tuple[str, ...] | None = None,
    ) -> None:
        self.owner, self.name, self.segments, self.side = owner, name, segments, side
        # Path inside each item of a list; None when the reference is not existential.
        self.items = items

    def __repr__(self) -> str:
        base = self.owner.__name__ if self.side is None else f"{self.side}({self.owner.__name__})"
        text = f"{base}.{self.name}" + "".join(f"[{s!r}]" for s in self.segments)
        if self.items is not None:
            text += f".any_path({'.'.join(self.items)!r})"
        return text

    def startswith(
        self: FieldRef[OwnerT, str] | FieldRef[OwnerT, str | None], prefix: str
    ) -> Filter[OwnerT]:
        """True where the text begins with ``prefix``, taken literally."""
        return Filter("startswith", self, _text(prefix, self, "startswith"))

    def endswith(
        self: FieldRef[OwnerT, str] | FieldRef[OwnerT, str | None], suffix: str
    ) -> Filter[OwnerT]:
        """True where the text ends with ``suffix``, taken literally."""
        return Filter("endswith", self, _text(suffix, self, "endswith"))

    def contains(
        self: FieldRef[OwnerT, str] | FieldRef[OwnerT, str | None], part: str
    ) -> Filter[OwnerT]:
        """True where the text holds ``part``, taken literally."""
        return Filter("contains", self, _text(part, self, "contains"))

    def is_null(self) -> Filter[OwnerT]:
        """True where there is no value."""
        return Filter("is_null", self)

    def is_not_null(self) -> Filter[OwnerT]:
        """True where there is a value."""
        return Filter("is_not_null", self)

    def is_true(self) -> Filter[OwnerT]:
        """True where the value is True (and not NULL)."""
        return Filter("is_true", self)

    def is_false(self) -> Filter[OwnerT]:
        """True where the value is False (and not NULL)."""
        return Filter("is_false", self)

    def path(self, path: str) -> FieldRef[OwnerT, Any]:
        """Reach into a nested value: ``Customer.address.path("geo.city")``."""
        segments = _split(path, self)
        if self.items is not None:
            return self._at(items=self.items + segments)
        return self._at(segments=self.segments + segments)

    def __getitem__(self, key: str) -> FieldRef[OwnerT, Any]:
        segment = (_segment(key, self),)
        if self.items is not None:
            return self._at(items=self.items + segment)
        return self._at(segments=self.segments + segment)

    # Without this, ``for x in Customer.tags`` would call __getitem__(0), (1), ... for ever.
    __iter__ = None

    def any_path(self, path: str = "") -> FieldRef[OwnerT, Any]:
        """Any item of a list: ``Order.lines.any_path("sku") == "a"``; no path means the item."""
        if self.items is not None:
            raise QueryError(
                f"{self!r} already means any item of a list.",
                fix="use one any_path() per filter.",
            )
        return self._at(items=_split(path, self) if path else ())

    def asc(self) -> Order[OwnerT]:
        """Sort ascending, nulls first."""
        return Order(self, False)

    def desc(self) -> Order[OwnerT]:
        """Sort descending, nulls last."""
        return Order(self, True)

    def sum(self) -> Aggregate[OwnerT]:
        """The sum over a group; None over nothing."""
        return Aggregate("sum", self)

    def avg(self) -> Aggregate[OwnerT]:
        """The mean over a group; None over nothing."""
        return Aggregate("avg", self)

    def min(self) -> Aggregate[OwnerT]:
        """The least value of a group."""
        return Aggregate("min", self)

    def max(self) -> Aggregate[OwnerT]:
        """The greatest value of a group."""
        return Aggregate("max", self)

    def avg_len(self) -> Aggregate[OwnerT]:
        """The mean length of a list field over a group."""
        return Aggregate("avg_len", self)

    def _at(
        self, *, segments: tuple[str, ...] | None = None, items: tuple[str, ...] | None = None
    ) -> FieldRef[OwnerT, Any]:
        return FieldRef(
            self.owner,
            self.name,
            self.segments if segments is None else segments,
            side=self.side,
            items=self.items if items is None else items,
        )


class Order(Generic[OwnerT_contra]):
    """A sort key: a field and a direction."""

    __slots__ = ("descending", "ref")

    def __init__(self, ref: FieldRef[Any, Any], descending: bool) -> None:
        self.ref, self.descending = ref, descending

    def __repr__(self) -> str:
        return f"{self.ref!r}.{'desc' if self.descending else 'asc'}()"


class Aggregate(_Comparable[OwnerT, Any]):
    """A value computed over a group of rows."""

    __slots__ = ("function", "operand")
    __hash__ = object.__hash__

    def __init__(
        self, function: str, operand: FieldRef[Any, Any] | Filter[Any] | None = None
    ) -> None:
        self.function, self.operand = function, operand

    def is_null(self) -> Filter[OwnerT]:
        """True where the aggregate has no value."""
        return Filter("is_null", self)

    def is_not_null(self) -> Filter[OwnerT]:
        """True where the aggregate has a value."""
        return Filter("is_not_null", self)

    def __repr__(self) -> str:
        if isinstance(self.operand, FieldRef):
            return f"{self.operand!r}.{self.function}()"
        return f"{self.function}({'' if self.operand is None else repr(self.operand)})"


class Endpoint(Generic[OwnerT]):
    """The fields of one end of a relation, for use in filters of that relation."""

    __slots__ = ("_owner", "_side")

    def __init__(self, owner: type[OwnerT], side: str) -> None:
        self._owner, self._side = owner, side

    def __getattr__(self, name: str) -> FieldRef[OwnerT, Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return FieldRef(self._owner, name, side=self._side)

    def __repr__(self) -> str:
        return f"{self._side}({self._owner.__name__})"


def left(relation: type[OwnerT]) -> Endpoint[OwnerT]:
    """The left endpoint of a relation: ``left(Subscription).tier == "gold"``."""
    return Endpoint(_class(relation, "left"), "left")


def right(relation: type[OwnerT]) -> Endpoint[OwnerT]:
    """The right endpoint of a relation: ``right(Subscription).price > 10``."""
    return Endpoint(_class(relation, "right"), "right")


def _class(relation: Any, function: str) -> Any:
    if not isinstance(relation, type):
        raise QueryError(
            f"{function}({shorten(relation)}) needs a relation class.",
            fix=f"write {function}(Subscription).tier, with the class and not its name.",
        )
    return relation


def count() -> Aggregate[Any]:
    """The number of rows in a group."""
    return Aggregate("count")


def count_where(predicate: Filter[OwnerT]) -> Aggregate[OwnerT]:
    """The number of rows in a group that satisfy ``predicate``."""
    return Aggregate("count_where", predicate)


def _text(value: object, ref: FieldRef[Any, Any], method: str) -> str:
    if not isinstance(value, str):
        raise QueryError(
            f"{ref!r}.{method}() got {shorten(value)}.", fix="pass the text to look for."
        )
    return value


def _split(path: str, ref: FieldRef[Any, Any]) -> tuple[str, ...]:
    if not isinstance(path, str):
        raise QueryError(f"{ref!r} got the path {path!r}.", fix='pass text, e.g. path("a.b").')
    return tuple(_segment(part, ref) for part in path.split("."))


def _segment(key: object, ref: FieldRef[Any, Any]) -> str:
    if not isinstance(key, str) or not key or not _PATH_FORBIDDEN.isdisjoint(key):
        raise QueryError(
            f"{key!r} is not a valid path segment after {ref!r}.",
            why="a segment is a key of a nested value: text, not empty, "
            "without quotes, backslashes, control characters and lone surrogates.",
            fix='separate keys by single dots, e.g. path("address.city").',
        )
    return key
