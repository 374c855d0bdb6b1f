"""Reading: plans executed on a snapshot, by the backend's engine or by the evaluator."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ontologia.errors import SessionClosedError
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query import evaluator
from ontologia.query.evaluator import Version
from ontologia.query.plan import Grouping, Selection, Window, sides_of
from ontologia.state.schema import Types
from ontologia.state.upgrades import UpgradePath, Upgraders
from ontologia.storage.base import (
    EngineDeclinedError,
    Explanation,
    QueryEngine,
    Snapshot,
    StoredType,
    Transactions,
)

_EVERYTHING = Window("history", 0)


class Reader:
    """Executes plans for one namespace of a store."""

    def __init__(
        self, store: Transactions, namespace: str, types: Types, upgraders: Upgraders
    ) -> None:
        self._store, self._namespace, self._types = store, namespace, types
        self.upgraders = upgraders
        self.closed = False
        self.can_stream = store.capabilities.concurrent_reads

    @contextmanager
    def view(self) -> Generator[View]:
        """A consistent view; everything read through it belongs to one moment."""
        if self.closed:
            raise SessionClosedError
        with self._store.read(self._namespace) as snapshot:
            yield View(snapshot, self._types, self.upgraders)


class View:
    """A snapshot that understands plans."""

    def __init__(self, snapshot: Snapshot, types: Types, upgraders: Upgraders) -> None:
        self.snapshot = snapshot
        self._types, self._upgraders = types, upgraders
        self._schema = snapshot.schema()
        self._source = _Source(self)

    def stored(self, spec: TypeSpec) -> StoredType | None:
        """The stored type of a spec; raises SchemaOutdatedError."""
        return self._types.check(spec, self._schema)

    def path(self, spec: TypeSpec, stored: StoredType) -> UpgradePath:
        """How versions of a type are brought up to date."""
        return UpgradePath(spec, stored, self._upgraders)

    def _engine(self, plan: Selection | Grouping) -> QueryEngine | None:
        """The backend's engine, if every row the plan may touch has the declared schema."""
        engine = self.snapshot.engine()
        if engine is None:
            return None
        selection = plan.selection if isinstance(plan, Grouping) else plan
        involved = [selection.spec]
        involved += [selection.spec.endpoint(side) for side in sides_of(plan)]
        for spec in involved:
            stored = self.stored(spec)
            if stored is None:
                return None
            if selection.window.mode != "latest" and len(stored.versions) > 1:
                return None
        return engine

    def objects(self, plan: Selection, *, endpoints: bool = True) -> Iterator[list[Any]]:
        """The objects of a selection, in chunks; relations come with their endpoints."""
        if self.stored(plan.spec) is None:
            return
        chunks = self._chunks(plan)
        if plan.spec.kind != "relation" or not endpoints:
            yield from chunks
            return
        for chunk in chunks:
            self.attach(plan.spec, plan.window, chunk)
            yield chunk

    def _chunks(self, plan: Selection) -> Iterator[list[Any]]:
        engine = self._engine(plan)
        if engine is not None:
            with suppress(EngineDeclinedError):
                return engine.objects(plan)
        return self._evaluated(plan)

    def _evaluated(self, plan: Selection) -> Iterator[list[Any]]:
        versions = evaluator.select(self._source, plan)
        yield plan.spec.codec.load_rows([(*v.row, v.commit_id) for v in versions])

    def groups(self, plan: Grouping) -> list[tuple[Any, ...]]:
        """Keys and measures of a grouping."""
        engine = self._engine(plan)
        if engine is not None:
            with suppress(EngineDeclinedError):
                return engine.groups(plan)
        return evaluator.group(self._source, plan)

    def explain(self, plan: Selection | Grouping) -> Explanation:
        """How a plan runs."""
        engine = self._engine(plan)
        if engine is not None:
            with suppress(EngineDeclinedError):
                return engine.explain(plan)
        return Explanation("-- evaluated in process, without SQL", (), evaluator.describe(plan))

    def get(self, spec: TypeSpec, window: Window, key: Row) -> Any:
        """The object with an identity, or None."""
        stored = self.stored(spec)
        if stored is None:
            return None
        engine = self.snapshot.engine()
        if engine is None or window.mode == "history" or len(stored.versions) > 1:
            rows = self._source.stored_rows(spec, window, [key])
            found = spec.codec.load_rows(rows)[-1:]
        else:
            one = engine.one(spec, window, key)
            found = [] if one is None else [one]
        if spec.kind == "relation":
            self.attach(spec, window, found)
        return found[0] if found else None

    def attach(
        self,
        spec: TypeSpec,
        window: Window,
        relations: list[Any],
        sides: tuple[str, ...] = ("left", "right"),
    ) -> None:
        """Fill in the endpoints of relations, one read per side."""
        for side in sides:
            end = spec.endpoint(side)
            field = end.key_fields[0].type
            name, slot = f"{side}_key", f"_{side}"
            keys = {r.__dict__[name] for r in relations}
            found = self.ends(end, window, {k: (field.to_stored(k),) for k in keys})
            for relation in relations:
                d = relation.__dict__
                d[slot] = found(d[name], d["_commit_id"])

    def ends(self, spec: TypeSpec, window: Window, keys: dict[Any, Row]) -> Any:
        """A function from an endpoint's key, and a commit in history, to the entity or None."""
        if self.stored(spec) is None:
            return lambda key, commit_id: None
        history = window.mode == "history"
        read = _EVERYTHING if history else window
        rows = self._source.stored_rows(spec, read, keys.values())
        objects = spec.codec.load_rows(rows)
        name = spec.key_fields[0].name
        if not history:
            by_key = {o.__dict__[name]: o for o in objects}
            return lambda key, commit_id: by_key.get(key)
        timeline: dict[Any, list[Any]] = {}
        for obj in objects:
            timeline.setdefault(obj.__dict__[name], []).append(obj)

        def at(key: Any, commit_id: int) -> Any:
            versions = timeline.get(key, [])
            i = bisect_right(versions, commit_id, key=lambda o: o.__dict__["_commit_id"])
            return versions[i - 1] if i else None

        return at


