"""What handlers commit and emit: explicit, atomic, under the lease, and once."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from support.clock import FakeClock
from support.events import Bus
from support.faults import Fault, break_store
from support.models import Customer, OrderPlaced

from ontologia import (
    Event,
    EventLoopLimitError,
    Field,
    FinalCommitError,
    HandlerContext,
    LeaseExpiredError,
    OntologiaConfig,
    Session,
    ValidationError,
    on_event,
)


class Shipped(Event):
    order_id: Field[str]


class Ping(Event):
    n: Field[int] = Field(default=0)


Placed = HandlerContext[OrderPlaced]


def bus(session: Session) -> Bus:
    return Bus(session._store, session.namespace)


def names(session: Session) -> list[str]:
    return sorted(c.id for c in session.query().entities(Customer).collect())


def stored(session: Session, event_class: type[Event]) -> list[dict[str, Any]]:
    """The payloads of the events of a class, oldest first."""
    found = [e for e in session.list_events(1000) if e.type == event_class.__event_type__]
    return [e.payload for e in reversed(found)]


def place(session: Session, *order_ids: str) -> list[str]:
    events = [OrderPlaced(order_id=o) for o in order_ids]
    session.commit(event=events)
    return [e.id or "" for e in events]


def retry(session: Session, clock: FakeClock, handlers: list[Any], times: int = 1) -> None:
    """Run, and again once what failed may be tried again."""
    session.run(handlers, until_idle=True)
    for _ in range(times):
        clock.advance(seconds=60)
        session.run(handlers, until_idle=True)


# Explicit commit


def test_a_handler_without_commit_persists_nothing(session: Session):
    @on_event(OrderPlaced)
    def forgetful(ctx: Placed) -> None:
        ctx.ensure(Customer(id=ctx.event.order_id))

    (event_id,) = place(session, "o1")
    session.run([forgetful], until_idle=True)
    assert session.list_commits() == []
    assert session.query().entities(Customer).count() == 0
    assert bus(session).claims(event_id)[0].ack_at is not None


def test_what_was_queued_does_not_leak_into_the_next_handler(session: Session):
    @on_event(OrderPlaced, priority=2)
    def forgetful(ctx: Placed) -> None:
        ctx.ensure(Customer(id="forgotten"))
        ctx.add_commit_meta("who", "forgetful")

    @on_event(OrderPlaced, priority=1)
    def tidy(ctx: Placed) -> None:
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()

    place(session, "o1", "o2")
    session.run([forgetful, tidy], until_idle=True)
    assert names(session) == ["o1", "o2"]
    assert all("who" not in c.metadata for c in session.list_commits())
    # Nor into the session's own next commit.
    assert session.pending == 0
    session.ensure(Customer(id="own"))
    session.commit()
    assert names(session) == ["o1", "o2", "own"]


def test_what_the_session_has_queued_is_not_committed_by_a_handler(session: Session):
    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.ensure(Customer(id="handler"))
        ctx.commit()

    place(session, "o1")
    session.ensure(Customer(id="session"))
    session.run([handler], until_idle=True)
    assert names(session) == ["handler"]
    assert session.pending == 1


def test_several_commits_are_several_commits(session: Session):
    returned: list[int | None] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        for n in range(3):
            ctx.ensure(Customer(id=f"c{n}"))
            ctx.add_commit_meta("n", str(n))
            returned.append(ctx.commit())
        returned.append(ctx.commit())  # nothing to write

    place(session, "o1")
    session.run([handler], until_idle=True)
    commits = session.list_commits()[::-1]
    assert [c.metadata["n"] for c in commits] == ["0", "1", "2"]
    assert returned == [*(c.commit_id for c in commits), None]


def test_what_was_committed_before_a_failure_stays_and_the_rest_is_dropped(
    session: Session, clock: FakeClock
):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="first"))
        ctx.commit()
        ctx.ensure(Customer(id=f"second-{len(runs)}"))
        if len(runs) == 1:
            raise RuntimeError("no")
        ctx.commit()

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == ["first"]
    retry(session, clock, [handler])
    assert names(session) == ["first", "second-2"]
    assert len(session.list_commits()) == 2, "the first commit was a no-op the second time"


def test_a_handler_sees_its_event_and_reads_what_it_committed(session: Session):
    seen: list[Any] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        assert isinstance(ctx.event, OrderPlaced)
        assert ctx.session is session
        ctx.ensure(Customer(id="c1"))
        seen.append(ctx.session.query().entities(Customer).count())
        ctx.commit()
        seen.append(ctx.session.query().entities(Customer).count())
        seen.append((ctx.event.order_id, ctx.event.total, ctx.event.priority))
        seen.append((ctx.event.id, ctx.event.root_event_id, ctx.event.chain_depth))

    event = OrderPlaced(order_id="o1", total=7, priority=3)
    session.commit(event=event)
    session.run([handler], until_idle=True)
    assert seen == [0, 1, ("o1", 7, 3), (event.id, event.id, 0)]


# The session of a handler


@pytest.mark.parametrize("concurrency", [1, 2])
def test_inside_a_handler_the_session_is_its_unit_of_work(session: Session, concurrency: int):
    seen: list[Any] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.session.ensure(Customer(id="dropped"))
        ctx.ensure(Customer(id="dropped too"))
        seen.append(ctx.session.pending)
        ctx.session.discard()
        seen.append(ctx.session.pending)
        ctx.session.ensure([Customer(id="c1"), Customer(id="c2")])
        ctx.ensure(Customer(id="c3"))
        ctx.session.add_commit_meta("who", "handler")
        seen.append(ctx.session.commit(event=Shipped(order_id="o1")))
        ctx.session.ensure(Customer(id="forgotten"))

    session.ensure(Customer(id="own"))
    session.add_commit_meta("who", "session")
    (event_id,) = place_by_another(session, "o1")
    session.run([handler], until_idle=True, concurrency=concurrency)
    assert seen == [2, 0, 1]
    assert names(session) == ["c1", "c2", "c3"]
    assert session.list_commits()[0].metadata["who"] == "handler"
    (shipped,) = [e for e in session.list_events() if e.type == "shipped"]
    assert (shipped.causation_id, shipped.chain_depth) == (event_id, 1)
    # And nothing of it is left in the session.
    assert session.pending == 1
    session.commit()
    assert names(session) == ["c1", "c2", "c3", "own"]
    assert session.list_commits()[0].metadata["who"] == "session"


def place_by_another(session: Session, *order_ids: str) -> list[str]:
    """Orders from another thread: what this one has queued stays queued."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(place(session, *order_ids)))
    thread.start()
    thread.join()
    return found


