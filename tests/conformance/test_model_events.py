"""Events: type strings, priorities, runtime metadata, and their place in a commit."""

import copy
import math
import pickle
from datetime import datetime
from typing import Any

import pytest
from support.clock import FakeClock
from support.models import Customer, OrderPlaced

from ontologia import Event, Field, ModelDefinitionError, OntologiaError, Session, ValidationError


class UserCreated(Event):
    user: Field[str]


class HTTPRequestFailed(Event):
    code: Field[int] = 500


class Urgent(Event):
    priority: int = 7
    note: Field[str] = ""


class MoreUrgent(Urgent):
    pass


class Named(Event, type="order.placed.v2"):
    pass


class Marked(Event):
    __event_type__ = "shop/marked"


# Types and priorities


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (UserCreated, "user.created"),
        (HTTPRequestFailed, "http.request.failed"),
        (Named, "order.placed.v2"),
        (Marked, "shop/marked"),
    ],
)
def test_the_type_string_is_derived_or_given(cls: Any, expected: str):
    assert cls.__event_type__ == expected


def test_a_derived_event_class_has_a_type_string_of_its_own():
    class NamedAgain(Named):
        pass

    assert NamedAgain.__event_type__ == "named.again"


@pytest.mark.parametrize("name", ["", " ", "a\0", "\ud800", 5])
def test_unusable_type_strings_are_refused(name: Any):
    with pytest.raises(ModelDefinitionError):

        class Thing(Event, type=name):
            pass


def test_instance_priority_beats_class_priority_beats_100():
    assert UserCreated(user="a").priority == 100
    assert Urgent().priority == 7
    assert MoreUrgent().priority == 7
    assert Urgent(priority=-3).priority == -3
    assert UserCreated(user="a", priority=0).priority == 0


@pytest.mark.parametrize("priority", ["high", 1.5, True, 2**63])
def test_priorities_are_whole_numbers(priority: Any):
    with pytest.raises(ValidationError) as caught:
        UserCreated(user="a", priority=priority)
    assert caught.value.field == "priority"
    event = UserCreated(user="a")
    with pytest.raises(ValidationError):
        event.priority = priority
    with pytest.raises(OntologiaError):
        type(Event)("Thing", (Event,), {"priority": priority})


# Values


def test_events_are_validated_like_entities():
    with pytest.raises(ValidationError):
        UserCreated()
    with pytest.raises(ValidationError):
        UserCreated(user=1)
    with pytest.raises(ValidationError):
        UserCreated(user="a", who="b")
    event = OrderPlaced(order_id="1")
    with pytest.raises(ValidationError):
        event.total = math.nan


def test_model_dump_holds_the_declared_fields_only():
    event = OrderPlaced(order_id="1", total=2, priority=5)
    assert event.model_dump() == {"order_id": "1", "total": 2}
    assert OrderPlaced.model_validate(event.model_dump()) == event


def test_equality_and_repr_are_about_the_declared_fields():
    assert OrderPlaced(order_id="1") == OrderPlaced(order_id="1", priority=3)
    assert OrderPlaced(order_id="1") != OrderPlaced(order_id="2")
    assert repr(OrderPlaced(order_id="1")) == "OrderPlaced(order_id='1', total=0)"


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_copies_keep_priority_and_metadata(session: Session, duplicate: Any):
    event = OrderPlaced(order_id="1", priority=3)
    session.commit(event=event)
    twin = duplicate(event)
    assert twin == event
    assert (twin.priority, twin.id, twin.created_at) == (3, event.id, event.created_at)


def test_an_event_that_was_not_committed_has_no_metadata():
    event = OrderPlaced(order_id="1")
    assert (event.id, event.created_at, event.root_event_id) == (None, None, None)
    assert (event.chain_depth, event.causation_id) == (0, None)


# Committing


def test_commit_stores_the_event_and_fills_in_its_metadata(session: Session, clock: FakeClock):
    session.ensure(Customer(id="1"))
    event = OrderPlaced(order_id="é", total=3, priority=9)
    assert session.commit(event=event) == 1
    (record,) = session.list_events()
    assert record.type == "order.placed"
    assert record.payload == {"order_id": "é", "total": 3}
    assert (record.id, record.priority, record.namespace) == (event.id, 9, session.namespace)
    assert event.root_event_id == event.id
    assert datetime.fromisoformat(event.created_at) == record.created_at == clock.now()
    assert record.commit_id == 1


def test_several_events_are_stored_in_order(session: Session):
    session.commit(event=[OrderPlaced(order_id=str(i)) for i in range(3)])
    session.commit(event=(UserCreated(user="a"),))
    newest_first = [r.payload for r in session.list_events()]
    assert newest_first == [
        {"user": "a"},
        *({"order_id": str(i), "total": 0} for i in (2, 1, 0)),
    ]
    assert len({r.id for r in session.list_events()}) == 4


def test_events_alone_make_no_commit(session: Session):
    assert session.commit(event=UserCreated(user="a")) is None
    assert session.list_commits() == []
    assert len(session.list_events()) == 1


def test_an_event_is_stored_even_if_no_state_changed(session: Session):
    session.ensure(Customer(id="1"))
    session.commit()
    session.ensure(Customer(id="1"))
    assert session.commit(event=UserCreated(user="a")) is None
    assert len(session.list_events()) == 1


def test_an_event_without_fields_can_be_committed(session: Session):
    session.commit(event=Named())
    (record,) = session.list_events()
    assert record.payload == {}
    assert Named.model_validate(Named().model_dump()) == Named()


def test_the_newest_events_are_listed_up_to_the_limit(session: Session):
    session.commit(event=[OrderPlaced(order_id=str(i)) for i in range(5)])
    assert [r.payload["order_id"] for r in session.list_events(limit=2)] == ["4", "3"]


class Noted(Event):
    notes: Field[list[float]] = Field(default_factory=list)


@pytest.mark.parametrize("event", [Customer(id="x"), "order.placed", OrderPlaced, 5, [None]])
def test_what_is_not_an_event_is_refused_and_nothing_is_written(session: Session, event: Any):
    session.ensure(Customer(id="1"))
    with pytest.raises(ValidationError):
        session.commit(event=event)
    assert session.list_commits() == []
    assert session.pending == 1


def test_an_event_spoilt_from_inside_stops_the_whole_commit(session: Session):
    event = Noted()
    event.notes.append(math.inf)
    session.ensure(Customer(id="1"))
    with pytest.raises(ValidationError):
        session.commit(event=[OrderPlaced(order_id="1"), event])
    assert (session.list_commits(), session.list_events()) == ([], [])
    event.notes.clear()
    assert session.commit(event=event) == 1
