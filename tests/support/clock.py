"""A clock that moves only when told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Starts at noon on 1 January 2026, UTC."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float = 1) -> datetime:
        """Move on (or, with a negative number, back) and return the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now
