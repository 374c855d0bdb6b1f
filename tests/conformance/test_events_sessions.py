"""Sessions: who works on a namespace, and who still gives signs of life."""

from collections.abc import Iterator

import pytest
from support.events import Bus, at, opened

from ontologia.storage.events import SessionRecord


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        yield bus


def session(session_id: str, started: float = 0, namespace: str = "ns") -> SessionRecord:
    return SessionRecord(
        session_id, namespace, at(started), at(started), {"host": "zoë", "pid": 7}, None
    )


def test_a_registered_session_is_listed(bus: Bus):
    assert bus.sessions() == []
    bus.register_session(session("s1"))
    assert bus.sessions() == [session("s1")]


def test_what_was_registered_or_read_can_be_changed_without_changing_the_store(bus: Bus):
    record = session("s1")
    bus.register_session(record)
    record.metadata["pid"] = 8
    bus.sessions()[0].metadata["pid"] = 9
    assert bus.sessions() == [session("s1")]


def test_newest_first(bus: Bus):
    for name, started in (("b", 5), ("a", 9), ("c", 1)):
        bus.register_session(session(name, started))
    assert [s.session_id for s in bus.sessions()] == ["a", "b", "c"]


def test_a_heartbeat_moves_the_session_on(bus: Bus):
    bus.register_session(session("s1"))
    bus.register_session(session("s2"))
    assert bus.heartbeat("s1", at(30)) is True
    found = {s.session_id: s for s in bus.sessions()}
    assert found["s1"] == session("s1")._replace(last_heartbeat=at(30))
    assert found["s2"] == session("s2")


def test_a_heartbeat_of_an_unknown_session_says_so(bus: Bus):
    assert bus.heartbeat("nobody", at(1)) is False
    assert bus.sessions() == []


def test_a_session_that_stopped(bus: Bus):
    bus.register_session(session("s1"))
    bus.register_session(session("s2", 1))
    bus.stop_session("s1", at(60))
    assert [s.stopped_at for s in bus.sessions()] == [None, at(60)]
    bus.stop_session("nobody", at(61))
    assert len(bus.sessions()) == 2


def test_sessions_belong_to_a_namespace(bus: Bus):
    other = bus.namespace("other")
    bus.register_session(session("s1"))
    other.register_session(session("s2", namespace="other"))
    assert [s.session_id for s in bus.sessions()] == ["s1"]
    assert [s.session_id for s in other.sessions()] == ["s2"]
    assert other.heartbeat("s1", at(9)) is False
    other.stop_session("s1", at(9))
    assert bus.sessions() == [session("s1")]
