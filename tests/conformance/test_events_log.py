"""The log of events: order, dedupe keys, reading it back, and its place in a transaction."""

from collections.abc import Iterator

import pytest
from support.events import Bus, at, event, ids, opened, request

from ontologia.storage.events import SessionRecord


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        yield bus


# Reading


def test_an_empty_log(bus: Bus):
    assert bus.latest(10) == []
    assert bus.get("e1") is None
    assert bus.chain("e1") == []
    assert bus.claims("e1") == []
    assert bus.dead_letters(10) == []
    assert bus.claim() == []
    assert bus.add() == []


def test_an_event_comes_back_as_it_was_stored(bus: Bus):
    whole = event(
        "e1",
        "order.placed",
        payload='{"name":"Zoë \\u0000 \U0001f600"}',
        created_at=at(1.5),
        priority=-(2**31),
        root_event_id="e0",
        chain_depth=7,
        causation_id="e0",
        commit_id=3,
        dedupe_key="k",
    )
    assert bus.add(whole) == [True]
    assert bus.get("e1") == whole
    assert bus.latest(10) == [whole]
    assert bus.chain("e0") == [whole]
    (claim,) = bus.claim(types=("order.placed",), now=at(2))
    assert claim.event == whole


def test_latest_is_newest_first_and_limited(bus: Bus):
    bus.add(event("e2"), event("e1"))
    bus.add(event("e3", created_at=at(-100), priority=900))
    assert ids(bus.latest(10)) == ["e3", "e1", "e2"]
    assert ids(bus.latest(2)) == ["e3", "e1"]


def test_a_chain_is_all_that_goes_back_to_an_event_oldest_first(bus: Bus):
    bus.add(event("root"), event("stranger"))
    bus.add(event("z", "b", root_event_id="root", chain_depth=1, causation_id="root"))
    bus.add(event("y", "c", root_event_id="root", chain_depth=2, causation_id="z"))
    assert ids(bus.chain("root")) == ["root", "z", "y"]
    assert bus.chain("z") == []


def test_nothing_crosses_a_namespace(bus: Bus):
    other = bus.namespace("other")
    other.register("h")
    bus.add(event("e1"))
    assert other.latest(10) == other.chain("e1") == []
    assert other.get("e1") is None
    assert not other.is_due("h", ["a"], at(0))
    assert other.claim() == []
    assert ids(bus.claim()) == ["e1"]
    assert other.claims("e1") == []


# Dedupe keys


def test_the_same_key_again_is_a_no_op(bus: Bus):
    assert bus.add(event("e1", dedupe_key="k")) == [True]
    assert bus.add(event("e2", dedupe_key="k", payload="{}")) == [False]
    assert ids(bus.latest(10)) == ["e1"]
    assert bus.get("e2") is None
    assert ids(bus.claim()) == ["e1"]


def test_the_same_key_twice_in_one_call(bus: Bus):
    events = [event(f"e{n}", dedupe_key=key) for n, key in enumerate(["k", None, "k", "l", None])]
    assert bus.add(*events) == [True, True, False, True, True]
    assert ids(bus.latest(10)) == ["e4", "e3", "e1", "e0"]


def test_keys_of_other_namespaces_do_not_count(bus: Bus):
    other = bus.namespace("other")
    assert bus.add(event("e1", dedupe_key="k")) == [True]
    assert other.add(event("e2", dedupe_key="k")) == [True]
    assert other.add(event("e3", dedupe_key="k")) == [False]
    assert ids(other.latest(10)) == ["e2"]


def test_a_key_stays_taken_after_its_event_is_handled(bus: Bus):
    bus.add(event("e1", dedupe_key="k"))
    bus.ack(bus.claim(), at(1))
    assert bus.add(event("e2", dedupe_key="k")) == [False]
    assert bus.claim() == []


def test_events_without_a_key_are_never_the_same(bus: Bus):
    assert bus.add(event("e1"), event("e2")) == [True, True]


# Transactions