def test_a_commit_through_the_session_is_fenced(session: Session, clock: FakeClock):
    errors: list[str] = []

    @on_event(OrderPlaced)
    def slow(ctx: Placed) -> None:
        ctx.session.ensure(Customer(id=f"run-{len(errors)}"))
        if not errors:
            clock.advance(seconds=31)
        try:
            ctx.session.commit(event=Shipped(order_id="o1"))
        except LeaseExpiredError as error:
            errors.append(error.code)

    place(session, "o1")
    session.run([slow], until_idle=True)
    assert errors == ["lease_expired"]
    assert names(session) == ["run-1"]
    assert len(stored(session, Shipped)) == 1


def test_a_handler_cannot_go_on_through_the_session_after_its_final_commit(session: Session):
    refused: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.commit(final=True)
        for late in (
            lambda: ctx.session.ensure(Customer(id="late")),
            lambda: ctx.session.add_commit_meta("a", "b"),
            lambda: ctx.session.commit(event=Ping()),
        ):
            with pytest.raises(FinalCommitError) as error:
                late()
            refused.append(error.value.code)

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert refused == ["final_commit"] * 3
    assert session.pending == 0
    assert (names(session), stored(session, Ping)) == ([], [])


# Commit events are opt-in


def test_only_commit_with_an_event_enqueues_one(session: Session):
    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.ensure(Customer(id=ctx.event.order_id))
        if ctx.event.order_id == "loud":
            ctx.commit(event=[Shipped(order_id="a", priority=7), Shipped(order_id="b")])
        else:
            ctx.commit()

    place(session, "quiet")
    session.run([handler], until_idle=True)
    assert stored(session, Shipped) == []
    place(session, "loud")
    session.run([handler], until_idle=True)
    assert stored(session, Shipped) == [{"order_id": "a"}, {"order_id": "b"}]
    b, a = session.list_events(2)
    assert (a.priority, b.priority) == (7, 100)
    assert a.commit_id == b.commit_id == session.head


