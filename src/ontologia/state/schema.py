"""Types: what the code declares, compared with what the store holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ontologia.errors import SchemaError, SchemaOutdatedError
from ontologia.model.canonical import dumps
from ontologia.model.meta import spec_of
from ontologia.model.spec import TypeSpec
from ontologia.storage.base import StoredSchema, StoredType, Transaction, TypeId


@dataclass(frozen=True)
class FieldDiff:
    """How one field differs between the store and the code."""

    field: str
    change: Literal["added", "removed", "changed"]
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.change == "added":
            return f"field {self.field!r} added ({dumps(self.after)})"
        if self.change == "removed":
            return f"field {self.field!r} removed (was {dumps(self.before)})"
        return f"{self.field!r} changed from {dumps(self.before)} to {dumps(self.after)}"


@dataclass(frozen=True)
class TypeDiff:
    """How one type differs between the store and the code."""

    kind: str
    type_name: str
    stored_version: int
    fields: tuple[FieldDiff, ...]

    def __str__(self) -> str:
        changes = ", ".join(map(str, self.fields))
        return f"{self.type_name!r} (stored version {self.stored_version}): {changes}"


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldDiff, ...]:
    """The differences between two descriptions of a type."""
    diffs: list[FieldDiff] = []
    old, new = before["fields"], after["fields"]
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            diffs.append(FieldDiff(name, "added", None, new[name]))
        elif name not in new:
            diffs.append(FieldDiff(name, "removed", old[name], None))
        elif old[name] != new[name]:
            diffs.append(FieldDiff(name, "changed", old[name], new[name]))
    for name in ("key", "left", "right"):
        if before.get(name) != after.get(name):
            diffs.append(FieldDiff(name, "changed", before.get(name), after.get(name)))
    return tuple(diffs)


def diff_type(spec: TypeSpec, stored: StoredType) -> TypeDiff | None:
    """How a spec differs from the stored type, None if it does not."""
    if stored.current.fingerprint == spec.fingerprint:
        return None
    fields = compare(stored.current.description, spec.description)
    return TypeDiff(spec.kind, spec.name, stored.current.version, fields)


class Types:
    """The types that a session knows, and whether the store agrees with them."""

    def __init__(self) -> None:
        self._specs: dict[TypeId, TypeSpec] = {}
        self._checked: dict[TypeSpec, tuple[str, StoredType | None]] = {}

    def add(self, cls: type[Any]) -> TypeSpec:
        """Learn about a class, and about the endpoints of a relation."""
        spec = spec_of(cls)
        self._learn(spec)
        return spec

    def _learn(self, spec: TypeSpec) -> None:
        type_id: TypeId = (spec.kind, spec.name)
        if self._specs.get(type_id) is spec:
            return
        _refuse_alike(type_id, self._specs)
        self._specs[type_id] = spec
        for end in (spec.left, spec.right):
            if end is not None:
                self._learn(end)

    def all(self) -> list[TypeSpec]:
        """The known types, entities before relations, by name."""
        return [self._specs[type_id] for type_id in sorted(self._specs)]

    def find(self, type_id: TypeId) -> TypeSpec | None:
        """The spec of a type, if the session knows it."""
        return self._specs.get(type_id)

    def check(self, spec: TypeSpec, schema: StoredSchema) -> StoredType | None:
        """The stored type, None if there is none yet; raises SchemaOutdatedError."""
        cached = self._checked.get(spec)
        if cached is not None and cached[0] == schema.epoch:
            return cached[1]
        stored = schema.types.get((spec.kind, spec.name))
        if stored is not None:
            diff = diff_type(spec, stored)
            if diff is not None:
                raise SchemaOutdatedError([diff])
        self._checked[spec] = (schema.epoch, stored)
        return stored

    def diffs(self, schema: StoredSchema) -> list[TypeDiff]:
        """All known types that differ from the stored ones."""
        found = []
        for spec in self.all():
            stored = schema.types.get((spec.kind, spec.name))
            diff = None if stored is None else diff_type(spec, stored)
            if diff is not None:
                found.append(diff)
        return found

    def prepare(self, tx: Transaction, specs: Iterable[TypeSpec], now: str) -> dict[TypeSpec, int]:
        """Check types for writing, register new ones; the version to write each in."""
        versions = {}
        for spec in specs:
            for needed in (spec.left, spec.right, spec):
                if needed is not None:
                    versions[needed] = self._prepare(tx, needed, now)
        return versions

    def _prepare(self, tx: Transaction, spec: TypeSpec, now: str) -> int:
        schema = tx.schema()
        stored = self.check(spec, schema)
        if stored is None or not _has_indexes(spec, stored):
            tx.lock_types()  # somebody else may have done it meanwhile
            schema = tx.schema()
            stored = self.check(spec, schema)
        if stored is None:
            _refuse_alike((spec.kind, spec.name), schema.types)
            tx.register(spec, now)
            return 1
        if not _has_indexes(spec, stored):
            tx.add_indexes(spec)
        return stored.current.version


def _has_indexes(spec: TypeSpec, stored: StoredType) -> bool:
    return stored.indexes >= {f.name for f in spec.fields if f.index}


def _refuse_alike(type_id: TypeId, known: Iterable[TypeId]) -> None:
    kind, name = type_id
    for other_id in list(known):  # other threads may learn types meanwhile
        if other_id != type_id and other_id[1].casefold() == name.casefold():
            raise SchemaError(
                f"there are two types, {other_id[0]} {other_id[1]!r} and {kind} {name!r}.",
                why="entities and relations share their names, in upper and lower case.",
                fix=f'rename one of them: class X({kind.capitalize()}, name="...").',
            )
