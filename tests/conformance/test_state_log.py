"""The commit log: listing, metadata, times, changes, and the difference between commits."""

from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from support.backends import OpenSession
from support.clock import FakeClock
from support.models import Customer, Product, Seat, Subscription

from ontologia import (
    Commit,
    CommitNotFoundError,
    Entity,
    Field,
    QueryError,
    Session,
    ValidationError,
)


def commit(session: Session, *objects: Any) -> int:
    session.ensure(objects)
    commit_id = session.commit()
    assert commit_id is not None
    return commit_id


# Listing


@pytest.fixture
def five(session: Session) -> Session:
    for age in range(1, 6):
        commit(session, Customer(id="1", age=age))
    return session


def ids(commits: list[Commit]) -> list[int]:
    return [c.commit_id for c in commits]


def test_commits_are_listed_newest_first(five: Session):
    assert ids(five.list_commits()) == [5, 4, 3, 2, 1]
    assert ids(five.list_commits(limit=2)) == [5, 4]
    assert five.list_commits(limit=0) == []


def test_commits_since_one_are_listed_oldest_first(five: Session):
    assert ids(five.list_commits(since_commit_id=3)) == [4, 5]
    assert ids(five.list_commits(limit=2, since_commit_id=0)) == [1, 2]
    assert five.list_commits(since_commit_id=99) == []


def test_ten_are_listed_by_default(session: Session):
    for age in range(1, 13):
        commit(session, Customer(id="1", age=age))
    assert len(session.list_commits()) == 10


def test_get_commit_gives_one(session: Session, clock: FakeClock):
    commit(session, Customer(id="1"))
    found = session.get_commit(1)
    assert found == session.list_commits()[0]
    assert (found.commit_id, found.namespace) == (1, session.namespace)
    assert (found.created_at, found.session_id) == (clock.now(), session.session_id)
    assert found.created_at.tzinfo is not None


@pytest.mark.parametrize("ask", ["get_commit", "list_commit_changes"])
def test_commits_that_are_not_there_are_named(session: Session, ask: str):
    commit(session, Customer(id="1"))
    for missing in (2, 0, 2**62):
        with pytest.raises(CommitNotFoundError) as caught:
            getattr(session, ask)(missing)
        assert caught.value.commit_id == missing
        assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("wrong", [-1, "1", 1.0, True, None, 2**64])
def test_numbers_must_be_whole_and_not_negative(session: Session, wrong: Any):
    with pytest.raises(QueryError):
        session.list_commits(limit=wrong)
    with pytest.raises(QueryError):
        session.list_events(limit=wrong)
    with pytest.raises(QueryError):
        session.get_commit(wrong)
    with pytest.raises(QueryError):
        session.diff(0, wrong)
    if wrong is not None:
        with pytest.raises(QueryError):
            session.list_commits(since_commit_id=wrong)


# Metadata


def test_metadata_belongs_to_the_next_commit_only(session: Session):
    session.add_commit_meta("user", "ada")
    session.add_commit_meta("user", "bob")
    session.add_commit_meta("reason", "é\n")
    commit(session, Customer(id="1"))
    commit(session, Customer(id="2"))
    assert session.get_commit(1).metadata == {
        "namespace": session.namespace,
        "user": "bob",
        "reason": "é\n",
    }
    assert session.get_commit(2).metadata == {"namespace": session.namespace}


@pytest.mark.parametrize(("key", "value"), [("a", 1), (1, "a"), ("a", "\0"), ("\ud800", "a")])
def test_metadata_is_text(session: Session, key: Any, value: Any):
    with pytest.raises(ValidationError):
        session.add_commit_meta(key, value)
    commit(session, Customer(id="1"))
    assert session.get_commit(1).metadata == {"namespace": session.namespace}


def test_metadata_cannot_disguise_the_namespace(session: Session):
    with suppress(ValidationError):
        session.add_commit_meta("namespace", "another")
    commit(session, Customer(id="1"))
    assert session.get_commit(1).metadata["namespace"] == session.namespace


# Time


def test_times_of_commits_never_go_back(session: Session, clock: FakeClock):
    noon = clock.now()
    commit(session, Customer(id="1", age=1))
    clock.advance(-3600)
    commit(session, Customer(id="1", age=2))
    clock.advance(7200)
    commit(session, Customer(id="1", age=3))
    times = [c.created_at for c in session.list_commits()[::-1]]
    assert times == [noon, noon, clock.now()]
    assert session.query().entities(Customer).as_of(noon).get("1").age == 2


def test_as_of_a_moment_is_the_state_then(session: Session, clock: FakeClock):
    before = clock.now()
    clock.advance(1)
    first = clock.now()
    commit(session, Customer(id="1", age=1))
    clock.advance(1)
    commit(session, Customer(id="1", age=2))
    query = session.query().entities(Customer)
    assert query.as_of(before).collect() == []
    assert query.as_of(first).get("1").age == 1
    assert query.as_of(clock.now()).get("1").age == 2
    assert query.as_of(datetime(9999, 1, 1, tzinfo=UTC)).get("1").age == 2


