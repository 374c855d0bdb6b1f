"""Every exception that Ontologia raises on purpose.

Each carries a stable ``code``, the values it talks about as attributes, and a text that says what
is wrong, why, and how to fix it. Driver errors stay reachable as ``__cause__``.

    OntologiaError
    ├── ModelDefinitionError        a class declaration that cannot work
    ├── ValidationError             a value that its field does not accept
    ├── QueryError                  a query that makes no sense
    │   ├── FilterTruthError        a filter used as a truth value
    │   ├── UnknownFieldError       a field that the type does not declare
    │   └── UnknownOperatorError    an operation that expressions do not have
    ├── ConfigError                 a configuration option out of range
    ├── CommitError
    │   ├── BatchSizeExceededError  more intents than one commit may hold
    │   └── CommitNotFoundError     no such commit in this namespace
    ├── SchemaError
    │   ├── SchemaOutdatedError     code and datastore disagree about a type
    │   ├── MigrationTokenError     the previewed migration is not the one to apply
    │   ├── MissingUpgraderError    no way from a stored version to the next
    │   ├── MigrationError          an upgrader failed, or produced bad data
    │   └── TypeInUseError          a type that relations still depend on
    ├── BusError
    │   ├── HandlerError            a handler that cannot be registered
    │   ├── ScheduleError           a schedule that makes no sense
    │   ├── LeaseExpiredError       the claim on an event is no longer held
    │   ├── EventLoopLimitError     a chain of events longer than allowed
    │   ├── FinalCommitError        a commit after the final one
    │   └── EventNotFoundError      no such event in this namespace
    ├── EndpointMissingError        a relation points at an entity that is not there
    ├── StorageError
    │   ├── DatastoreURIError       a URI that names no known backend
    │   ├── InvalidDatastoreError   the file is not, or no longer, a datastore
    │   ├── DatastoreReadOnlyError  the datastore cannot be written
    │   ├── DatastoreFullError      no space left
    │   ├── LockContentionError     other writers held the lock too long
    │   ├── StorageUnavailableError the datastore cannot be reached for the moment
    │   ├── BindError               a connection that a session cannot take part in
    │   └── SessionClosedError      the session was closed
    └── MissingDependencyError      an optional package is not installed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class OntologiaError(Exception):
    """Base of all errors of this library."""

    code: ClassVar[str] = "ontologia"

    def __init__(self, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        self.what, self.why, self.fix = what, why, fix
        lines = [what]
        if why:
            lines.append(f"  why: {why}")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[OntologiaError], args: tuple[Any, ...], state: dict[str, Any]
) -> OntologiaError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelDefinitionError(OntologiaError, TypeError):
    """A class declaration that cannot work."""

    code = "model_definition"


@dataclass(frozen=True)
class Failure:
    """One value that a field did not accept."""

    field: str
    value: object
    rule: str
    missing: bool = False
    """There was no value at all."""

    def __str__(self) -> str:
        got = "" if self.missing else f" got {shorten(self.value)}"
        return f"{self.field}{got}: {self.rule}"


class ValidationError(OntologiaError, ValueError):
    """A value that its field does not accept."""

    code = "validation"

    def __init__(self, type_name: str, failures: Sequence[Failure], fix: str | None = None) -> None:
        self.type_name = type_name
        self.errors = list(failures)
        first = failures[0]
        self.field, self.value, self.rule = first.field, first.value, first.rule
        what = "; ".join(f"{type_name}.{f}" for f in failures[:5])
        if len(failures) > 5:
            what += f"; and {len(failures) - 5} more"
        super().__init__(what + ".", fix=fix or "pass a value that the field accepts.")


class QueryError(OntologiaError, ValueError):
    """A query that makes no sense for the types it names."""

    code = "query"


class FilterTruthError(QueryError, TypeError):
    """A filter was used as a truth value."""

    code = "filter_truth"


class UnknownFieldError(QueryError, AttributeError):
    """A class was asked for a field that it does not declare."""

    code = "unknown_field"


class UnknownOperatorError(QueryError, AttributeError, TypeError):
    """An expression was asked for an operation that it does not have."""

    code = "unknown_operator"


class ConfigError(OntologiaError, ValueError):
    """A configuration option is out of range."""

    code = "config"


class CommitError(OntologiaError):
    """A commit could not be made or found."""

    code = "commit"


class BatchSizeExceededError(CommitError):
    """More intents are queued than one commit may hold."""

    code = "batch_size_exceeded"

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"{size} objects are queued, one commit takes at most {limit}.",
            why="a commit is one transaction; very large ones block other writers.",
            fix="commit in smaller batches, or raise max_batch_size in OntologiaConfig.",
        )


class CommitNotFoundError(CommitError, LookupError):
    """There is no such commit in this namespace."""

    code = "commit_not_found"

    def __init__(self, commit_id: int, namespace: str) -> None:
        self.commit_id, self.namespace = commit_id, namespace
        super().__init__(
            f"there is no commit {commit_id} in namespace {namespace!r}.",
            fix="list_commits() shows the commits there are.",
        )


class SchemaError(OntologiaError):
    """Declared types and stored types do not fit together."""

    code = "schema"


class SchemaOutdatedError(SchemaError):
    """The declared types differ from those the datastore holds."""

    code = "schema_outdated"

    def __init__(self, diffs: Sequence[Any]) -> None:
        self.diffs = list(diffs)
        super().__init__(
            "the declared types differ from the stored ones: " + "; ".join(map(str, diffs)) + ".",
            why="a type changed in code, or another process migrated the datastore.",
            fix="preview with session.migrate(), apply with session.migrate(dry_run=False, "
            "token=...); or run the code that matches the datastore.",
        )


class MigrationTokenError(SchemaError):
    """The token does not belong to the change that would be applied now."""

    code = "migration_token"

    def __init__(self, expected: str, given: str | None) -> None:
        self.expected, self.given = expected, given
        super().__init__(
            "no token was given." if given is None else f"the token {given!r} is not current.",
            why="the token proves that what is applied is what was previewed.",
            fix="preview again, check it, and pass the token of that preview.",
        )


class MissingUpgraderError(SchemaError):
    """There is no way from a stored schema version to the next."""

    code = "missing_upgrader"

    def __init__(self, type_name: str, from_version: int, reason: str) -> None:
        self.type_name, self.from_version = type_name, from_version
        super().__init__(
            f"{type_name!r} version {from_version} cannot be upgraded "
            f"to version {from_version + 1}: {reason}.",
            fix=f"write a function decorated with @upgrader({type_name!r}, "
            f"from_version={from_version}) and pass it as upgraders=.",
        )


class MigrationError(SchemaError):
    """An upgrader failed, or returned data that the new version does not accept."""

    code = "migration"

    def __init__(
        self,
        type_name: str,
        key: object,
        data: object,
        reason: str,
        fix: str = "correct the upgrader so that it returns valid data for this row.",
    ) -> None:
        self.type_name, self.key, self.data = type_name, key, data
        super().__init__(
            f"{type_name!r} with key {key!r} cannot be upgraded: {reason}; "
            f"the data was {shorten(data)}.",
            why="nothing was written: a migration applies to all rows or to none.",
            fix=fix,
        )


class TypeInUseError(SchemaError):
    """A type cannot be dropped while relations depend on it."""

    code = "type_in_use"

    def __init__(self, type_name: str, relations: Sequence[str]) -> None:
        self.type_name, self.relations = type_name, list(relations)
        names = ", ".join(map(repr, relations))
        super().__init__(
            f"{type_name!r} cannot be dropped while there are relations of type {names}.",
            fix="drop those relation types first.",
        )


class BusError(OntologiaError):
    """Something about events and their handlers."""

    code = "bus"


class HandlerError(BusError, TypeError):
    """A function that cannot be registered as a handler."""

    code = "handler"


class ScheduleError(BusError, ValueError):
    """A schedule that makes no sense."""

    code = "schedule"


class LeaseExpiredError(BusError, RuntimeError):
    """The claim on an event is no longer held; somebody else may work on it."""

    code = "lease_expired"

    def __init__(self, event_id: str, handler_id: str) -> None:
        self.event_id, self.handler_id = event_id, handler_id
        super().__init__(
            f"the claim of {handler_id!r} on event {event_id!r} is no longer held.",
            why="the handler took longer than its lease; the event is handled again elsewhere.",
            fix="raise event_claim_lease_ms or lease_ms, or set renew_lease=True.",
        )


class EventLoopLimitError(BusError, RuntimeError):
    """A chain of events became longer than max_event_chain_depth."""

    code = "event_loop_limit"

    def __init__(self, depth: int, limit: int, root_event_id: str) -> None:
        self.depth, self.limit, self.root_event_id = depth, limit, root_event_id
        super().__init__(
            f"an event would be {depth} hops from its root {root_event_id!r}, "
            f"at most {limit} are allowed.",
            why="handlers that emit each other's events would go on for ever.",
            fix="break the circle, or raise max_event_chain_depth.",
        )


class FinalCommitError(BusError, RuntimeError):
    """Something was committed or emitted after the final commit of a handler."""

    code = "final_commit"


class EventNotFoundError(BusError, LookupError):
    """There is no such event in this namespace."""

    code = "event_not_found"

    def __init__(self, event_id: str, namespace: str) -> None:
        self.event_id, self.namespace = event_id, namespace
        super().__init__(
            f"there is no such event {event_id!r} in namespace {namespace!r}.",
            fix="session.events.list() shows the newest; old ones may have been cleaned up.",
        )


class EndpointMissingError(OntologiaError, LookupError):
    """A relation's endpoint is not there, or was never loaded."""

    code = "endpoint_missing"