def test_an_event_without_state_and_lineage(session: Session):
    @on_event(OrderPlaced)
    def ship(ctx: Placed) -> None:
        assert ctx.commit(event=Shipped(order_id="o1")) is None

    @on_event(Shipped)
    def ping(ctx: HandlerContext[Shipped]) -> None:
        ctx.emit(Ping(n=1))
        assert ctx.event.chain_depth == 1

    (root,) = place(session, "o1")
    session.run([ship, ping], until_idle=True)
    chain = bus(session).chain(root)
    assert [(e.type, e.chain_depth) for e in chain] == [
        ("order.placed", 0),
        ("shipped", 1),
        ("ping", 2),
    ]
    assert [e.causation_id for e in chain] == [None, root, chain[1].id]
    assert session.list_commits() == []


def test_events_of_a_failed_commit_are_not_written(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="c1"))
        if len(runs) == 1:
            with break_store(session, "events.enqueue"):
                ctx.commit(event=Shipped(order_id="o1"))
        ctx.commit(event=Shipped(order_id="o1"))

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == []
    assert stored(session, Shipped) == []
    retry(session, clock, [handler])
    assert names(session) == ["c1"]
    assert stored(session, Shipped) == [{"order_id": "o1"}]


# Buffering


def test_what_was_emitted_is_enqueued_when_the_handler_succeeds(session: Session):
    before: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id="a"))
        ctx.ensure(Customer(id="c1"))
        ctx.commit()
        ctx.emit(Shipped(order_id="b"))
        before.append(len(stored(session, Shipped)))

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert before == [0]
    assert stored(session, Shipped) == [{"order_id": "a"}, {"order_id": "b"}]


def test_what_was_emitted_is_dropped_when_the_handler_fails(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.emit(Shipped(order_id=f"run-{len(runs)}"))
        if len(runs) == 1:
            raise RuntimeError("no")

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert stored(session, Shipped) == []
    retry(session, clock, [handler])
    assert stored(session, Shipped) == [{"order_id": "run-2"}]


@pytest.mark.parametrize("place_of_fault", ["events.holds", "add_commit", "end"])
def test_what_was_emitted_is_dropped_when_a_commit_fails(
    session: Session, clock: FakeClock, place_of_fault: str
):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.emit(Shipped(order_id=f"run-{len(runs)}"))
        ctx.ensure(Customer(id="c1"))
        if len(runs) == 1:
            with break_store(session, place_of_fault):
                ctx.commit()
        ctx.commit()

    (event_id,) = place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == []
    assert stored(session, Shipped) == []
    (claim,) = bus(session).claims(event_id)
    assert claim.attempts == 1
    assert claim.last_error.startswith(Fault.__name__)
    retry(session, clock, [handler])
    assert names(session) == ["c1"]
    assert stored(session, Shipped) == [{"order_id": "run-2"}]


def test_the_second_commit_fails_and_the_handler_starts_over(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="first"))
        ctx.commit()
        ctx.ensure(Customer(id="second"))
        if len(runs) == 1:
            with break_store(session, "end"):
                ctx.commit()
        ctx.commit()

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == ["first"]
    retry(session, clock, [handler])
    assert names(session) == ["first", "second"]
    assert len(runs) == len(session.list_commits()) == 2


def test_a_commit_that_always_fails_ends_as_a_dead_letter(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced, max_attempts=3)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="c1"))
        with break_store(session, "end"):
            ctx.commit()

    (event_id,) = place(session, "o1")
    retry(session, clock, [handler], times=4)
    assert len(runs) == 3
    (letter,) = bus(session).dead_letters(10)
    assert (letter.event_id, letter.attempts) == (event_id, 3)
    assert letter.last_error.startswith("Fault")
    assert names(session) == []


# The lease