# Changes


def test_changes_of_a_commit_name_type_keys_and_kind(session: Session):
    commit_id = commit(
        session,
        Customer(id="c"),
        Product(sku=1),
        Subscription(left_key="c", right_key=1),
        Seat(left_key="c", right_key=1, number=7),
    )
    changes = {c["type"]: c for c in session.list_commit_changes(commit_id)}
    assert {c["change_type"] for c in changes.values()} == {"added"}
    assert changes["Product"]["key"] == 1
    assert changes["Customer"] == {
        "entity_id": "c",
        "relation_id": None,
        "change_type": "added",
        "kind": "entity",
        "type": "Customer",
        "key": "c",
        "left_key": None,
        "right_key": None,
        "instance_key": None,
    }
    seat = changes["Seat"]
    assert (seat["kind"], seat["entity_id"]) == ("relation", None)
    assert (seat["left_key"], seat["right_key"], seat["instance_key"]) == ("c", 1, 7)
    assert changes["Subscription"]["instance_key"] is None
    assert isinstance(seat["relation_id"], str)


def test_relation_ids_tell_relations_apart(session: Session):
    commit_id = commit(
        session,
        *(Seat(left_key=key, right_key=1, number=n) for key in ("a", 'a"', "a,1") for n in (1, 2)),
    )
    found = [c["relation_id"] for c in session.list_commit_changes(commit_id)]
    assert len(set(found)) == len(found) == 6


def test_a_later_version_is_a_change(session: Session):
    commit(session, Customer(id="1"), Subscription(left_key="1", right_key=1))
    second = commit(
        session, Customer(id="1", age=2), Subscription(left_key="1", right_key=1, plan="pro")
    )
    assert [c["change_type"] for c in session.list_commit_changes(second)] == ["changed"] * 2
    assert [c["change_type"] for c in session.list_commit_changes(1)] == ["added"] * 2


class Dated(Entity):
    day: Field[date] = Field(primary_key=True)
    owner: Field[UUID] = UUID(int=0)


def test_changes_give_keys_as_python_values(session: Session):
    commit_id = commit(session, Dated(day=date(2026, 1, 1)))
    (change,) = session.list_commit_changes(commit_id)
    assert change["key"] == date(2026, 1, 1)
    assert change["entity_id"] == "2026-01-01"


def test_changes_of_types_that_a_session_does_not_know_are_listed_too(open_session: OpenSession):
    commit(open_session(), Customer(id="c"))
    (change,) = open_session().list_commit_changes(1)
    assert (change["type"], change["key"]) == ("Customer", "c")


# Differences


def test_diff_tells_added_and_changed_with_old_and_new_values(session: Session):
    a = commit(session, Customer(id="1", name="Ada", age=1), Customer(id="2"))
    commit(session, Customer(id="1", name="Ada", age=2), Customer(id="3", name="Cy"))
    b = commit(session, Customer(id="1", name="Ada", age=3))
    diff = session.diff(a, b)
    (changed,) = diff.changed
    assert (changed.kind, changed.type, changed.key) == ("entity", "Customer", "1")
    assert changed.fields == {"age": (1, 3)}
    (added,) = diff.added
    assert added.key == "3"
    assert added.fields["name"] == (None, "Cy")


def test_diff_from_zero_is_everything(session: Session):
    b = commit(session, Customer(id="1"), Subscription(left_key="1", right_key=1))
    diff = session.diff(0, b)
    assert {(c.type, c.key) for c in diff.added} == {("Customer", "1"), ("Subscription", ("1", 1))}
    assert not diff.changed


def test_diff_of_relations_names_all_their_keys(session: Session):
    a = commit(session, Seat(left_key="c", right_key=1, number=7))
    b = commit(session, Seat(left_key="c", right_key=1, number=7, note="x"))
    (change,) = session.diff(a, b).changed
    assert (change.kind, change.key) == ("relation", ("c", 1, 7))
    assert change.fields == {"note": ("", "x")}


def test_there_and_back_is_no_difference(session: Session):
    a = commit(session, Customer(id="1", age=1))
    commit(session, Customer(id="1", age=2))
    b = commit(session, Customer(id="1", age=1))
    assert not session.diff(a, b)
    assert not session.diff(b, b)


def test_diff_gives_python_values(session: Session):
    a = commit(session, Dated(day=date(2026, 1, 1)))
    b = commit(session, Dated(day=date(2026, 1, 1), owner=UUID(int=9)))
    (change,) = session.diff(a, b).changed
    assert change.key == date(2026, 1, 1)
    assert change.fields == {"owner": (UUID(int=0), UUID(int=9))}


def test_diff_backwards_or_to_nowhere_is_refused(session: Session):
    commit(session, Customer(id="1"))
    commit(session, Customer(id="2"))
    with pytest.raises(QueryError, match="backwards"):
        session.diff(2, 1)
    with pytest.raises(CommitNotFoundError):
        session.diff(1, 3)
