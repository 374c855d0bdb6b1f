"""Traversals: paths along relations, one read per hop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, overload

from ontologia.errors import ModelDefinitionError, QueryError
from ontologia.model.entity import Entity, Relation
from ontologia.model.meta import spec_of
from ontologia.model.spec import TypeSpec
from ontologia.query.binding import (
    bind_filter,
    bind_operand,
    check_number,
)
from ontologia.query.expressions import FieldRef, Filter
from ontologia.query.plan import (
    Among,
    Operand,
    Predicate,
    Selection,
    Window,
)
from ontologia.state.reading import Reader, View
from ontologia.storage.base import Explanation

SourceT = TypeVar("SourceT", bound=Entity)
TargetT = TypeVar("TargetT", bound=Entity)
FurtherT = TypeVar("FurtherT", bound=Entity)


@dataclass(frozen=True)
class Path(Generic[SourceT, TargetT]):
    """One way from an entity along relations."""

    source: SourceT
    relations: list[Relation[Any, Any]]
    target: TargetT | None = field(default=None, compare=False)
    """The entity at the end, None if the last relation points at nothing."""


@dataclass(frozen=True)
class Hop:
    """One relation to follow, and in which direction."""

    spec: TypeSpec
    near: str
    far: str
    filters: tuple[Predicate, ...]
    near_key: Operand

    @classmethod
    def from_node(
        cls,
        node: TypeSpec,
        relation: type[Any],
        filters: tuple[Filter[Any], ...],
        reverse: bool | None,
    ) -> Hop:
        """A hop from entities of a type; the direction follows from it unless given."""
        if not isinstance(relation, type) or not issubclass(relation, Relation):
            raise ModelDefinitionError(
                f"via({relation!r}) needs a Relation class.", fix="pass the relation to follow."
            )
        spec = spec_of(relation)
        ends = {"left": spec.endpoint("left"), "right": spec.endpoint("right")}
        near = "right" if reverse else "left"
        if reverse is None and ends["left"].name != node.name:
            near = "right"
        if ends[near].name != node.name:
            raise QueryError(
                f"{spec.name} has no {near} end at {node.name}.",
                why=f"it leads from {ends['left'].name} to {ends['right'].name}.",
                fix="choose another relation, or the other direction with reverse=.",
            )
        bound = tuple(bind_filter(spec, f) for f in filters)
        key = bind_operand(spec, FieldRef(spec.cls, f"{near}_key"))
        return cls(spec, near, "left" if near == "right" else "right", bound, key)

    @property
    def target(self) -> TypeSpec:
        """The type this hop leads to."""
        return self.spec.endpoint(self.far)


class _Walk:
    """A path in the making."""

    __slots__ = ("at", "node", "node_key", "relations", "source")

    def __init__(
        self, source: Any, relations: tuple[Any, ...], node: Any, node_key: Any, at: int
    ) -> None:
        self.source, self.relations, self.node = source, relations, node
        self.node_key, self.at = node_key, at


class Sources(Protocol):
    """The query that a traversal starts from."""

    def selection(self, view: View) -> Selection: ...
    def as_of(self, at: int | datetime) -> Self: ...
    def with_history(self) -> Self: ...
    def history_since(self, commit_id: int) -> Self: ...


class _Hops:
    """What both kinds of traversal share."""

    def __init__(
        self,
        reader: Reader,
        sources: Sources,
        hops: tuple[Hop, ...],
        cut: tuple[int, int | None] = (0, None),
    ) -> None:
        self._reader, self._sources, self._hops, self._cut = reader, sources, hops, cut

    def _from(self, sources: Sources) -> Self:
        return type(self)(self._reader, sources, self._hops, self._cut)

    def as_of(self, at: int | datetime) -> Self:
        """See entities and relations right after a commit, or at a moment."""
        return self._from(self._sources.as_of(at))

    def with_history(self) -> Self:
        """Start from every version of the entities, each with the relations of its moment."""
        return self._from(self._sources.with_history())

    def history_since(self, commit_id: int) -> Self:
        """Start from the versions written after a commit."""
        return self._from(self._sources.history_since(commit_id))

    def limit(self, n: int) -> Self:
        """At most ``n`` results."""
        cut = (self._cut[0], check_number("limit", n))
        return type(self)(self._reader, self._sources, self._hops, cut)

    def offset(self, n: int) -> Self:
        """Skip the first ``n`` results."""
        cut = (check_number("offset", n), self._cut[1])
        return type(self)(self._reader, self._sources, self._hops, cut)

    def _cut_out(self, found: list[Any]) -> list[Any]:
        start, size = self._cut
        return found[start : None if size is None else start + size]

    def _walk(self, view: View, *, endpoints: bool) -> list[_Walk]:
        plan = self._sources.selection(view)
        name = plan.spec.key_fields[0].name
        walks = [
            _Walk(o, (), o, o.__dict__[name], o.__dict__["_commit_id"])
            for chunk in view.objects(plan)
            for o in chunk
        ]
        for hop in self._hops:
            walks = _follow(view, plan.window, hop, walks, endpoints)
        return walks

    def explain(self) -> Explanation:
        """The statements of all hops, and the backend's plans for them."""
        with self._reader.view() as view:
            plan = self._sources.selection(view)
            steps = [view.explain(plan)]
            for hop in self._hops:
                some = Among(hop.near_key, ("?",), False)
                steps.append(view.explain(Selection(hop.spec, plan.window, (some, *hop.filters))))
        return Explanation(
            ";\n".join(s.sql for s in steps),
            tuple(p for s in steps for p in s.parameters),
            tuple(line for s in steps for line in s.plan),
        )


