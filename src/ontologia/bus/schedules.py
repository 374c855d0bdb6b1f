"""Schedules: events at times given by a cron expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ontologia.errors import ScheduleError
from ontologia.model.canonical import digest, text
from ontologia.model.event import Event, event_payload

_FORMS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

Misfire = Literal["skip", "once"]


@dataclass(frozen=True)
class Schedule:
    """Emit an event at every tick of a cron expression.

    ``misfire`` says what happens to ticks that passed while nobody ran the schedule: ``"skip"``
    forgets them, ``"once"`` makes up for all of them with the last one.
    """

    event: Event
    cron: str
    timezone: str = "UTC"
    misfire: Misfire = "skip"
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise ScheduleError(
                f"{self.event!r} is not an event.", fix="pass an instance of an Event class."
            )
        if self.misfire not in ("skip", "once"):
            raise ScheduleError(f"misfire is {self.misfire!r}.", fix='use "skip" or "once".')
        if self.name is not None:
            try:
                if not isinstance(self.name, str) or not self.name:
                    raise ValueError("a name is text, and not empty")
                text(self.name)
            except ValueError as error:
                raise ScheduleError(f"name is {self.name!r}.", why=f"{error}.") from None
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise ScheduleError(
                f"{self.timezone!r} is not a time zone.", fix='use a name such as "Europe/Berlin".'
            ) from None
        self._ticks(datetime(2026, 1, 1, tzinfo=UTC))

    @property
    def key(self) -> str:
        """What tells this schedule from others: its name, or what it does."""
        if self.name is not None:
            return self.name
        payload = event_payload(self.event)
        return digest([self.event.__event_type__, payload, self.cron, self.timezone])[:24]

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        expression = self.cron.strip() if isinstance(self.cron, str) else ""
        expression = _FORMS.get(expression.lower(), expression)
        try:
            if len(expression.split()) != 5:
                raise CronSimError("there are not five fields")
            return CronSim(expression, after.astimezone(ZoneInfo(self.timezone)))
        except CronSimError as error:
            raise ScheduleError(
                f"{self.cron!r} is not a cron expression: {error}.",
                why="it has five fields: minute, hour, day of month, month, day of week.",
                fix='write for example "0 2 * * *", or "@daily".',
            ) from None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first tick after a moment, in UTC; None if there will be none."""
        moment = _aware(moment)
        # In the hour that happens twice, the library begins with what is past.
        tick = next((t for t in self._ticks(moment) if t > moment), None)
        return None if tick is None else tick.astimezone(UTC)

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        """The last tick in ``(after, until]``, in UTC."""
        after, until = _aware(after), _aware(until)
        # Look back in growing steps, so that a long absence is not walked tick by tick.
        step = timedelta(hours=1)
        while True:
            start = max(after, until - step)
            last = None
            for tick in self._ticks(start):
                if tick > until:
                    break
                if tick > start:
                    last = tick
            if last is not None or start == after:
                return None if last is None else last.astimezone(UTC)
            step *= 24


def _aware(moment: object) -> datetime:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ScheduleError(f"{moment!r} is not a time.", fix="pass an aware datetime.")
    return moment.astimezone(UTC)
