"""Events as the store holds them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ontologia.model.canonical import loads
from ontologia.storage.events import EventRecord


@dataclass(frozen=True)
class StoredEvent:
    """An event of the log, with its payload in JSON form."""

    id: str
    namespace: str
    type: str
    payload: dict[str, Any]
    created_at: datetime
    priority: int
    root_event_id: str
    chain_depth: int
    causation_id: str | None
    commit_id: int | None
    """The commit that the event belongs to; None if no state changed with it."""

    @classmethod
    def from_record(cls, record: EventRecord) -> StoredEvent:
        """The event behind a stored record."""
        values: dict[str, Any] = record._asdict()
        del values["dedupe_key"]
        values["payload"] = loads(record.payload)
        values["created_at"] = datetime.fromisoformat(record.created_at)
        return cls(**values)
