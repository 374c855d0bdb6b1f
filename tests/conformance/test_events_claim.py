"""Claims: what a handler is handed, in which order, and when again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.events import Bus, at, event, ids, opened, state


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        yield bus


# Order and selection


def test_by_priority_then_in_the_order_of_the_log(bus: Bus):
    # Neither ids nor times decide among events of one priority.
    bus.add(event("z", created_at=at(9)), event("y", created_at=at(5)))
    bus.add(event("low", priority=-5), event("x"), event("high", priority=101))
    assert ids(bus.claim(now=at(10), until=at(40))) == ["high", "z", "y", "x", "low"]


def test_the_limit_takes_the_first(bus: Bus):
    bus.add(event("e1"), event("e2"), event("e3", priority=200), event("e4"))
    assert ids(bus.claim(limit=2)) == ["e3", "e1"]
    bus.add(event("e5", priority=150))
    assert ids(bus.claim(limit=2)) == ["e5", "e2"]
    assert ids(bus.claim(limit=2)) == ["e4"]
    assert bus.claim(limit=2) == []


def test_only_the_types_asked_for(bus: Bus):
    bus.add(event("e1", "a"), event("e2", "b"), event("e3", "c"), event("e4", "A"))
    assert ids(bus.claim(types=("a", "c"))) == ["e1", "e3"]
    assert bus.claim(types=()) == []
    assert bus.claim(types=("nothing",)) == []


def test_an_event_that_waits_is_not_handed_out_as_another_type(bus: Bus):
    """A handler with a pinned id may ask for other types after a release."""
    bus.add(event("e1", "a"), event("e2", "a"), event("e3", "b"))
    (claim,) = bus.claim(limit=1)
    bus.hand_back([claim], at(1))
    assert ids(bus.claim(types=("b",), now=at(1))) == ["e3"]
    assert not bus.is_due("h", ["b"], at(1))
    assert bus.is_due("h", ["a"], at(1))
    assert ids(bus.claim(types=("a",), now=at(1))) == ["e1", "e2"]


def test_types_asked_for_later_are_not_lost(bus: Bus):
    """Handling a later event of one type does not skip earlier events of another."""
    bus.add(event("e1", "b"), event("e2", "a"))
    bus.ack(bus.claim(types=("a",)), at(1))
    assert bus.is_due("h", ["a", "b"], at(1))
    assert ids(bus.claim(types=("a", "b"), now=at(1))) == ["e1"]


def test_a_claim_says_what_it_is(bus: Bus):
    bus.add(event("e1"), event("e2"))
    one, two = bus.claim(now=at(1), until=at(31), session="worker")
    assert (one.handler_id, one.lease_until, one.attempts, one.generation) == ("h", at(31), 0, 0)
    assert one.token != two.token
    record = bus.record("e1")
    assert record[:5] == ("e1", "h", "worker", at(1), at(31))
    assert (record.ack_at, record.attempts, record.last_error) == (None, 0, None)
    assert (record.dead_lettered_at, record.generation) == (None, 0)
    assert state(record, at(1)) == "claimed"


def test_what_was_not_handed_out_has_no_claim(bus: Bus):
    bus.add(event("e1"), event("e2"))
    bus.claim(limit=1)
    assert len(bus.claims("e1")) == 1
    assert bus.claims("e2") == []


def test_a_clock_that_is_ahead_elsewhere_does_not_delay_an_event(bus: Bus):
    bus.add(event("e1", created_at=at(60)))
    assert bus.is_due("h", ["a"], at(0))
    assert ids(bus.claim(now=at(0))) == ["e1"]


def test_many_events_are_handed_out_once_each(bus: Bus):
    bus.add(*[event(f"e{n:03}", priority=n % 3) for n in range(300)])
    seen = []
    while claims := bus.claim(limit=7):
        seen += ids(claims)
        bus.ack(claims, at(1))
    assert seen == sorted(seen, key=lambda i: (-(int(i[1:]) % 3), i))
    assert len(seen) == 300


def test_priority_counts_however_many_events_wait(bus: Bus):
    bus.add(*[event(f"e{n}") for n in range(10_001)], event("last", priority=101))
    assert ids(bus.claim(limit=2)) == ["last", "e0"]


def test_threads_never_share_a_claim(bus: Bus):
    bus.add(*[event(f"e{n}") for n in range(60)])

    def work(session: str) -> list[str]:
        mine = []
        while claims := bus.claim(limit=4, session=session):
            mine += ids(claims)
            assert bus.ack(claims, at(1)) == [True] * len(claims)
        return mine

    with ThreadPoolExecutor(4) as pool:
        seen = [i for mine in pool.map(work, "pqrs") for i in mine]
    assert sorted(seen) == sorted(f"e{n}" for n in range(60))


@pytest.mark.needs("shared")
def test_two_stores_on_one_uri_share_the_claims(bus: Bus, uri: str):
    with opened(uri) as other:
        bus.add(event("e1"), event("e2"))
        (claim,) = other.claim(limit=1, session="elsewhere")
        assert bus.record("e1").session_id == "elsewhere"
        assert ids(bus.claim()) == ["e2"]
        assert bus.ack([claim], at(1)) == [True]
        assert not other.holds(claim, at(1))


# Handlers


def test_handlers_are_independent(bus: Bus):
    bus.register("other")
    bus.add(event("e1"), event("e2"))
    mine, theirs = bus.claim("h"), bus.claim("other")
    assert ids(mine) == ids(theirs) == ["e1", "e2"]
    assert bus.ack(mine, at(1)) == [True, True]
    bus.release(theirs[0], now=at(1), error="no", available_at=at(5), dead=True)
    assert bus.holds(theirs[1], at(1))
    assert [state(c, at(1)) for c in bus.claims("e1")] == ["acknowledged", "dead"]
    assert [c.handler_id for c in bus.claims("e2")] == ["h", "other"]
    assert ids(bus.claim("other", now=at(40), until=at(70))) == ["e2"]
    assert bus.claim("h", now=at(40)) == []


def test_backoff_of_one_handler_does_not_delay_another(bus: Bus):
    bus.register("other")
    bus.add(event("e1"))
    (claim,) = bus.claim()
    bus.release(claim, now=at(1), error="no", available_at=at(100), dead=False)
    assert bus.claim(now=at(2)) == []
    assert ids(bus.claim("other", now=at(2))) == ["e1"]


def test_a_new_handler_starts_with_what_is_retained(bus: Bus):
    bus.add(event("e1"))
    bus.ack(bus.claim(), at(1))
    bus.register("new", start="retained")
    bus.add(event("e2"))
    assert ids(bus.claim("new")) == ["e1", "e2"]


def test_a_new_handler_may_start_with_what_comes_next(bus: Bus):
    bus.add(event("e1", priority=500))
    bus.register("new", start="now")
    assert not bus.is_due("new", ["a"], at(0))
    assert bus.claim("new") == []
    bus.add(event("e2"))
    assert bus.is_due("new", ["a"], at(0))
    assert ids(bus.claim("new")) == ["e2"]


@pytest.mark.parametrize("again", ["now", "retained"])
def test_registering_again_does_not_move_a_handler(bus: Bus, again: str):
    bus.add(event("e1"))
    bus.register("new", start="now")
    bus.add(event("e2"), event("e3"))
    bus.register("new", "h", start=again, now=at(5))
    (claim,) = bus.claim("new", limit=1)
    bus.ack([claim], at(1))
    bus.register("new", start=again, now=at(9))
    assert claim.event.id == "e2"
    assert ids(bus.claim("new")) == ["e3"]
    assert ids(bus.claim("h")) == ["e1", "e2", "e3"]


def test_a_handler_is_registered_in_one_namespace(bus: Bus):
    other = bus.namespace("other")
    other.add(event("e1"))
    bus.register("new", start="now")
    other.register("new", start="retained")
    other.add(event("e2"))
    bus.add(event("e3"))
    assert ids(other.claim("new")) == ["e1", "e2"]
    assert ids(bus.claim("new")) == ["e3"]


def test_now_counts_the_events_of_the_same_transaction(bus: Bus):
    with bus.store.write(bus.name) as tx:
        tx.events.enqueue([event("e1")])
        tx.events.register_handler("new", "now", at(0))
        tx.events.enqueue([event("e2")])
    assert ids(bus.claim("new")) == ["e2"]


# Leases


def test_a_claimed_event_is_not_claimed_again_before_its_lease_ends(bus: Bus):
    bus.add(event("e1"))
    bus.claim(session="one", until=at(30))
    assert bus.claim(session="two", now=at(29.999999)) == []
    assert not bus.is_due("h", ["a"], at(29.999999))
    assert bus.is_due("h", ["a"], at(30))
    (again,) = bus.claim(session="two", now=at(30), until=at(60))
    assert again.event.id == "e1"
    assert bus.record("e1").session_id == "two"


def test_a_crash_counts_as_an_attempt_and_leaves_its_error(bus: Bus):
    bus.add(event("e1"))
    (first,) = bus.claim(until=at(10))
    (second,) = bus.claim(now=at(20), until=at(30))
    assert (first.attempts, second.attempts) == (0, 1)
    assert second.token != first.token
    record = bus.record("e1")
    assert record.attempts == 1
    assert "lease ran out" in (record.last_error or "")
    assert (record.claimed_at, record.lease_until) == (at(20), at(30))


def test_each_handler_and_event_counts_its_own_attempts(bus: Bus):
    bus.register("other")
    bus.add(event("e1"))
    bus.claim(until=at(10))
    bus.add(event("e2"))
    assert [(c.event.id, c.attempts) for c in bus.claim(now=at(20))] == [("e1", 1)]
    assert [(c.event.id, c.attempts) for c in bus.claim(now=at(20))] == [("e2", 0)]
    assert [c.attempts for c in bus.claim("other", now=at(20))] == [0, 0]


def test_what_was_reclaimed_keeps_its_place_in_the_order(bus: Bus):
    bus.add(event("e1"), event("e2"))
    bus.claim(limit=1, until=at(10))
    bus.add(event("e3"), event("e4", priority=200))
    assert ids(bus.claim(now=at(10))) == ["e4"]
    assert ids(bus.claim(now=at(10))) == ["e1"]
    assert ids(bus.claim(now=at(10))) == ["e2", "e3"]


def test_a_batch_that_was_lost_is_claimed_one_at_a_time(bus: Bus):
    """One event that ends its process must not make dead letters of those behind it."""
    bus.add(*[event(f"e{n}") for n in range(4)])
    assert len(bus.claim(until=at(10), max_attempts=2)) == 4
    # Nobody knows which of them it was: none has used up an attempt.
    first = bus.claim(now=at(10), until=at(20), max_attempts=2)
    assert [(c.event.id, c.attempts) for c in first] == [("e0", 0)]
    second = bus.claim(now=at(10), until=at(20), max_attempts=2)
    assert [(c.event.id, c.attempts) for c in second] == [("e1", 0)]
    bus.ack(second, at(11))
    # The first was alone, and is lost again: now it counts.
    again = bus.claim(now=at(20), until=at(30), max_attempts=2)
    assert [(c.event.id, c.attempts) for c in again] == [("e0", 1)]
    rest = [ids(bus.claim(now=at(20), until=at(90), max_attempts=2)) for _ in range(3)]
    assert rest == [["e2"], ["e3"], []]
    assert bus.claim(now=at(31), until=at(40), max_attempts=2) == []
    assert [d.event_id for d in bus.dead_letters(10)] == ["e0"]


def test_release_waits_until_the_event_is_available(bus: Bus):
    bus.add(event("e1"))
    (claim,) = bus.claim()
    assert bus.release(claim, now=at(5), error="out of order", available_at=at(20), dead=False)
    record = bus.record("e1")
    assert (record.attempts, record.last_error, record.available_at) == (1, "out of order", at(20))
    assert state(record, at(5)) == state(record, at(19.9)) == "backoff"
    assert bus.claim(now=at(19.9)) == []
    assert not bus.is_due("h", ["a"], at(19.9))
    assert state(record, at(20)) == "reclaimable"
    assert bus.is_due("h", ["a"], at(20))
    (again,) = bus.claim(now=at(20), until=at(50))
    assert again.attempts == 1
    assert state(bus.record("e1"), at(20)) == "claimed"
    assert bus.record("e1").last_error == "out of order"


def test_failures_and_crashes_add_up(bus: Bus):
    bus.add(event("e1"))
    (claim,) = bus.claim(max_attempts=9)
    bus.release(claim, now=at(1), error="no", available_at=at(1), dead=False)
    (claim,) = bus.claim(now=at(2), until=at(3), max_attempts=9)
    (claim,) = bus.claim(now=at(4), until=at(5), max_attempts=9)
    (claim,) = bus.claim(now=at(6), max_attempts=9)
    assert claim.attempts == 3
    bus.release(claim, now=at(7), error="again", available_at=at(7), dead=False)
    assert bus.record("e1").attempts == 4
    assert bus.record("e1").last_error == "again"
    assert bus.dead_letters(10) == []


def test_a_released_event_is_not_taken_for_a_crash(bus: Bus):
    bus.add(event("e1"))
    (claim,) = bus.claim()
    bus.release(claim, now=at(1), error="no", available_at=at(2), dead=False)
    (claim,) = bus.claim(now=at(100), until=at(130))
    assert claim.attempts == 1


def test_acknowledged_is_for_good(bus: Bus):
    bus.add(event("e1"))
    claims = bus.claim()
    assert bus.ack(claims, at(5)) == [True]
    record = bus.record("e1")
    assert (record.ack_at, record.attempts, record.last_error) == (at(5), 0, None)
    assert not bus.is_due("h", ["a"], at(1000))
    assert bus.claim(now=at(1000)) == []


def test_is_due_in_every_state(bus: Bus):
    def due(now: float) -> bool:
        return bus.is_due("h", ["a"], at(now))

    assert not due(0)
    bus.add(event("b1", "b"))
    assert not due(0)
    bus.add(event("e1"))
    assert due(0)
    (claim,) = bus.claim(until=at(10))
    assert not due(0)
    bus.hand_back([claim], at(1))
    assert due(1)
    (claim,) = bus.claim(now=at(1), until=at(10))
    bus.release(claim, now=at(2), error="no", available_at=at(5), dead=False)
    assert not due(4)
    assert due(5)
    bus.claim(now=at(5), until=at(8))
    assert not due(7)
    assert due(8)
    # A crash that only leaves a dead letter is something to find, too.
    assert bus.claim(now=at(8), max_attempts=2) == []
    assert not due(9)
    assert len(bus.dead_letters(10)) == 1


def test_is_due_inside_a_transaction_and_per_handler(bus: Bus):
    bus.register("other")
    bus.add(event("e1"))
    bus.claim()
    assert not bus.is_due("h", ["a"], at(1))
    assert bus.is_due("other", ["a"], at(1))
    assert not bus.is_due("other", ["b"], at(1))
    assert not bus.is_due("other", [], at(1))
    with bus.store.write(bus.name) as tx:
        assert tx.events.is_due("other", ["b", "a"], at(1))