@pytest.mark.parametrize("final", [False, True])
def test_a_commit_after_the_lease_is_refused(session: Session, clock: FakeClock, final: bool):
    errors: list[LeaseExpiredError] = []

    @on_event(OrderPlaced)
    def slow(ctx: Placed) -> None:
        ctx.emit(Ping(n=len(errors)))
        ctx.ensure(Customer(id=f"run-{len(errors)}"))
        if not errors:
            clock.advance(seconds=31)
            assert ctx.lease_until <= clock.now()
            try:
                ctx.commit(event=Shipped(order_id="late"), final=final)
            except LeaseExpiredError as error:
                errors.append(error)
                raise
        ctx.commit(event=Shipped(order_id="in time"), final=final)

    (event_id,) = place(session, "o1")
    session.run([slow], until_idle=True)
    assert [e.event_id for e in errors] == [event_id]
    assert names(session) == ["run-1"]
    assert stored(session, Shipped) == [{"order_id": "in time"}]
    assert stored(session, Ping) == [{"n": 1}]
    (claim,) = bus(session).claims(event_id)
    assert claim.attempts == 1, "a lease that ran out is an attempt"


def test_a_commit_of_nothing_tells_of_the_lost_lease_too(session: Session, clock: FakeClock):
    errors: list[str] = []

    @on_event(OrderPlaced)
    def slow(ctx: Placed) -> None:
        assert ctx.commit() is None, "in time there is nothing to say"
        if not errors:
            clock.advance(seconds=30)
            for commit in (ctx.commit, ctx.session.commit):
                with pytest.raises(LeaseExpiredError) as error:
                    commit()
                errors.append(error.value.code)

    place(session, "o1")
    session.run([slow], until_idle=True)
    assert errors == ["lease_expired"] * 2


def test_a_commit_that_was_taken_over_by_another_session(open_session: Any, clock: FakeClock):
    """Both run the handler at the same time; only the one that holds the lease changes anything."""
    one, two = open_session(), open_session()
    runs: list[str] = []

    @on_event(OrderPlaced, handler_id="h")
    def handler(ctx: Placed) -> None:
        runs.append(ctx.session.session_id)
        me = "first" if len(runs) == 1 else "second"
        ctx.emit(Ping(n=len(runs)))
        if me == "first":
            clock.advance(seconds=31)
            two.run([handler], until_idle=True)
        ctx.ensure(Customer(id=me))
        ctx.commit(event=Shipped(order_id=me))

    place(one, "o1")
    one.run([handler], until_idle=True)
    assert runs == [one.session_id, two.session_id]
    assert names(one) == ["second"]
    assert stored(one, Shipped) == [{"order_id": "second"}]
    assert stored(one, Ping) == [{"n": 2}]


def test_a_handler_that_swallows_the_lost_lease_acknowledges_nothing(
    session: Session, clock: FakeClock
):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def slow(ctx: Placed) -> None:
        runs.append(1)
        ctx.emit(Shipped(order_id=f"run-{len(runs)}"))
        if len(runs) == 1:
            clock.advance(seconds=31)

    (event_id,) = place(session, "o1")
    session.run([slow], until_idle=True)
    assert len(runs) == 2
    assert stored(session, Shipped) == [{"order_id": "run-2"}]
    assert bus(session).claims(event_id)[0].attempts == 1


def test_the_lease_of_a_handler_beats_that_of_the_configuration(session: Session, clock: FakeClock):
    leases: list[float] = []

    @on_event(OrderPlaced, lease_ms=90_000)
    def patient(ctx: Placed) -> None:
        leases.append((ctx.lease_until - clock.now()).total_seconds())
        clock.advance(seconds=60)
        ctx.ensure(Customer(id="c1"))
        ctx.commit()

    place(session, "o1")
    session.run([patient], until_idle=True)
    assert leases == [90]
    assert names(session) == ["c1"]


def test_waiting_behind_slow_events_loses_no_lease(session: Session, clock: FakeClock):
    """Each takes 20 of 30 seconds: the fifth starts long after the lease of the batch."""
    runs: list[str] = []

    @on_event(OrderPlaced)
    def slow(ctx: Placed) -> None:
        runs.append(ctx.event.order_id)
        clock.advance(seconds=20)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit(final=True)

    place(session, *"abcde")
    session.run([slow], until_idle=True)
    assert runs == list("abcde")
    assert names(session) == list("abcde")


def test_a_finished_event_does_not_wait_for_a_slow_one_behind_it(session: Session):
    """Acknowledgements may be grouped for about 20 ms, not for as long as a handler takes."""
    done: list[bool] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        if ctx.event.order_id == "quick":
            ctx.emit(Ping())
            return
        until = time.monotonic() + 1
        while time.monotonic() < until and bus(session).claims(quick)[0].ack_at is None:
            time.sleep(0.005)
        done.append(bus(session).claims(quick)[0].ack_at is not None)
        done.append(stored(session, Ping) != [])

    quick, _ = place(session, "quick", "slow")
    session.run([handler], until_idle=True)
    assert done == [True, True]


