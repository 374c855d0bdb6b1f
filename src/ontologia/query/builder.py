"""Builders: what ``session.query()`` gives. Every call returns a new builder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, overload

from ontologia.errors import ModelDefinitionError, QueryError
from ontologia.model.codec import Row
from ontologia.model.entity import Entity, Relation
from ontologia.model.spec import TypeSpec
from ontologia.query.binding import (
    bind_filter,
    bind_having,
    bind_key,
    bind_measure,
    bind_operand,
    bind_order,
    check_moment,
    check_number,
)
from ontologia.query.export import to_arrow, to_dicts
from ontologia.query.expressions import (
    Aggregate,
    FieldRef,
    Filter,
    Order,
    count,
    count_where,
)
from ontologia.query.plan import (
    LATEST,
    Compare,
    Grouping,
    Having,
    Measure,
    Predicate,
    Selection,
    SortKey,
    Window,
    only_key,
)
from ontologia.query.traversal import Hop, Traversal
from ontologia.state.reading import Reader, View
from ontologia.state.schema import Types
from ontologia.storage.base import Explanation

if TYPE_CHECKING:
    import pandas
    import pyarrow

T = TypeVar("T")
EntityT = TypeVar("EntityT", bound=Entity)
TargetT = TypeVar("TargetT", bound=Entity)
RelationT = TypeVar("RelationT", bound=Relation[Any, Any])


class Query:
    """Where every query begins."""

    def __init__(self, reader: Reader, types: Types) -> None:
        self._reader, self._types = reader, types

    def entities(self, cls: type[EntityT]) -> EntityQuery[EntityT]:
        """Query the entities of a type."""
        return EntityQuery(self._reader, self._spec(cls, "entity"))

    def relations(self, cls: type[RelationT]) -> RelationQuery[RelationT]:
        """Query the relations of a type."""
        return RelationQuery(self._reader, self._spec(cls, "relation"))

    def _spec(self, cls: type[Any], kind: str) -> TypeSpec:
        base = Entity if kind == "entity" else Relation
        if not isinstance(cls, type) or not issubclass(cls, base):
            raise ModelDefinitionError(
                f"{cls!r} is not an {kind} class."
                if kind == "entity"
                else f"{cls!r} is not a {kind} class.",
                fix="use entities() for Entity classes and relations() for Relation classes.",
            )
        return self._types.add(cls)


class _State(NamedTuple):
    """What a builder has collected so far."""

    window: Window = LATEST
    moment: str | None = None
    where: tuple[Predicate, ...] = ()
    order: tuple[SortKey, ...] = ()
    limit: int | None = None
    offset: int = 0


class Select(Generic[T]):
    """A query over the objects of one type."""

    def __init__(self, reader: Reader, spec: TypeSpec, state: _State | None = None) -> None:
        self._reader, self._spec = reader, spec
        self._state = _State() if state is None else state

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._reader, self._spec, self._state._replace(**changes))

    def where(self, *filters: Filter[T]) -> Self:
        """Keep what satisfies all filters."""
        bound = tuple(bind_filter(self._spec, f) for f in filters)
        return self._with(where=self._state.where + bound)

    def order_by(self, *keys: FieldRef[T, Any] | Order[T]) -> Self:
        """Sort by fields, ascending or by ``.desc()``; the identity settles ties."""
        return self._with(order=tuple(bind_order(self._spec, k) for k in keys))

    def limit(self, n: int) -> Self:
        """At most ``n`` results."""
        return self._with(limit=check_number("limit", n))

    def offset(self, n: int) -> Self:
        """Skip the first ``n`` results."""
        return self._with(offset=check_number("offset", n))

    def as_of(self, at: int | datetime) -> Self:
        """See the state right after a commit, or at a moment."""
        if isinstance(at, datetime):
            moment = check_moment("as_of", at)
            return self._with(window=Window("as_of"), moment=moment)
        return self._with(window=Window("as_of", check_number("as_of", at)), moment=None)

    def with_history(self) -> Self:
        """See every version, oldest first."""
        return self._with(window=Window("history"), moment=None)

    def history_since(self, commit_id: int) -> Self:
        """See every version written after a commit, oldest first."""
        window = Window("history", check_number("history_since", commit_id))
        return self._with(window=window, moment=None)

    def _window(self, view: View) -> Window:
        state = self._state
        if state.moment is None:
            if state.window.mode == "as_of":
                view.snapshot.settle(state.window.commit_id)
            elif state.window.mode == "history":
                return replace(state.window, until=view.snapshot.settled())
            return state.window
        return Window("as_of", view.snapshot.commit_at(state.moment))

    def selection(self, view: View) -> Selection:
        """What this query asks a view for."""
        state = self._state
        return Selection(
            self._spec, self._window(view), state.where, state.order, state.limit, state.offset
        )

    def collect(self) -> list[T]:
        """All results."""
        with self._reader.view() as view:
            return _flatten(view.objects(self.selection(view)))

    def __iter__(self) -> Iterator[T]:
        """The results one by one, all of them as of the moment the iteration began."""
        if not self._reader.can_stream:
            yield from self.collect()
            return
        with self._reader.view() as view:
            for chunk in view.objects(self.selection(view)):
                yield from chunk

    def first(self) -> T | None:
        """The first result, or None."""
        query = self if self._state.limit == 0 else self._with(limit=1)
        with self._reader.view() as view:
            plan = query.selection(view)
            key = only_key(plan)
            if key is not None:
                one: T | None = view.get(plan.spec, plan.window, key)
                return one
            found = _flatten(view.objects(plan))
        return found[0] if found else None

    def _get(self, keys: tuple[Any, ...]) -> T | None:
        spec = self._spec
        if len(keys) != spec.key_size:
            names = ", ".join(f.name for f in spec.key_fields)
            raise QueryError(
                f"{spec.name} is identified by {spec.key_size} keys, got {len(keys)}.",
                fix=f"call get({names}).",
            )
        key = spec.key_row(keys)
        if self._state.where or self._state.offset or self._state.limit is not None:
            return self._get_filtered(key)
        with self._reader.view() as view:
            found: T | None = view.get(spec, self._window(view), key)
            return found

    def _get_filtered(self, key: Row) -> T | None:
        spec = self._spec
        by_key = tuple(
            Compare(bind_operand(spec, FieldRef(spec.cls, f.name)), "==", value)
            for f, value in zip(spec.key_fields, key, strict=True)
        )
        found = self._with(where=self._state.where + by_key, order=()).collect()
        return found[-1] if found else None

    def count(self) -> int:
        """The number of results."""
        return int(self._measure(count()))

    def sum(self, field: FieldRef[T, Any]) -> Any:
        """The sum of a field; None over nothing."""
        return self._measure(Aggregate("sum", field))

    def avg(self, field: FieldRef[T, Any]) -> Any:
        """The mean of a field; None over nothing."""
        return self._measure(Aggregate("avg", field))

    def min(self, field: FieldRef[T, Any]) -> Any:
        """The least value of a field; None over nothing."""
        return self._measure(Aggregate("min", field))

    def max(self, field: FieldRef[T, Any]) -> Any:
        """The greatest value of a field; None over nothing."""
        return self._measure(Aggregate("max", field))

    def count_where(self, predicate: Filter[T]) -> int:
        """The number of results that also satisfy ``predicate``."""
        return int(self._measure(count_where(predicate)))

    def avg_len(self, field: FieldRef[T, Any]) -> float | None:
        """The mean length of a list field; None over nothing."""
        found: float | None = self._measure(Aggregate("avg_len", field))
        return found

    def _measure(self, aggregate: Aggregate[Any]) -> Any:
        measure = bind_measure(self._spec, aggregate)
        with self._reader.view() as view:
            ((value,),) = view.groups(self._grouping(view, (), (), (measure,)))
        return value

    def _grouping(
        self,
        view: View,
        keys: tuple[Any, ...],
        having: tuple[Any, ...],
        measures: tuple[Measure, ...],
    ) -> Grouping:
        if self._state.limit is not None or self._state.offset:
            raise QueryError(
                "an aggregate runs over all results.",
                why="limit() and offset() would make it depend on the order.",
                fix="leave them out, or collect() first.",
            )
        return Grouping(self._with(order=()).selection(view), keys, having, measures)

    def group_by(self, *keys: FieldRef[T, Any]) -> Grouped[T]:
        """Aggregate per value of one or several fields."""
        if not keys:
            raise QueryError("group_by() needs at least one field.", fix="name the fields.")
        return Grouped(self._reader, self._spec, self._grouping, keys)

    def explain(self) -> Explanation:
        """The statement this query runs, and the backend's plan for it."""
        with self._reader.view() as view:
            return view.explain(self.selection(view))

    def to_dicts(self) -> list[dict[str, Any]]:
        """All results as dicts of Python values; in history with ``_commit_id``."""
        return to_dicts(self._spec, self.collect(), self._state.window.mode == "history")

    def to_arrow(self) -> pyarrow.Table:
        """All results as an Arrow table; needs pyarrow."""
        return to_arrow(self._spec, self.collect(), self._state.window.mode == "history")

    def to_pandas(self) -> pandas.DataFrame:
        """All results as a data frame; needs pandas and pyarrow."""
        from ontologia.query.export import to_pandas

        return to_pandas(self.to_arrow())


