"""One commit: typed state with full history, and events, atomically."""

from ontologia.bound import BoundSession
from ontologia.bus.context import HandlerContext
from ontologia.bus.deadletter import EventDeadLetter
from ontologia.bus.handlers import on_event
from ontologia.bus.hooks import EventHooks
from ontologia.bus.schedules import Schedule
from ontologia.config import OntologiaConfig
from ontologia.errors import (
    BatchSizeExceededError,
    BindError,
    BusError,
    CommitError,
    CommitNotFoundError,
    ConfigError,
    DatastoreFullError,
    DatastoreReadOnlyError,
    DatastoreURIError,
    EndpointMissingError,
    EventLoopLimitError,
    EventNotFoundError,
    FilterTruthError,
    FinalCommitError,
    HandlerError,
    InvalidDatastoreError,
    LeaseExpiredError,
    LockContentionError,
    MigrationError,
    MigrationTokenError,
    MissingDependencyError,
    MissingUpgraderError,
    ModelDefinitionError,
    OntologiaError,
    QueryError,
    ScheduleError,
    SchemaError,
    SchemaOutdatedError,
    SessionClosedError,
    StorageError,
    StorageUnavailableError,
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
    "BindError",
    "BoundSession",
    "BusError",
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
    "EventDeadLetter",
    "EventHooks",
    "EventLoopLimitError",
    "EventNotFoundError",
    "Field",
    "FilterTruthError",
    "FinalCommitError",
    "HandlerContext",
    "HandlerError",
    "InvalidDatastoreError",
    "LeaseExpiredError",
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
    "Schedule",
    "ScheduleError",
    "SchemaError",
    "SchemaOutdatedError",
    "Session",
    "SessionClosedError",
    "StorageError",
    "StorageUnavailableError",
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
    "on_event",
    "right",
    "upgrader",
]
