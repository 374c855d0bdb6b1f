"""One session in many threads: a unit of work belongs to the thread that queued it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.backends import OpenSession
from support.models import Customer, OrderPlaced, Product

from ontologia import Session, commit_of

THREADS, ROUNDS = 6, 10


def in_thread(work: Callable[[], Any]) -> Any:
    """Run in a thread that has ended when this returns."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def run_together(*work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as pool:
        return [f.result() for f in [pool.submit(w) for w in work]]


def _committer(session: Session, own: int) -> Callable[[], list[int | None]]:
    def work() -> list[int | None]:
        ids = []
        for i in range(ROUNDS):
            session.ensure([Customer(id=f"{own}-{i}"), Product(sku=own, price=float(i + 2))])
            ids.append(session.commit(event=OrderPlaced(order_id=f"{own}-{i}")))
        return ids

    return work


def _check_all_commits(session: Session, ids: list[Any]) -> None:
    assert sorted(i for own in ids for i in own) == list(range(1, THREADS * ROUNDS + 1))
    for commit_ids in ids:
        assert commit_ids == sorted(commit_ids)
    for commit_id in range(1, THREADS * ROUNDS + 1):
        assert len(session.list_commit_changes(commit_id)) == 2
    assert session.query().entities(Customer).count() == THREADS * ROUNDS
    assert session.query().entities(Product).with_history().count() == THREADS * ROUNDS
    assert len(session.list_events(limit=1000)) == THREADS * ROUNDS
    assert session.verify().ok


def test_threads_commit_through_one_session(session: Session):
    ids = run_together(*(_committer(session, n) for n in range(THREADS)))
    _check_all_commits(session, ids)


def test_threads_commit_through_sessions_of_their_own(open_session: OpenSession):
    sessions = [open_session() for _ in range(THREADS)]
    ids = run_together(*(_committer(s, n) for n, s in enumerate(sessions)))
    _check_all_commits(sessions[0], ids)


def test_versions_of_one_identity_written_by_many_threads_form_one_line(session: Session):
    def work(own: int) -> None:
        for i in range(ROUNDS):
            session.ensure(Customer(id="shared", age=own * ROUNDS + i))
            session.commit()

    run_together(*(lambda n=n: work(n) for n in range(THREADS)))
    history = session.query().entities(Customer).with_history().collect()
    commits = [commit_of(c) for c in history]
    assert commits == sorted(set(commits))
    assert session.query().entities(Customer).collect() == [history[-1]]
    assert session.verify().ok


def test_no_reader_sees_part_of_a_commit(session: Session):
    pairs = 30
    session.ensure([Customer(id="a", age=0), Product(sku=1, price=0.0)])
    session.commit()
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(1, pairs):
                session.ensure([Customer(id="a", age=n), Customer(id="b", age=n)])
                session.ensure(Customer(id=f"new-{n}", age=n))
                session.commit()
        finally:
            done.set()

    def read() -> list[int]:
        seen = []
        while not done.is_set() or not seen:
            found = {c.id: c.age for c in session.query().entities(Customer)}
            assert found.get("b", 0) == found["a"] == len(found) - (2 if "b" in found else 1)
            seen.append(found["a"])
        return seen

    _, *reads = run_together(write, read, read)
    for seen in reads:
        assert seen == sorted(seen)


def test_a_reader_that_pauses_holds_up_nobody(session: Session):
    session.ensure(Product(sku=i, price=0.0) for i in range(3000))
    session.commit()
    paused = iter(session.query().entities(Product))
    next(paused)

    def write() -> int | None:
        session.ensure(Product(sku=i, price=9.0) for i in range(3000))
        return session.commit()

    assert in_thread(write) == 2
    assert {p.price for p in paused} == {0.0}
    assert {p.price for p in session.query().entities(Product)} == {9.0}


# Units of work


def test_what_a_thread_queues_is_its_own_while_it_lives(session: Session):
    session.ensure(Customer(id="mine"))
    queued, checked = threading.Event(), threading.Event()

    def work() -> int | None:
        session.ensure([Customer(id="theirs"), Customer(id="more")])
        session.add_commit_meta("who", "thread")
        queued.set()
        checked.wait()
        assert session.pending == 2
        return session.commit()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work)
        assert queued.wait(30)
        assert session.pending == 1
        assert session.commit() == 1
        session.ensure(Customer(id="unwanted"))
        session.discard()
        checked.set()
        assert other.result() == 2
    assert [c["key"] for c in session.list_commit_changes(1)] == ["mine"]
    assert {c["key"] for c in session.list_commit_changes(2)} == {"theirs", "more"}
    assert "who" not in session.get_commit(1).metadata
    assert session.get_commit(2).metadata["who"] == "thread"


def test_discard_in_a_thread_leaves_the_others_alone(session: Session):
    session.ensure(Customer(id="mine"))

    def work() -> int:
        session.ensure(Customer(id="theirs"))
        session.discard()
        return session.pending

    assert in_thread(work) == 0
    assert session.pending == 1


def test_what_ended_threads_left_joins_the_next_commit(session: Session):
    in_thread(lambda: session.ensure(Customer(id="left behind")))
    session.ensure(Customer(id="mine"))
    assert session.pending == 2
    assert session.commit() == 1
    assert session.query().entities(Customer).count() == 2
    assert session.commit() is None


def test_leaving_the_context_commits_what_all_threads_queued(open_session: OpenSession):
    reader = open_session()
    with ThreadPoolExecutor(1) as pool, open_session() as session:
        pool.submit(session.ensure, Customer(id="from a living thread")).result()
        session.ensure(Customer(id="mine"))
    assert reader.query().entities(Customer).count() == 2
    assert len(reader.list_commits()) == 1