def test_a_crashed_session_is_taken_over_when_its_lease_ends(
    session: Session, open_session: Any, clock: FakeClock
):
    crashed: list[str] = []

    @on_event(OrderPlaced, handler_id="h")
    def crash(ctx: Placed) -> None:
        crashed.append(ctx.event.order_id)
        ctx.ensure(Customer(id="half"))
        raise KeyboardInterrupt

    @on_event(OrderPlaced, handler_id="h")
    def work(ctx: Placed) -> None:
        ctx.ensure(Customer(id="whole"))
        ctx.commit()

    (event_id,) = place(session, "o1")
    # A crash writes nothing any more: neither an acknowledgement nor a release.
    with (
        pytest.raises(KeyboardInterrupt),
        break_store(session, "events.hand_back", KeyboardInterrupt),
    ):
        session.run([crash], until_idle=True)
    other = open_session()
    other.run([work], until_idle=True)
    assert names(other) == [], "still reserved for the session that crashed"
    clock.advance(seconds=31)
    other.run([work], until_idle=True)
    assert names(other) == ["whole"]
    (claim,) = bus(other).claims(event_id)
    assert (claim.attempts, claim.session_id) == (1, other.session_id)


# Chains


def test_a_chain_that_is_too_long_is_refused(uri: str, clock: FakeClock):
    errors: list[EventLoopLimitError] = []

    @on_event(Ping, max_attempts=1)
    def again(ctx: HandlerContext[Ping]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.n}"))
        try:
            ctx.commit(event=Ping(n=ctx.event.n + 1))
        except EventLoopLimitError as error:
            errors.append(error)
            raise

    with Session(uri, clock=clock, config=OntologiaConfig(max_event_chain_depth=3)) as session:
        root = Ping(n=0)
        session.commit(event=root)
        session.run([again], until_idle=True)
        assert stored(session, Ping) == [{"n": n} for n in range(4)]
        assert names(session) == ["c0", "c1", "c2"], "nothing of the refused commit is written"
        (error,) = errors
        assert (error.depth, error.limit, error.root_event_id) == (4, 3, root.id)
        (letter,) = bus(session).dead_letters(10)
        assert (letter.chain_depth, letter.root_event_id) == (3, root.id)


def test_emitting_too_deep_fails_at_once(uri: str, clock: FakeClock):
    reached: list[str] = []

    @on_event(Ping, max_attempts=1)
    def again(ctx: HandlerContext[Ping]) -> None:
        ctx.ensure(Customer(id=f"c{ctx.event.n}"))
        if ctx.event.n == 1:
            with pytest.raises(EventLoopLimitError):
                ctx.emit(Ping(n=2))
            reached.append("emit refused")
        else:
            ctx.emit(Ping(n=1))

    with Session(uri, clock=clock, config=OntologiaConfig(max_event_chain_depth=1)) as session:
        session.commit(event=Ping(n=0))
        session.run([again], until_idle=True)
        assert stored(session, Ping) == [{"n": 0}, {"n": 1}]
        assert reached == ["emit refused"]


# The final commit


def test_a_final_commit_acknowledges(session: Session):
    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id="emitted"))
        ctx.ensure(Customer(id="c1"))
        ctx.commit(event=Shipped(order_id="committed"), final=True)
        (claim,) = bus(session).claims(ctx.event.id)
        assert claim.ack_at is not None
        assert len(stored(session, Shipped)) == 2

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == ["c1"]
    assert sorted(e["order_id"] for e in stored(session, Shipped)) == ["committed", "emitted"]


@pytest.mark.parametrize("fault", ["events.ack", "events.enqueue", "end"])
def test_a_final_commit_is_all_or_nothing(session: Session, clock: FakeClock, fault: str):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.emit(Shipped(order_id="o1"))
        ctx.ensure(Customer(id="c1"))
        if len(runs) == 1:
            with break_store(session, fault):
                ctx.commit(final=True)
        ctx.commit(final=True)

    (event_id,) = place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == []
    assert stored(session, Shipped) == []
    assert bus(session).claims(event_id)[0].ack_at is None
    retry(session, clock, [handler])
    assert names(session) == ["c1"]
    assert stored(session, Shipped) == [{"order_id": "o1"}]


@pytest.mark.parametrize(
    "late",
    [
        lambda ctx: ctx.commit(),
        lambda ctx: ctx.commit(final=True),
        lambda ctx: ctx.ensure(Customer(id="late")),
        lambda ctx: ctx.emit(Ping()),
        lambda ctx: ctx.add_commit_meta("a", "b"),
    ],
)
def test_nothing_comes_after_the_final_commit(session: Session, late: Any):
    refused: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.commit(final=True)
        try:
            late(ctx)
        except FinalCommitError as error:
            refused.append(error.code)

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert refused == ["final_commit"]
    assert stored(session, Ping) == []


def test_a_failure_after_the_final_commit_does_not_run_it_again(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="c1"))
        ctx.commit(final=True)
        raise RuntimeError("too late to matter")

    (event_id,) = place(session, "o1")
    retry(session, clock, [handler])
    assert len(runs) == 1
    assert bus(session).claims(event_id)[0].ack_at is not None
    assert bus(session).dead_letters(10) == []


# Events that exist once


def test_a_crash_after_a_commit_with_an_event_leaves_one_event(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="c1"))
        ctx.commit(event=Shipped(order_id="o1"))
        if len(runs) < 3:
            raise RuntimeError("after the commit")

    place(session, "o1")
    retry(session, clock, [handler], times=3)
    assert len(runs) == 3
    assert stored(session, Shipped) == [{"order_id": "o1"}]
    assert len(session.list_commits()) == 1


def test_another_event_on_the_second_run_is_not_lost(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.commit(event=Shipped(order_id=f"run-{len(runs)}"))
        ctx.commit(event=Shipped(order_id="same"))
        if len(runs) == 1:
            raise RuntimeError("after the commit")

    place(session, "o1")
    retry(session, clock, [handler])
    assert [e["order_id"] for e in stored(session, Shipped)] == ["run-1", "same", "run-2"]


def test_the_same_event_twice_in_one_run_is_two_events(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.commit(event=[Shipped(order_id="o1"), Shipped(order_id="o1")])
        if len(runs) == 1:
            raise RuntimeError("after the commit")

    place(session, "o1")
    retry(session, clock, [handler])
    assert stored(session, Shipped) == [{"order_id": "o1"}] * 2


@pytest.mark.parametrize("fault", ["events.holds", "events.enqueue", "end"])
def test_a_commit_that_failed_and_is_made_again_leaves_one_event(
    session: Session, clock: FakeClock, fault: str
):
    """Also when the handler crashes after it, and everything goes well the second time."""
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.ensure(Customer(id="c1"))
        if len(runs) == 1:
            with pytest.raises(Fault), break_store(session, fault):
                ctx.commit(event=Shipped(order_id="o1"))
        ctx.commit(event=Shipped(order_id="o1"))
        if len(runs) == 1:
            raise RuntimeError("after the commit")

    place(session, "o1")
    retry(session, clock, [handler])
    assert len(runs) == 2
    assert stored(session, Shipped) == [{"order_id": "o1"}]
    assert len(session.list_commits()) == 1


def test_committed_and_emitted_equals_are_counted_together(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        runs.append(1)
        ctx.commit(event=Ping(n=1))
        ctx.emit(Ping(n=1))
        ctx.commit(event=Ping(n=1))
        if len(runs) == 1:
            raise RuntimeError("after the commits")

    place(session, "o1")
    retry(session, clock, [handler])
    assert stored(session, Ping) == [{"n": 1}] * 3


def test_two_handlers_and_two_events_do_not_share_an_identity(session: Session):
    @on_event(OrderPlaced)
    def one(ctx: Placed) -> None:
        ctx.emit(Ping(n=1))

    @on_event(OrderPlaced)
    def two(ctx: Placed) -> None:
        ctx.emit(Ping(n=1))

    place(session, "a", "a")
    session.run([one, two], until_idle=True)
    assert stored(session, Ping) == [{"n": 1}] * 4


def test_a_key_is_the_identity(session: Session):
    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id=ctx.event.order_id), key="once")
        ctx.emit(Ping(n=1), key="once")

    place(session, "a", "b")
    session.run([handler], until_idle=True)
    assert stored(session, Shipped) == [{"order_id": "a"}]
    assert stored(session, Ping) == [{"n": 1}], "a key belongs to its type"


def test_a_key_belongs_to_its_type_whatever_the_names(session: Session):
    class One(Event, type="x"):
        pass

    class Two(Event, type="x:y"):
        pass

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.emit(One(), key="y:z")
        ctx.emit(Two(), key="z")
        ctx.emit(One(), key="")

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert sorted(e.type for e in session.list_events(3)) == ["x", "x", "x:y"]


def test_a_key_holds_over_handlers_replays_and_namespaces(open_session: Any):
    session, other = open_session("one"), open_session("two")

    @on_event(OrderPlaced, handler_id="h")
    def handler(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id=ctx.event.order_id), key="k")
        ctx.emit(Shipped(order_id=ctx.event.order_id), key="k")
        ctx.emit(Shipped(order_id="keyless"))

    @on_event(OrderPlaced, handler_id="g")
    def another(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id="of another"), key="k")

    for each in (session, other):
        (event_id,) = place(each, "o1")
        each.run([handler], until_idle=True)
        each.events.replay(event_id)
        each.run([handler, another], until_idle=True)
        # A replay is a new generation, but a key is a key.
        assert [e["order_id"] for e in stored(each, Shipped)] == ["o1", "keyless", "keyless"]


