"""Scheduled tasks: ``python examples/bus_schedule.py``.

Old sessions of users are closed once by hand, and then every night at two. A fake clock makes
three nights pass in a moment. A real program calls ``session.run`` once, without ``clock=`` and
``until_idle=``, in as many processes as it likes: each tick exists once.
"""

import tempfile
from datetime import UTC, datetime, timedelta

from ontologia import Entity, Event, Field, HandlerContext, Schedule, Session, on_event
from ontologia.testing import FakeClock

clock = FakeClock(datetime(2026, 2, 11, 9, 0, tzinfo=UTC))


class Login(Entity):
    id: Field[int] = Field(primary_key=True)
    last_seen: Field[datetime]
    closed: Field[bool] = Field(default=False)


class SystemCleanup(Event):
    cutoff_days: Field[int] = Field(default=90)
    priority: int = 50


nightly = Schedule(
    event=SystemCleanup(cutoff_days=2),
    cron="0 2 * * *",
    misfire="once",  # a night without a worker is made up for
    name="nightly-cleanup",
)


@on_event(SystemCleanup)
def close_old_logins(ctx: HandlerContext[SystemCleanup]) -> None:
    cutoff = clock.now() - timedelta(days=ctx.event.cutoff_days)
    old = Login.last_seen < cutoff, Login.closed.is_false()
    logins = ctx.session.query().entities(Login).where(*old).collect()
    for login in logins:
        login.closed = True  # there is no delete: what is over says so
    ctx.ensure(logins)
    ctx.commit(final=True)
    print(f"  {clock.now():%d %b %H:%M}: {len(logins)} closed")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Session(f"sqlite:///{directory}/app.db", "system-tasks", clock=clock) as session,
    ):
        now = clock.now()
        session.ensure(
            Login(id=days, last_seen=now - timedelta(days=days, hours=1)) for days in range(4)
        )
        session.commit(event=SystemCleanup(cutoff_days=2))
        print("Four logins, one for each of the last days. First by hand, then three nights:")
        session.run([close_old_logins], schedules=[nightly], until_idle=True)
        for _ in range(3):
            following = nightly.next_after(clock.now())
            assert following is not None
            clock.advance(seconds=(following - clock.now()).total_seconds())
            session.run([close_old_logins], schedules=[nightly], until_idle=True)
        print(f"events: {len(session.list_events())}, one by hand and one for each night")


if __name__ == "__main__":
    main()
