"""A simple event handler: ``python examples/bus_signup.py``.

A new user gets a welcome mail. The log of mails makes the handler safe to repeat: when it runs
again after a crash, it sees that the mail is out.
"""

import tempfile
from datetime import UTC, datetime

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class UserSignup(Event):
    user_id: Field[str]
    email: Field[str]


class EmailLog(Entity):
    user_id: Field[str] = Field(primary_key=True)
    kind: Field[str]
    sent_at: Field[datetime]


def send(address: str) -> None:
    print(f"  mail to {address}: welcome!")


@on_event(UserSignup)
def send_welcome_email(ctx: HandlerContext[UserSignup]) -> None:
    user_id = ctx.event.user_id
    if ctx.session.query().entities(EmailLog).get(user_id) is not None:
        print(f"  {user_id} has had a mail")
        return
    send(ctx.event.email)
    ctx.ensure(EmailLog(user_id=user_id, kind="welcome", sent_at=datetime.now(UTC)))
    ctx.commit()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Session(f"sqlite:///{directory}/app.db") as session,
    ):
        print("Two people sign up, one of them twice.")
        for name in ("ada", "bo", "ada"):
            session.commit(event=UserSignup(user_id=name, email=f"{name}@example.com"))
        session.run([send_welcome_email], until_idle=True)
        print(f"mails sent: {session.query().entities(EmailLog).count()}")
        session.run([send_welcome_email], until_idle=True)
        print("A second run had nothing to do: every event is acknowledged.")


if __name__ == "__main__":
    main()
