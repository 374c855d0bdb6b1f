"""One commit: typed state with full history, and events, atomically."""

from ontologia.config import OntologiaConfig
from ontologia.errors import (
    BatchSizeExceededError,
    CommitError,
    CommitNotFoundError,
    ConfigError,
    DatastoreFullError,
    DatastoreReadOnlyError,
    DatastoreURIError,
    EndpointMissingError,
    FilterTruthError,
    InvalidDatastoreError,
    LockContentionError,
    MigrationError,
    MigrationTokenError,
    MissingDependencyError,
    MissingUpgraderError,
    ModelDefinitionError,
    OntologiaError,
    QueryError,
    SchemaError,
    SchemaOutdatedError,
    SessionClosedError,
    StorageError,
    TypeInUseError,
    UnknownFieldError,
    UnknownOperatorError,
    ValidationError,
)
from ontologia.model import Entity, Event, Field, Relation, commit_of, fields_of
from ontologia.query.expressions import count, count_where, left, right
from ontologia.query.traversal import Path
from ontologia.session import Session
from ontologia.state.events import StoredEvent
from ontologia.state.history import Change, Commit, Diff
from ontologia.state.upgrades import load_upgraders, upgrader

__version__ = "0.1.0"

__all__ = [
    "BatchSizeExceededError",
    "Change",
    "Commit",
    "CommitError",
    "CommitNotFoundError",
    "ConfigError",
    "DatastoreFullError",
    "DatastoreReadOnlyError",
    "DatastoreURIError",
    "Diff",
    "EndpointMissingError",
    "Entity",
    "Event",
    "Field",
    "FilterTruthError",
    "InvalidDatastoreError",
    "LockContentionError",
    "MigrationError",
    "MigrationTokenError",
    "MissingDependencyError",
    "MissingUpgraderError",
    "ModelDefinitionError",
    "OntologiaConfig",
    "OntologiaError",
    "Path",
    "QueryError",
    "Relation",
    "SchemaError",
    "SchemaOutdatedError",
    "Session",
    "SessionClosedError",
    "StorageError",
    "StoredEvent",
    "TypeInUseError",
    "UnknownFieldError",
    "UnknownOperatorError",
    "ValidationError",
    "commit_of",
    "count",
    "count_where",
    "fields_of",
    "left",
    "load_upgraders",
    "right",
    "upgrader",
]