class StorageError(OntologiaError):
    """The datastore could not do what was asked."""

    code = "storage"
    temporary: ClassVar[bool] = False
    """Whether the same may succeed a little later, with nothing changed."""


class DatastoreURIError(StorageError, ValueError):
    """The URI names no backend we know."""

    code = "datastore_uri"


class InvalidDatastoreError(StorageError):
    """What the URI points at is not a datastore, or is damaged."""

    code = "invalid_datastore"


class DatastoreReadOnlyError(StorageError):
    """The datastore cannot be written."""

    code = "datastore_read_only"


class DatastoreFullError(StorageError):
    """There is no space left for the datastore."""

    code = "datastore_full"


class LockContentionError(StorageError, TimeoutError):
    """Other writers held the lock for longer than the configured timeout."""

    code = "lock_contention"
    temporary = True

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(
            f"the write lock was not free within {timeout_ms} ms.",
            why="another process or thread holds a write transaction open.",
            fix="try again, commit in smaller batches, or raise lock_timeout_ms.",
        )


class StorageUnavailableError(StorageError):
    """The datastore cannot be reached for the moment, or broke off what it was asked."""

    code = "storage_unavailable"
    temporary = True


class BindError(StorageError):
    """The connection of the caller cannot be taken part in, or not now."""

    code = "bind"


class SessionClosedError(StorageError):
    """The session was closed."""

    code = "session_closed"

    def __init__(self) -> None:
        super().__init__("the session is closed.", fix="open a new Session.")


class MissingDependencyError(OntologiaError, ImportError):
    """An optional package is needed for this call."""

    code = "missing_dependency"

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"the package {package!r} is not installed.",
            fix=f"pip install 'ontologia[{extra}]'.",
        )


def shorten(value: object, limit: int = 120) -> str:
    """The repr of a value, cut so that an error text stays readable."""
    try:
        text = repr(value[: limit * 2]) if isinstance(value, str | bytes) else repr(value)
    except RecursionError:
        text = f"<{type(value).__name__} nested beyond all depth>"
    return text if len(text) <= limit else text[: limit - 3] + "..."