class EntityQuery(Select[EntityT]):
    """A query over entities."""

    def get(self, key: Any) -> EntityT | None:
        """The entity with this key, or None."""
        return self._get((key,))

    @overload
    def via(
        self,
        relation: type[Relation[EntityT, TargetT]],
        *filters: Filter[Any],
        reverse: Literal[False] | None = None,
    ) -> Traversal[EntityT, TargetT]: ...
    @overload
    def via(
        self,
        relation: type[Relation[TargetT, EntityT]],
        *filters: Filter[Any],
        reverse: Literal[True] | None = None,
    ) -> Traversal[EntityT, TargetT]: ...
    def via(
        self, relation: type[Any], *filters: Filter[Any], reverse: bool | None = None
    ) -> Traversal[EntityT, Any]:
        """Follow a relation from the entities found, and further with another ``via``."""
        hop = Hop.from_node(self._spec, relation, filters, reverse)
        return Traversal(self._reader, self, (hop,))


class RelationQuery(Select[RelationT]):
    """A query over relations; results come with their endpoints."""

    def get(self, left: Any, right: Any, instance: Any = None) -> RelationT | None:
        """The relation between two keys (and with an instance key, if it has one), or None."""
        return self._get((left, right) if instance is None else (left, right, instance))


class Grouped(Generic[T]):
    """A query whose results are aggregated per group."""

    def __init__(
        self,
        reader: Reader,
        spec: TypeSpec,
        grouping: Callable[..., Grouping],
        keys: tuple[FieldRef[Any, Any], ...],
        having: tuple[Having, ...] = (),
    ) -> None:
        self._reader, self._spec, self._grouping = reader, spec, grouping
        self._keys, self._having = keys, having
        self._bound = tuple(bind_key(spec, k) for k in keys)

    def having(self, *conditions: Filter[T]) -> Grouped[T]:
        """Keep the groups that satisfy all conditions on aggregates."""
        bound = tuple(bind_having(self._spec, c) for c in conditions)
        return Grouped(self._reader, self._spec, self._grouping, self._keys, self._having + bound)

    def agg(self, **aggregates: Aggregate[Any]) -> list[dict[str, Any]]:
        """One dict per group: the keys under their field names, then the aggregates."""
        names, measures = self._names(aggregates)
        with self._reader.view() as view:
            plan = self._grouping(view, self._bound, self._having, measures)
            return [dict(zip(names, row, strict=True)) for row in view.groups(plan)]

    def explain(self, **aggregates: Aggregate[Any]) -> Explanation:
        """The statement that ``agg`` would run, and the backend's plan for it."""
        _, measures = self._names(aggregates)
        with self._reader.view() as view:
            plan = self._grouping(view, self._bound, self._having, measures)
            return view.explain(plan)

    def _names(
        self, aggregates: dict[str, Aggregate[Any]]
    ) -> tuple[list[str], tuple[Measure, ...]]:
        names = [_label(k) for k in self._keys] + list(aggregates)
        if len(set(names)) != len(names):
            raise QueryError(
                f"the result would have two columns of the same name: {names}.",
                fix="rename the aggregate.",
            )
        return names, tuple(bind_measure(self._spec, a) for a in aggregates.values())


def _label(ref: FieldRef[Any, Any]) -> str:
    name = ".".join((ref.name, *ref.segments))
    return name if ref.side is None else f"{ref.side}.{name}"


def _flatten(chunks: Iterator[list[Any]]) -> list[Any]:
    result = next(chunks, [])
    for chunk in chunks:
        result += chunk
    return result
