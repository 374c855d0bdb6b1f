"""Upgrades: from the version a row was written in to the one the code declares.

History is never rewritten. A row of an older version is upgraded when it is read, one step per
version: by the upgrader registered for that step, or, where fields with defaults were merely
added, by filling those in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from ontologia.errors import MigrationError, MissingUpgraderError, SchemaError, ValidationError
from ontologia.model.canonical import loads
from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.state.schema import compare
from ontologia.storage.base import SchemaVersion, StoredType, StoredVersion

Data = dict[str, Any]
Function = Callable[[Data], Data]
FunctionT = TypeVar("FunctionT", bound=Function)

_MARK = "__ontologia_upgrader__"


@dataclass(frozen=True)
class Upgrader:
    """A function that turns the data of one version into that of the next."""

    type_name: str
    from_version: int
    function: Function


def upgrader(type_name: str, *, from_version: int) -> Callable[[FunctionT], FunctionT]:
    """Mark a function as the upgrade of a type from one version to the next.

    The function gets the JSON form of the stored fields and returns that of the new ones. It must
    be pure: the same data always gives the same result.
    """
    if not isinstance(type_name, str):
        raise SchemaError(f"{type_name!r} is not the name of a type.", fix="pass its name as text.")
    if type(from_version) is not int or from_version < 1:
        raise SchemaError(f"from_version is {from_version!r}.", why="versions are numbered from 1.")

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _MARK, Upgrader(type_name, from_version, function))
        return function

    return mark


def load_upgraders(module: str | ModuleType) -> list[Upgrader]:
    """All upgraders defined in a module, given itself or by name."""
    if not isinstance(module, str | ModuleType):
        raise SchemaError(f"{module!r} is not a module.", fix="pass a module or its full name.")
    if isinstance(module, str):
        try:
            module = importlib.import_module(module)
        except (ImportError, ValueError, TypeError) as error:
            raise SchemaError(
                f"the module {module!r} with upgraders cannot be imported: {error}.",
                fix="check its name and the Python path.",
            ) from error
    found = [getattr(value, _MARK, None) for value in vars(module).values()]
    return [item for item in found if isinstance(item, Upgrader)]


class Upgraders:
    """The upgraders a session knows, by type and version."""

    def __init__(self, items: Mapping[tuple[str, int], Function] | None = None) -> None:
        self._items: dict[tuple[str, int], Function] = dict(items or {})

    def extended(self, more: object) -> Upgraders:
        """These and more; raises SchemaError on two for the same step."""
        result = Upgraders(self._items)
        for item in _collect(more):
            place = (item.type_name, item.from_version)
            present = result._items.get(place)
            if present is not None and present is not item.function:
                raise SchemaError(
                    f"there are two upgraders of {item.type_name!r} from version "
                    f"{item.from_version}.",
                    fix="keep one of them.",
                )
            result._items[place] = item.function
        return result

    def find(self, type_name: str, from_version: int) -> Function | None:
        """The upgrader of one step."""
        return self._items.get((type_name, from_version))


def _collect(more: object) -> list[Upgrader]:
    if more is None:
        return []
    if isinstance(more, str | ModuleType):
        return load_upgraders(more)
    items = more if isinstance(more, Iterable) else [more]
    found = []
    for item in items:
        entry = item if isinstance(item, Upgrader) else getattr(item, _MARK, None)
        if not isinstance(entry, Upgrader):
            raise SchemaError(
                f"{item!r} is not an upgrader.",
                fix='decorate the function: @upgrader("Type", from_version=1).',
            )
        found.append(entry)
    return found


class UpgradePath:
    """The steps from every stored version of a type to the declared one."""

    def __init__(self, spec: TypeSpec, stored: StoredType, upgraders: Upgraders) -> None:
        self._spec, self._stored, self._upgraders = spec, stored, upgraders
        self._target = stored.current.version
        self._versions = {v.version: v for v in stored.versions}
        if stored.current.fingerprint != spec.fingerprint:
            # A migration in preparation: the declared type is one step ahead of the store.
            self._target += 1
            self._versions[self._target] = SchemaVersion(
                self._target, spec.fingerprint, spec.document, 0
            )
        self._steps: dict[int, Function] = {}

    def check(self) -> None:
        """Raise unless every step is possible."""
        before, after = self._stored.current.description, self._spec.description
        if _key_kinds(before) != _key_kinds(after):
            raise MigrationError(
                self._spec.name,
                None,
                after["key"],
                "the type of a key cannot change",
                "declare a new type with the other key, and copy what is to be kept.",
            )
        for version in range(1, self._target):
            self._step(version)

    def _step(self, version: int) -> Function:
        found = self._steps.get(version)
        if found is None:
            found = self._upgraders.find(self._spec.name, version)
            if found is None:
                found = _automatic(
                    self._spec.name, self._versions[version], self._versions[version + 1]
                )
            self._steps[version] = found
        return found

    def row(self, version: StoredVersion) -> Row:
        """The row of a stored version in the declared schema; raises MigrationError."""
        data = loads(version.payload)
        if version.schema_version == self._target:
            return self._spec.codec.row_from_json(data)
        for step in range(version.schema_version, self._target):
            data = self._apply(step, version, data)
        return self._finish(version, data)

    def _apply(self, step: int, version: StoredVersion, data: Data) -> Data:
        function = self._step(step)
        try:
            result = function(dict(data))
        except Exception as error:
            raise self._failed(
                version, data, f"the upgrader from version {step} raised {error!r}"
            ) from error
        if not isinstance(result, dict):
            raise self._failed(version, data, f"the upgrader from version {step} returned no dict")
        return result

    def _finish(self, version: StoredVersion, data: Data) -> Row:
        spec = self._spec
        values: Data = {}
        missing = spec.by_name.keys() - data.keys()
        # From the registry, not from the code: what was read once must read the same for ever.
        defaults = self._versions[self._target].description.get("defaults", {})
        if not missing <= defaults.keys():
            left_out = ", ".join(sorted(missing - defaults.keys()))
            raise self._failed(version, data, f"the upgraded data has no {left_out}")
        data = {**{name: defaults[name] for name in missing}, **data}
        for name, item in data.items():
            field = spec.by_name.get(name)
            values[name] = item if field is None or item is None else _lenient(field.type, item)
        try:
            obj = object.__new__(spec.cls)
            object.__setattr__(obj, "__dict__", spec.validate(values))
            row = spec.row(obj)
        except ValidationError as error:
            raise self._failed(version, data, error.what) from error
        if row[: spec.key_size] != version.key:
            raise self._failed(version, data, "an upgrader must not change the key")
        return row

    def _failed(self, version: StoredVersion, data: Data, reason: str) -> MigrationError:
        key = version.key[0] if len(version.key) == 1 else version.key
        return MigrationError(self._spec.name, key, data, reason)


def _key_kinds(description: Mapping[str, Any]) -> list[str]:
    """How each key is stored: as an integer or as text."""
    kinds: list[str] = []
    for name in description["key"]:
        type_ = description["fields"][name]["type"]
        members = type_["one_of"] if isinstance(type_, dict) else []
        whole = type_ == "int" or any(isinstance(m, int) for m in members)
        kinds.append("integer" if whole else "text")
    return kinds


def _lenient(type_: Any, item: Any) -> Any:
    """Upgraders may return JSON forms or Python values."""
    try:
        return type_.from_json(item)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return item


def _automatic(name: str, before: SchemaVersion, after: SchemaVersion) -> Function:
    """A step that needs no upgrader; raises MissingUpgraderError where one is needed."""
    defaults = after.description.get("defaults", {})
    reasons: list[str] = []
    for diff in compare(before.description, after.description):
        if diff.change == "added":
            if diff.field not in defaults:
                reasons.append(f"the new field {diff.field!r} has no fixed default")
        elif not _widened(diff.before, diff.after):
            reasons.append(str(diff))
    if reasons:
        raise MissingUpgraderError(name, before.version, "; ".join(reasons))
    added = after.description["fields"].keys() - before.description["fields"].keys()
    fill = {field: defaults[field] for field in added}
    return lambda data: {**fill, **data}


def _widened(before: Any, after: Any) -> bool:
    """Whether a field holds every value it held before: more members, or None as well."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    if before["nullable"] and not after["nullable"]:
        return False
    old, new = before["type"], after["type"]
    if isinstance(old, dict) and isinstance(new, dict) and {*old, *new} == {"one_of"}:
        return all(member in new["one_of"] for member in old["one_of"])
    return bool(old == new)