def _follow(
    view: View, window: Window, hop: Hop, walks: list[_Walk], endpoints: bool
) -> list[_Walk]:
    if window.mode != "history":
        return _follow_at(view, window, hop, walks, endpoints)
    # Each version of a source sees the relations of its own moment.
    moments: dict[int, list[_Walk]] = {}
    for walk in walks:
        moments.setdefault(walk.at, []).append(walk)
    result = []
    for at, group in sorted(moments.items()):
        result += _follow_at(view, Window("as_of", at), hop, group, endpoints)
    order = {id(w.source): i for i, w in enumerate(walks)}
    return sorted(result, key=lambda w: order[id(w.source)])


def _follow_at(
    view: View, window: Window, hop: Hop, walks: list[_Walk], endpoints: bool
) -> list[_Walk]:
    nodes = {w.node_key: w.node for w in walks}
    encode = hop.near_key.type.to_stored
    keys = tuple(encode(k) for k in nodes)
    if not keys:
        return []
    plan = Selection(hop.spec, window, (Among(hop.near_key, keys, False), *hop.filters))
    near, near_slot, far = f"{hop.near}_key", f"_{hop.near}", f"{hop.far}_key"
    found: dict[Any, list[Any]] = {}
    for chunk in view.objects(plan, endpoints=False):
        if endpoints:
            view.attach(hop.spec, window, chunk, (hop.far,))
        for relation in chunk:
            key = relation.__dict__[near]
            relation.__dict__[near_slot] = nodes[key]
            found.setdefault(key, []).append(relation)
    far_slot, none = f"_{hop.far}", ()
    return [
        _Walk(w.source, (*w.relations, r), d.get(far_slot), d[far], w.at)
        for w in walks
        for r in found.get(w.node_key, none)
        for d in (r.__dict__,)
    ]


class Traversal(_Hops, Generic[SourceT, TargetT]):
    """Paths from entities along one or more relations."""

    @overload
    def via(
        self,
        relation: type[Relation[TargetT, FurtherT]],
        *filters: Filter[Any],
        reverse: Literal[False] | None = None,
    ) -> Traversal[SourceT, FurtherT]: ...
    @overload
    def via(
        self,
        relation: type[Relation[FurtherT, TargetT]],
        *filters: Filter[Any],
        reverse: Literal[True] | None = None,
    ) -> Traversal[SourceT, FurtherT]: ...
    def via(
        self, relation: type[Any], *filters: Filter[Any], reverse: bool | None = None
    ) -> Traversal[SourceT, Any]:
        """Follow a further relation."""
        hop = Hop.from_node(self._hops[-1].target, relation, filters, reverse)
        return Traversal(self._reader, self._sources, (*self._hops, hop), self._cut)

    def without_relations(self) -> Reached[TargetT]:
        """Only the entities at the end, each once."""
        return Reached(self._reader, self._sources, self._hops, self._cut)

    def collect(self) -> list[Path[SourceT, TargetT]]:
        """All paths, in the order of their sources."""
        with self._reader.view() as view:
            walks = self._cut_out(self._walk(view, endpoints=True))
            return [Path(w.source, list(w.relations), w.node) for w in walks]

    def __iter__(self) -> Iterator[Path[SourceT, TargetT]]:
        return iter(self.collect())

    def first(self) -> Path[SourceT, TargetT] | None:
        """The first path, or None."""
        found = self.collect()
        return found[0] if found else None

    def count(self) -> int:
        """The number of paths."""
        with self._reader.view() as view:
            return len(self._cut_out(self._walk(view, endpoints=False)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """All paths as dicts of Python values."""
        return [
            {
                "source": path.source.model_dump(),
                "relations": [r.model_dump() for r in path.relations],
                "target": None if path.target is None else path.target.model_dump(),
            }
            for path in self.collect()
        ]


class Reached(_Hops, Generic[TargetT]):
    """The entities at the end of paths, each once, in the order in which they are reached."""

    def collect(self) -> list[TargetT]:
        """All entities reached."""
        with self._reader.view() as view:
            window = self._sources.selection(view).window
            ends: dict[Any, None] = {}
            for walk in self._walk(view, endpoints=False):
                ends[(walk.node_key, walk.at if window.mode == "history" else 0)] = None
            return self._cut_out(self._load(view, window, list(ends)))

    def _load(self, view: View, window: Window, ends: list[tuple[Any, int]]) -> list[Any]:
        spec = self._hops[-1].target
        encode = spec.key_fields[0].type.to_stored
        find = view.ends(spec, window, {key: (encode(key),) for key, _ in ends})
        found = {id(o): o for key, at in ends if (o := find(key, at)) is not None}
        return list(found.values())

    def __iter__(self) -> Iterator[TargetT]:
        return iter(self.collect())

    def first(self) -> TargetT | None:
        """The first entity reached, or None."""
        found = self.collect()
        return found[0] if found else None

    def count(self) -> int:
        """The number of entities reached."""
        return len(self.collect())

    def to_dicts(self) -> list[dict[str, Any]]:
        """All entities reached as dicts of Python values."""
        return [entity.model_dump() for entity in self.collect()]
