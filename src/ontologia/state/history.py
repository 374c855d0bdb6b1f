"""History: commits, what they changed, and the difference between two of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ontologia.errors import CommitNotFoundError, QueryError
from ontologia.model.canonical import dumps, loads
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query.binding import check_number
from ontologia.query.plan import Window
from ontologia.state.reading import Reader, View
from ontologia.state.schema import Types
from ontologia.storage.base import CommitRecord, Snapshot, StoredType, TypeId


@dataclass(frozen=True)
class Commit:
    """One commit."""

    commit_id: int
    namespace: str
    created_at: datetime
    session_id: str
    metadata: dict[str, str]


@dataclass(frozen=True)
class Change:
    """How one identity differs between two commits."""

    kind: Literal["entity", "relation"]
    type: str
    key: Any
    """The key of an entity, or the keys of a relation as a tuple."""

    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Old and new value of each field that changed; of every field when it was added."""


@dataclass(frozen=True)
class Diff:
    """What happened between two commits."""

    added: list[Change]
    changed: list[Change]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed)


class History:
    """Answers questions about commits of one namespace."""

    def __init__(self, reader: Reader, types: Types, namespace: str) -> None:
        self._reader, self._types, self._namespace = reader, types, namespace

    def commits(self, limit: int, since: int | None) -> list[Commit]:
        """Newest first; with ``since``, those after it, oldest first."""
        check_number("limit", limit)
        if since is not None:
            check_number("since_commit_id", since)
        with self._reader.view() as view:
            return [_commit(r) for r in view.snapshot.commits(limit, since)]

    def commit(self, commit_id: int) -> Commit:
        """One commit; raises CommitNotFoundError."""
        with self._reader.view() as view:
            return _commit(self._record(view.snapshot, commit_id))

    def _record(self, snapshot: Snapshot, commit_id: int) -> CommitRecord:
        check_number("commit_id", commit_id)
        found = snapshot.commit(commit_id)
        if found is None:
            raise CommitNotFoundError(commit_id, self._namespace)
        return found

    def changes(self, commit_id: int) -> list[dict[str, Any]]:
        """The identities that a commit touched."""
        found = []
        with self._reader.view() as view:
            record = self._record(view.snapshot, commit_id)
            schema = view.snapshot.schema()
            for type_id in record.types:
                stored = schema.types.get(type_id)
                if stored is None:  # dropped since
                    continue
                for change in view.snapshot.changes(stored, commit_id - 1, commit_id):
                    found.append(self._describe(stored, change.key, change.added))
        return found

    def _describe(self, stored: StoredType, key: Row, added: bool) -> dict[str, Any]:
        keys = self._key(stored, key)
        entity = stored.kind == "entity"
        padded = (*keys, None)
        return {
            "entity_id": str(key[0]) if entity else None,
            "relation_id": None if entity else dumps(key),
            "change_type": "added" if added else "changed",
            "kind": stored.kind,
            "type": stored.name,
            "key": keys[0] if entity else None,
            "left_key": None if entity else keys[0],
            "right_key": None if entity else keys[1],
            "instance_key": None if entity else padded[2],
        }

    def _key(self, stored: StoredType, key: Row) -> tuple[Any, ...]:
        spec = self._types.find((stored.kind, stored.name))
        if spec is None or spec.key_size != len(key):
            return key
        try:
            return spec.key_values(key)
        except (ValueError, TypeError, KeyError, AttributeError):  # keys of another type than now
            return key

    def diff(self, a: int, b: int) -> Diff:
        """What was added and changed after commit ``a``, up to and including ``b``."""
        check_number("a", a)
        check_number("b", b)
        if a > b:
            raise QueryError(f"diff({a}, {b}) goes backwards.", fix=f"use diff({b}, {a}).")
        result = Diff([], [])
        with self._reader.view() as view:
            view.snapshot.settle(b)
            for commit_id in (a, b):
                if commit_id:
                    self._record(view.snapshot, commit_id)
            types = view.snapshot.schema().types
            for type_id in sorted(types):
                self._diff_type(view, types[type_id], type_id, (a, b), result)
        return result

    def _diff_type(
        self, view: View, stored: StoredType, type_id: TypeId, span: tuple[int, int], result: Diff
    ) -> None:
        changes = view.snapshot.changes(stored, *span)
        if not changes:
            return
        keys = [c.key for c in changes]
        spec = self._types.find(type_id)
        before, after = (self._states(view, spec, stored, at, keys) for at in span)
        for change in changes:
            old, new = before.get(change.key, {}), after[change.key]
            fields = {
                name: (old.get(name), new.get(name))
                for name in {**old, **new}
                if name not in old or name not in new or old[name] != new[name]
            }
            keys_ = self._key(stored, change.key)
            identity = keys_[0] if stored.kind == "entity" else keys_
            item = Change(type_id[0], stored.name, identity, fields)  # type: ignore[arg-type]
            if change.added:
                result.added.append(item)
            elif fields:  # changed and changed back is no difference
                result.changed.append(item)

    def _states(
        self, view: View, spec: TypeSpec | None, stored: StoredType, at: int, keys: list[Row]
    ) -> dict[Row, dict[str, Any]]:
        """The fields of these identities at a commit: values where the type is known."""
        versions = view.snapshot.versions(stored, Window("as_of", at), keys)
        if spec is None:
            return {v.key: loads(v.payload) for v in versions}
        view.stored(spec)
        path = view.path(spec, stored)
        found = [(*path.row(v), v.commit_id) for v in versions]
        names = [f.name for f in spec.fields]
        return {
            row[: spec.key_size]: {n: o.__dict__[n] for n in names}
            for row, o in zip(found, spec.codec.load_rows(found), strict=True)
        }


def _commit(record: CommitRecord) -> Commit:
    return Commit(
        record.commit_id,
        record.namespace,
        datetime.fromisoformat(record.created_at),
        record.session_id,
        record.metadata,
    )
