"""Migrations: previewed, tokened, and applied to all types or to none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ontologia.errors import (
    MigrationError,
    MigrationTokenError,
    MissingUpgraderError,
    SchemaError,
    TypeInUseError,
)
from ontologia.model.canonical import digest
from ontologia.model.spec import TypeSpec
from ontologia.state.schema import FieldDiff, Types, diff_type
from ontologia.state.upgrades import UpgradePath, Upgraders
from ontologia.storage.base import (
    Snapshot,
    Store,
    StoredRow,
    StoredSchema,
    StoredType,
    Transaction,
    TypeId,
)


@dataclass(frozen=True)
class TypeMigration:
    """What a migration does to one type."""

    kind: str
    type_name: str
    from_version: int
    to_version: int
    changes: tuple[FieldDiff, ...]
    missing_upgrader: str | None
    """Why an upgrader is needed and not there; None if the type can be migrated."""

    def __str__(self) -> str:
        text = f"{self.kind} {self.type_name!r}: version {self.from_version} to {self.to_version}"
        text += "".join(f"\n  {change}" for change in self.changes)
        return text + (
            f"\n  not possible: {self.missing_upgrader}" if self.missing_upgrader else ""
        )


@dataclass(frozen=True)
class MigrationPreview:
    """What ``migrate`` would do; the token proves that it was seen."""

    token: str
    types: tuple[TypeMigration, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to migrate."""
        return not self.types

    def __str__(self) -> str:
        if self.is_empty:
            return "nothing to migrate"
        return "\n".join([*map(str, self.types), f"token: {self.token}"])


@dataclass(frozen=True)
class MigrationResult:
    """What ``migrate`` did: the number of current rows upgraded, per type."""

    types: tuple[TypeMigration, ...]
    rows: dict[str, int]


@dataclass(frozen=True)
class DropPreview:
    """What ``drop`` would remove; the token proves that it was seen."""

    token: str
    kind: str
    type_name: str
    rows: dict[str, int]
    """Entities or relations that would be gone, per namespace."""

    applied: bool = False


class Migrator:
    """Previews and applies changes of the schema."""

    def __init__(self, store: Store, namespace: str, types: Types) -> None:
        self._store, self._namespace, self._types = store, namespace, types

    def preview(self, upgraders: Upgraders) -> MigrationPreview:
        """What would be done, without doing it."""
        with self._store.read(self._namespace) as snapshot:
            return self._plan(snapshot.schema(), upgraders)

    def _outdated(self, schema: StoredSchema) -> Iterator[tuple[TypeSpec, StoredType]]:
        for spec in self._types.all():
            stored = schema.types.get((spec.kind, spec.name))
            if stored is not None and diff_type(spec, stored) is not None:
                yield spec, stored

    def _plan(self, schema: StoredSchema, upgraders: Upgraders) -> MigrationPreview:
        steps = []
        for spec, stored in self._outdated(schema):
            diff = diff_type(spec, stored)
            assert diff is not None
            missing = None
            try:
                UpgradePath(spec, stored, upgraders).check()
            except (MissingUpgraderError, MigrationError) as error:
                missing = error.what
            version = stored.current.version
            steps.append(
                TypeMigration(spec.kind, spec.name, version, version + 1, diff.fields, missing)
            )
        return MigrationPreview(self._token(schema), tuple(steps))

    def _token(self, schema: StoredSchema) -> str:
        """Depends on what would change, and on nothing else."""
        changes = [
            [spec.kind, spec.name, stored.current.fingerprint, spec.fingerprint]
            for spec, stored in self._outdated(schema)
        ]
        return digest(["migrate", changes])[:16]

    def apply(
        self, token: str | None, upgraders: Upgraders, force: bool, now: str
    ) -> MigrationResult:
        """Migrate every outdated type in one transaction."""
        with self._store.write(self._namespace, migrate=True) as tx:
            schema = tx.schema()
            preview = self._plan(schema, upgraders)
            if not force and token != preview.token:
                raise MigrationTokenError(preview.token, token)
            rows = {}
            for spec, stored in list(self._outdated(schema)):
                path = UpgradePath(spec, stored, upgraders)
                path.check()
                counter = _Counter()
                tx.replace_type(spec, now, _upgraded(tx, stored, path, counter))
                rows[spec.name] = counter.n
        return MigrationResult(preview.types, rows)

    def drop(self, target: TypeId, token: str | None, dry_run: bool) -> DropPreview:
        """Preview the removal of a type, or carry it out."""
        if dry_run:
            with self._store.read(self._namespace) as snapshot:
                return self._drop_preview(snapshot, target)
        with self._store.write(self._namespace, migrate=True) as tx:
            preview = self._drop_preview(tx, target)
            if token != preview.token:
                raise MigrationTokenError(preview.token, token)
            tx.drop(tx.schema().types[target])
        return replace(preview, applied=True)

    def _drop_preview(self, snapshot: Snapshot, target: TypeId) -> DropPreview:
        schema = snapshot.schema()
        stored = schema.types.get(target)
        if stored is None:
            raise SchemaError(
                f"the datastore has no {target[0]} type {target[1]!r}.",
                fix="check the name; types are created by their first commit.",
            )
        if stored.kind == "entity":
            dependent = [
                t.name
                for t in schema.types.values()
                if t.kind == "relation"
                and target[1] in (t.current.description["left"], t.current.description["right"])
            ]
            if dependent:
                raise TypeInUseError(target[1], sorted(dependent))
        token = digest(["drop", *target, stored.current.fingerprint, snapshot.head()])[:16]
        return DropPreview(token, stored.kind, stored.name, snapshot.census(stored))


class _Counter:
    n = 0


def _upgraded(
    tx: Transaction, stored: StoredType, path: UpgradePath, counter: _Counter
) -> Iterator[tuple[str, StoredRow]]:
    for namespace, version in tx.all_rows(stored):
        counter.n += 1
        yield namespace, (*path.row(version), version.commit_id)


def find_type(types: Types, schema: StoredSchema, target: Any) -> TypeId:
    """The registry's id of a type given by class or by name."""
    if isinstance(target, type):
        spec = types.add(target)
        return spec.kind, spec.name
    found = [t for t in schema.types if t[1] == target]
    if len(found) != 1:
        raise SchemaError(
            f"{target!r} names {len(found) or 'no'} types of the datastore.",
            fix="pass the class, or the name of a stored type.",
        )
    return found[0]