class _Source:
    """Rows of a snapshot in the declared schema, for the evaluator and for lookups."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._timelines: dict[tuple[TypeSpec, Window], dict[Row, list[Version]]] = {}

    def stored_rows(
        self, spec: TypeSpec, window: Window, keys: Iterable[Row] | None
    ) -> Iterable[Row]:
        """Rows, each followed by its commit; versions of one key come oldest first."""
        view = self._view
        stored = view.stored(spec)
        if stored is None:
            return []
        if window.mode == "latest":
            return view.snapshot.current(spec, keys)
        path = view.path(spec, stored)
        found = view.snapshot.versions(stored, window, keys)
        return [(*path.row(v), v.commit_id) for v in found]

    def rows(
        self, spec: TypeSpec, window: Window, keys: Iterable[Row] | None = None
    ) -> Iterable[Version]:
        return [Version(r[:-1], r[-1]) for r in self.stored_rows(spec, window, keys)]

    def row_at(self, spec: TypeSpec, window: Window, key: Row, commit_id: int) -> Version | None:
        history = window.mode == "history"
        # In history the endpoint is the one of that moment, however long ago it was written.
        read = _EVERYTHING if history else window
        timeline = self._timelines.get((spec, read))
        if timeline is None:
            timeline = self._timelines[spec, read] = {}
            for version in self.rows(spec, read):
                timeline.setdefault(version.row[:1], []).append(version)
        versions = timeline.get(key, [])
        if not history:
            return versions[0] if versions else None
        i = bisect_right(versions, commit_id, key=lambda v: v.commit_id)
        return versions[i - 1] if i else None
