"""Imperative and reactive code together: ``python examples/bus_workspace.py``.

One part of a program writes a user and says so; another part, here in a thread that waits for
work, reacts. They share a store and a namespace, nothing else.
"""

import tempfile
import threading

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class User(Entity):
    id: Field[str] = Field(primary_key=True)
    email: Field[str]


class Workspace(Entity):
    user_id: Field[str] = Field(primary_key=True)
    title: Field[str]


class UserCreated(Event):
    user_id: Field[str]


ready = threading.Event()


@on_event(UserCreated)
def set_up_workspace(ctx: HandlerContext[UserCreated]) -> None:
    user = ctx.session.query().entities(User).get(ctx.event.user_id)
    assert user is not None  # the event exists only together with the user
    ctx.ensure(Workspace(user_id=user.id, title=f"Workspace of {user.email}"))
    ctx.commit(final=True)
    ready.set()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = f"sqlite:///{directory}/app.db"
        with Session(uri, "users") as worker, Session(uri, "users") as session:
            thread = threading.Thread(target=worker.run, args=([set_up_workspace],))
            thread.start()

            session.ensure(User(id="u1", email="ada@example.com"))
            commit = session.commit(event=UserCreated(user_id="u1"))
            print(f"commit {commit}: a user and an event")

            print(f"the handler ran: {ready.wait(timeout=30)}")
            print(session.query().entities(Workspace).get("u1"))

            worker.stop()
            thread.join()
            print("the worker has stopped")


if __name__ == "__main__":
    main()
