"""A simple event handler: ``python examples/bus_signup.py``.

A new user gets a welcome mail. Sending is a side effect, which a transaction cannot undo: the
handler writes down what it has sent, and the id of the event lets the mail service recognise the
same mail if the handler died in between and runs again.
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


class MailService:
    """Stands for an external service that knows idempotency keys."""

    def __init__(self) -> None:
        self._accepted: set[str] = set()

    def send(self, to: str, subject: str, *, idempotency_key: str) -> None:
        if idempotency_key not in self._accepted:
            self._accepted.add(idempotency_key)
            print(f"  mail to {to}: {subject}")


mail = MailService()


@on_event(UserSignup)
def send_welcome_email(ctx: HandlerContext[UserSignup]) -> None:
    user_id = ctx.event.user_id
    if ctx.session.query().entities(EmailLog).get(user_id) is not None:
        print(f"  {user_id} has had a mail")
        return
    mail.send(ctx.event.email, "Welcome!", idempotency_key=str(ctx.event.id))
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
