"""What users need to test their own code: a clock that stands still, and sessions in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ontologia.session import Session

__all__ = ["FakeClock", "memory_session"]


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC) if start is None else start.astimezone(UTC)

    def now(self) -> datetime:
        """The time it was set to."""
        return self._now

    def advance(self, *, seconds: float = 0, milliseconds: float = 0) -> datetime:
        """Move the clock, also backwards, and return the new time."""
        self._now += timedelta(seconds=seconds, milliseconds=milliseconds)
        return self._now


def memory_session(namespace: str | None = None, **options: Any) -> Session:
    """A session on a private store in memory, with a clock that stands still."""
    options.setdefault("clock", FakeClock())
    return Session("memory://", namespace, **options)
