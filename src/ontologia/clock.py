"""Clocks: where the time comes from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time; tests bring their own."""

    def now(self) -> datetime:
        """The current time, with a time zone."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.now(UTC)
