"""Verification: current state rebuilt from history, and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ontologia.errors import OntologiaError
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query.plan import Window
from ontologia.state.reading import Reader, View
from ontologia.state.schema import Types
from ontologia.state.upgrades import UpgradePath
from ontologia.storage.base import StoredType, StoredVersion


@dataclass(frozen=True)
class Problem:
    """One identity whose current state and history do not agree."""

    type: str
    key: Any
    what: str

    def __str__(self) -> str:
        return f"{self.type} {self.key!r}: {self.what}"


@dataclass(frozen=True)
class VerifyReport:
    """The result of ``verify``."""

    checked: dict[str, int]
    """Identities checked, per type."""

    problems: list[Problem]
    unknown: list[str]
    """Stored types that the session has no class for, and that were not checked."""

    @property
    def ok(self) -> bool:
        """Whether everything was checked, and agrees."""
        return not self.problems and not self.unknown


def verify(reader: Reader, types: Types) -> VerifyReport:
    """Rebuild the current state of every known type from its history, and report differences."""
    report = VerifyReport({}, [], [])
    with reader.view() as view:
        head = view.snapshot.head()
        for type_id, stored in sorted(view.snapshot.schema().types.items()):
            spec = types.find(type_id)
            if spec is None:
                report.unknown.append(stored.name)
                continue
            view.stored(spec)
            _verify_type(view, spec, stored, head, report)
    return report


def _verify_type(
    view: View, spec: TypeSpec, stored: StoredType, head: int, report: VerifyReport
) -> None:
    k = spec.key_size
    current = {row[:k]: row for row in view.snapshot.current(spec)}
    path = view.path(spec, stored)
    known = {v.version for v in stored.versions}
    last: dict[Row, StoredVersion] = {}
    for version in view.snapshot.versions(stored, Window("history", 0)):
        before = last.get(version.key)
        if before is not None and before.until_commit != version.commit_id:
            _add(report, spec, version.key, "its versions do not follow each other")
        if version.schema_version not in known:
            _add(report, spec, version.key, f"it has no schema version {version.schema_version}")
        if version.commit_id > head:
            _add(report, spec, version.key, f"commit {version.commit_id} does not exist")
        last[version.key] = version
    for key, version in last.items():
        found = current.pop(key, None)
        if version.until_commit is not None:
            _add(report, spec, key, "its last version has ended")
        if found is None:
            _add(report, spec, key, "it is in the history but not in the current state")
        else:
            _compare(report, spec, path, version, found)
    for key in current:
        _add(report, spec, key, "it has no history")
    report.checked[spec.name] = len(last)


def _compare(
    report: VerifyReport, spec: TypeSpec, path: UpgradePath, version: StoredVersion, found: Row
) -> None:
    try:
        expected = (*path.row(version), version.commit_id)
    except (OntologiaError, ValueError, KeyError, TypeError) as error:
        _add(report, spec, version.key, f"its last version cannot be read: {error!r}")
        return
    if found != expected:
        _add(report, spec, version.key, "its current state differs from its last version")


def _add(report: VerifyReport, spec: TypeSpec, key: Row, what: str) -> None:
    keys = spec.key_values(key)
    report.problems.append(Problem(spec.name, keys[0] if len(keys) == 1 else keys, what))
