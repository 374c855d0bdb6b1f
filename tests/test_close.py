"""Closing a session while other threads use it."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_closing_under_busy_threads_does_not_crash_the_process():
    # In a process of its own: what this guards against takes the interpreter down.
    program = textwrap.dedent(
        """
        import sys, tempfile, threading
        from ontologia import Entity, Field, OntologiaError, Session

        class Thing(Entity):
            id: Field[int] = Field(primary_key=True)
            text: Field[str] = Field(default="x" * 50)

        def work(session, busy, verb):
            try:
                for n in range(10_000):
                    verb(session, n)
                    busy.set()
            except OntologiaError:
                pass

        verbs = [
            lambda s, n: s.query().entities(Thing).collect(),
            lambda s, n: s.query().entities(Thing).get(5),
            lambda s, n: (s.ensure(Thing(id=n, text=str(n))), s.commit()),
        ]
        with tempfile.TemporaryDirectory() as directory:
            for _ in range(4):
                session = Session(f"{directory}/app.db")
                session.ensure([Thing(id=n) for n in range(3000)])
                session.commit()
                busy = [threading.Event() for _ in verbs]
                threads = [
                    threading.Thread(target=work, args=(session, b, v))
                    for b, v in zip(busy, verbs)
                ]
                for thread in threads:
                    thread.start()
                for event in busy:
                    event.wait()
                session.close()
                for thread in threads:
                    thread.join()
                with Session(f"{directory}/app.db", entity_types=[Thing]) as again:
                    assert again.verify().ok
        print("fine")
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr
