"""A commit that fails leaves the store untouched, the intents queued, and no lock behind."""

import threading
from typing import Any

import pytest
from support.backends import OpenSession
from support.faults import Fault, break_store
from support.models import Customer, OrderPlaced, Product, Seat, Subscription

from ontologia import Entity, Field, LockContentionError, OntologiaConfig, Session, upgrader

IMPATIENT = OntologiaConfig(lock_timeout_ms=50)


def everything(session: Session) -> Any:
    """All that can be seen of a namespace."""
    query = session.query()
    return [
        query.entities(Customer).with_history().to_dicts(),
        query.entities(Customer).to_dicts(),
        query.entities(Product).with_history().to_dicts(),
        query.relations(Subscription).with_history().to_dicts(),
        query.relations(Seat).to_dicts(),
        session.list_commits(),
        session.list_events(),
        session.verify(),
    ]


def start(session: Session) -> None:
    session.ensure([Customer(id="1", age=1), Customer(id="2")])
    session.ensure(Subscription(left_key="1", right_key=1))
    session.commit(event=OrderPlaced(order_id="0"))


def queue(session: Session) -> None:
    """A bit of everything: changed, unchanged and new rows, and a type the store has not seen."""
    session.ensure([Customer(id="1", age=2), Customer(id="2"), Customer(id="3")])
    session.ensure([Product(sku=1), Seat(left_key="1", right_key=1, number=1)])
    session.ensure(Subscription(left_key="1", right_key=1, plan="pro"))
    session.add_commit_meta("why", "test")


@pytest.mark.parametrize(
    "place", ["schema", "register", "add_commit", "write", "events.enqueue", "end"]
)
def test_a_commit_that_breaks_in_the_middle_never_happened(session: Session, place: str):
    start(session)
    before = everything(session)
    queue(session)
    event = OrderPlaced(order_id="1")
    with break_store(session, place), pytest.raises(Fault):
        session.commit(event=event)
    assert everything(session) == before
    assert session.pending == 6
    assert event.id is None

    commit_id = session.commit(event=event)
    assert commit_id in range(2, 4)  # the number of a failed attempt may stay unused
    assert session.get_commit(commit_id).metadata["why"] == "test"
    assert session.query().entities(Customer).get("1").age == 2
    assert session.query().relations(Subscription).get("1", 1).plan == "pro"
    assert len(session.list_commit_changes(commit_id)) == 5
    assert len(session.list_events()) == 2
    assert session.verify().ok


@pytest.mark.parametrize("place", ["register", "add_commit", "write"])
def test_the_very_first_commit_may_break_too(session: Session, place: str):
    before = everything(session)
    queue(session)
    with break_store(session, place), pytest.raises(Fault):
        session.commit()
    assert everything(session) == before
    assert session.commit() in range(1, 3)


def test_no_lock_is_left_behind(open_session: OpenSession):
    session, other = open_session(config=IMPATIENT), open_session(config=IMPATIENT)
    start(session)
    queue(session)
    with break_store(session, "write"), pytest.raises(Fault):
        session.commit()
    other.ensure(Customer(id="1", age=9))
    assert other.commit() in range(2, 4)
    before = other.head
    assert session.commit() == before + 1
    assert [c.age for c in other.query().entities(Customer).with_history() if c.id == "1"] == [
        1,
        9,
        2,
    ]


def test_an_interrupt_is_a_failure_like_any_other(session: Session):
    start(session)
    before = everything(session)
    queue(session)
    with break_store(session, "write", KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        session.commit()
    assert everything(session) == before
    assert session.commit() in range(2, 4)


class Wide(Entity, name="Slow"):
    id: Field[str] = Field(primary_key=True)


class WideWithSize(Entity, name="Slow"):
    id: Field[str] = Field(primary_key=True)
    size: Field[int]


def test_waiting_for_another_writer_ends_at_the_timeout(open_session: OpenSession):
    first = open_session(config=IMPATIENT)
    first.ensure(Wide(id="1"))
    first.commit()
    holder = open_session(config=IMPATIENT, entity_types=[WideWithSize])
    waiting = open_session(config=IMPATIENT)
    waiting.ensure(Customer(id="1"))
    holding, release = threading.Event(), threading.Event()

    @upgrader("Slow", from_version=1)
    def slow(data: dict[str, Any]) -> dict[str, Any]:
        holding.set()
        release.wait()
        return {**data, "size": 1}

    thread = threading.Thread(target=lambda: holder.migrate(False, force=True, upgraders=[slow]))
    thread.start()
    try:
        assert holding.wait(30)
        with pytest.raises(LockContentionError) as caught:
            waiting.commit(event=OrderPlaced(order_id="1"))
    finally:
        release.set()
        thread.join()
    assert caught.value.timeout_ms == 50
    assert isinstance(caught.value, TimeoutError)
    assert waiting.pending == 1
    assert waiting.list_events() == []
    assert waiting.commit() == 2
    assert holder.query().entities(WideWithSize).get("1").size == 1