def test_a_rollback_undoes_everything(bus: Bus):
    bus.add(*[event(f"e{n}") for n in range(6)])
    bus.claim(limit=1, until=at(1))
    live = [c for _ in range(5) for c in bus.claim(now=at(5), limit=1)]

    def everything():
        return (
            bus.latest(100),
            [bus.claims(f"e{n}") for n in range(7)],
            bus.dead_letters(100),
            bus.sessions(),
            bus.is_due("h", ["a"], at(9)),
        )

    before = everything()
    with bus.undone() as tx:
        tx.events.enqueue([event("e6", dedupe_key="k")])
        tx.events.register_handler("late", "now", at(6))
        assert ids(tx.events.claim(request(now=at(6))).taken) == ["e5", "e6"]
        assert tx.events.ack(live[:1], at(6)) == [True]
        assert tx.events.release(live[1], now=at(6), error="no", available_at=at(7), dead=False)
        assert tx.events.release(live[2], now=at(6), error="no", available_at=at(7), dead=True)
        assert tx.events.renew(live[3:4], now=at(6), lease_until=at(90)) == [True]
        tx.events.hand_back(live[4:], at(6))
    assert everything() == before
    assert bus.ack(live, at(6)) == [True] * 5
    assert bus.add(event("e6", dedupe_key="k")) == [True]
    bus.register("late", start="retained")
    assert len(bus.claim("late")) == 7


def test_a_claim_that_was_rolled_back_holds_nothing(bus: Bus):
    bus.add(event("e1"))
    with bus.undone() as tx:
        (claim,) = tx.events.claim(request()).taken
    assert not bus.holds(claim, at(1))
    assert bus.ack([claim], at(1)) == [False]
    (again,) = bus.claim(now=at(1))
    assert again.attempts == 0


def test_a_rolled_back_session_is_not_known(bus: Bus):
    with bus.undone() as tx:
        tx.events.register_session(SessionRecord("s", "ns", at(0), at(0), {}, None))
    assert bus.sessions() == []
    assert not bus.heartbeat("s", at(1))


def test_state_events_and_acknowledgement_are_one_transaction(bus: Bus):
    bus.add(event("e1"))
    (claim,) = bus.claim()

    def handle(tx):
        commit_id = tx.add_commit(at(1), "s", {}, [])
        tx.events.enqueue([event("e2", "b", commit_id=commit_id)])
        assert tx.events.ack([claim], at(1)) == [True]
        return commit_id

    with bus.undone() as tx:
        handle(tx)
    with bus.store.read(bus.name) as snapshot:
        assert snapshot.head() == 0
        assert ids(snapshot.events.latest(10)) == ["e1"]
    assert bus.holds(claim, at(1))

    with bus.store.write(bus.name) as tx:
        commit_id = handle(tx)
    with bus.store.read(bus.name) as snapshot:
        assert snapshot.head() == commit_id
        assert snapshot.events.latest(1)[0].commit_id == commit_id
    assert bus.record("e1").ack_at == at(1)


def test_a_transaction_sees_what_it_wrote(bus: Bus):
    with bus.store.write(bus.name) as tx:
        assert tx.events.enqueue([event("e1", dedupe_key="k")]) == [True]
        assert tx.events.enqueue([event("e2", dedupe_key="k")]) == [False]
        assert tx.events.is_due("h", ["a"], at(0))
        (claim,) = tx.events.claim(request()).taken
        assert tx.events.claim(request()).taken == []
        assert tx.events.holds(claim, at(1))
        assert tx.events.ack([claim], at(1)) == [True]
        assert tx.events.claims("e1")[0].ack_at == at(1)
    assert not bus.is_due("h", ["a"], at(100))


@pytest.mark.needs("concurrent_reads")
def test_an_open_snapshot_does_not_change(bus: Bus):
    bus.add(event("e1"))
    with bus.store.read(bus.name) as snapshot:
        assert ids(snapshot.events.latest(10)) == ["e1"]
        bus.add(event("e2"))
        bus.ack(bus.claim(), at(1))
        assert ids(snapshot.events.latest(10)) == ["e1"]
        assert snapshot.events.claims("e1") == []
        assert snapshot.events.is_due("h", ["a"], at(1))
    assert ids(bus.latest(10)) == ["e2", "e1"]


@pytest.mark.needs("durable")
def test_what_was_written_survives_reopening(bus: Bus, uri: str):
    bus.add(event("e1", dedupe_key="k"), event("e2"), event("e3"))
    done, claim = bus.claim(limit=2)
    bus.ack([done], at(1))
    bus.store.close()
    with opened(uri) as again:
        assert again.add(event("e4", dedupe_key="k")) == [False]
        assert again.holds(claim, at(1))
        assert ids(again.claim(now=at(1))) == ["e3"]
        assert again.ack([claim], at(1)) == [True]
        assert again.claim(now=at(1)) == []