def test_a_key_is_free_again_when_its_event_was_removed(session: Session, clock: FakeClock):
    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        ctx.emit(Shipped(order_id=ctx.event.order_id), key="k")

    for order_id in ("a", "b"):
        place(session, order_id)
        session.run([handler], until_idle=True)
        assert stored(session, Shipped) == [{"order_id": order_id}]
        clock.advance(seconds=1)
        session.events.cleanup(clock.now())


@pytest.mark.parametrize("key", [7, b"k", "\ud800", ("k",), True])
def test_bad_keys_are_refused(session: Session, key: Any):
    refused: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        with pytest.raises(ValidationError) as error:
            ctx.emit(Shipped(order_id="o1"), key=key)
        refused.append(error.value.code)

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert len(refused) == 1
    assert stored(session, Shipped) == []


@pytest.mark.parametrize("thing", ["shipped", Shipped, Customer(id="c1"), None, {"order_id": "o"}])
def test_only_events_are_emitted(session: Session, thing: Any):
    refused: list[str] = []

    @on_event(OrderPlaced)
    def handler(ctx: Placed) -> None:
        with pytest.raises(ValidationError) as error:
            ctx.emit(thing)
        refused.append(str(error.value))

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert "fix:" in refused[0]
    assert len(session.list_events()) == 1


def test_the_same_object_committed_twice_is_two_events(session: Session):
    event = OrderPlaced(order_id="o1")
    session.commit(event=event)
    session.commit(event=event)
    assert stored(session, OrderPlaced) == [{"order_id": "o1", "total": 0}] * 2
    assert len({e.id for e in session.list_events()}) == 2


# Coroutines


def test_coroutines_are_handlers_too(session: Session, clock: FakeClock):
    runs: list[int] = []

    @on_event(OrderPlaced)
    async def handler(ctx: Placed) -> None:
        runs.append(1)
        await asyncio.sleep(0)
        ctx.ensure(Customer(id=ctx.event.order_id))
        ctx.commit()
        await asyncio.sleep(0)
        ctx.emit(Shipped(order_id=f"run-{len(runs)}"))
        if len(runs) == 1:
            raise RuntimeError("no")

    place(session, "o1")
    session.run([handler], until_idle=True)
    assert names(session) == ["o1"]
    assert stored(session, Shipped) == []
    retry(session, clock, [handler])
    assert stored(session, Shipped) == [{"order_id": "run-2"}]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_coroutines_and_functions_side_by_side(session: Session, concurrency: int):
    @on_event(OrderPlaced)
    async def later(ctx: Placed) -> None:
        await asyncio.sleep(0)
        ctx.ensure(Customer(id=f"async-{ctx.event.order_id}"))
        ctx.commit(final=True)

    @on_event(OrderPlaced)
    def now(ctx: Placed) -> None:
        ctx.ensure(Customer(id=f"plain-{ctx.event.order_id}"))
        ctx.commit()

    place(session, "a", "b")
    session.run([later, now], until_idle=True, concurrency=concurrency)
    assert names(session) == ["async-a", "async-b", "plain-a", "plain-b"]
