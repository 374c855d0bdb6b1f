"""Scheduled tasks: ``python examples/bus_schedule.py``.

Old records are cleaned up once by hand, and then every night at two. A fake clock makes three
nights pass in a moment; a real program leaves out ``clock=``, ``hooks=`` and ``until_idle=``.
"""

import tempfile
from datetime import UTC, datetime, timedelta

from ontologia import Entity, Event, EventHooks, Field, HandlerContext, Schedule, Session, on_event
from ontologia.testing import FakeClock

START = datetime(2026, 2, 11, 9, 0, tzinfo=UTC)
NIGHTS = 3

clock = FakeClock(START)


class Record(Entity):
    id: Field[int] = Field(primary_key=True)
    created_at: Field[datetime]
    archived: Field[bool] = Field(default=False)


class SystemCleanup(Event):
    cutoff_days: Field[int] = Field(default=90)
    priority: int = 50


nightly = Schedule(event=SystemCleanup(cutoff_days=2), cron="0 2 * * *", name="nightly-cleanup")


@on_event(SystemCleanup)
def clean_up(ctx: HandlerContext[SystemCleanup]) -> None:
    cutoff = clock.now() - timedelta(days=ctx.event.cutoff_days)
    old = Record.created_at < cutoff, Record.archived.is_false()
    records = ctx.session.query().entities(Record).where(*old).collect()
    for record in records:
        record.archived = True
    ctx.ensure(records)
    ctx.commit(final=True)
    print(f"  {clock.now():%d %b %H:%M}: {len(records)} archived")


def let_a_night_pass(handler_id: str, event: object) -> None:
    """Move the clock to the next night, when the work of this one is done."""
    following = nightly.next_after(clock.now())
    if following is not None and following < START + timedelta(days=NIGHTS):
        clock.advance(seconds=(following - clock.now()).total_seconds())


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Session(f"sqlite:///{directory}/app.db", "system-tasks", clock=clock) as session,
    ):
        session.ensure(
            Record(id=days, created_at=START - timedelta(days=days, hours=1)) for days in range(4)
        )
        session.commit(event=SystemCleanup(cutoff_days=2))
        print("Four records, one for each of the last days.")
        session.run(
            [clean_up],
            schedules=[nightly],
            hooks=EventHooks(on_event_succeeded=let_a_night_pass),
            until_idle=True,
        )
        ticks = [event for event in session.list_events() if event.payload["cutoff_days"] == 2]
        print(f"events: {len(ticks)}, one by hand and one for each night")


if __name__ == "__main__":
    main()
