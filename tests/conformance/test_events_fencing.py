"""Fencing: only the very claim that holds its lease can change anything."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.events import Bus, at, event, ids, opened, state

from ontologia.storage.events import Claim


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        bus.add(event("e1"))
        yield bus


def fail(bus: Bus, claim: Claim, now: str, *, dead: bool = False) -> Any:
    return bus.release(claim, now=now, error="no", available_at=at(500), dead=dead)


ACTIONS: dict[str, Callable[[Bus, Claim, str], Any]] = {
    "ack": lambda bus, claim, now: bus.ack([claim], now),
    "release": lambda bus, claim, now: fail(bus, claim, now),
    "bury": lambda bus, claim, now: fail(bus, claim, now, dead=True),
    "renew": lambda bus, claim, now: bus.renew([claim], now=now, lease_until=at(900)),
    "hand_back": lambda bus, claim, now: bus.hand_back([claim], now),
}
REFUSED: dict[str, Any] = {
    "ack": [False],
    "release": False,
    "bury": False,
    "renew": [False],
    "hand_back": None,
}

every_action = pytest.mark.parametrize("action", ACTIONS)


def everything(bus: Bus) -> Any:
    return bus.claims("e1"), bus.latest(10), bus.dead_letters(10)


@every_action
def test_after_the_lease_nothing_works(bus: Bus, action: str):
    (claim,) = bus.claim(until=at(10))
    before = everything(bus)
    for now in (at(10), at(11)):
        assert not bus.holds(claim, now)
        assert ACTIONS[action](bus, claim, now) == REFUSED[action]
    assert everything(bus) == before
    (again,) = bus.claim(now=at(11))
    assert again.attempts == 1


@every_action
def test_a_zombie_changes_nothing_for_its_successor(bus: Bus, action: str):
    (zombie,) = bus.claim(until=at(10))
    (successor,) = bus.claim(now=at(10), until=at(40))
    before = everything(bus)
    # Not even at a time at which its own lease still ran, by a clock that is behind.
    for now in (at(9), at(11)):
        assert not bus.holds(zombie, now)
        assert ACTIONS[action](bus, zombie, now) == REFUSED[action]
    assert everything(bus) == before
    assert bus.holds(successor, at(11))
    assert bus.ack([successor], at(11)) == [True]


@every_action
@pytest.mark.parametrize("end", ["ack", "release", "bury", "hand_back"])
def test_a_claim_ends_once(bus: Bus, end: str, action: str):
    (claim,) = bus.claim()
    ACTIONS[end](bus, claim, at(1))
    before = everything(bus)
    assert not bus.holds(claim, at(2))
    assert ACTIONS[action](bus, claim, at(2)) == REFUSED[action]
    assert everything(bus) == before


@every_action
def test_a_forged_token_is_refused(bus: Bus, action: str):
    (claim,) = bus.claim()
    before = everything(bus)
    for token in ("", "%", claim.token.upper() + "x"):
        forged = claim._replace(token=token)
        assert not bus.holds(forged, at(1))
        assert ACTIONS[action](bus, forged, at(1)) == REFUSED[action]
    assert everything(bus) == before


@every_action
def test_a_claim_of_another_handler_or_event_is_refused(bus: Bus, action: str):
    bus.register("other")
    bus.add(event("e2"))
    one, two = bus.claim()
    bus.claim("other")
    before = everything(bus)
    for forged in (
        one._replace(handler_id="other"),
        one._replace(event=two.event),
        one._replace(event=event("unknown")),
    ):
        assert not bus.holds(forged, at(1))
        assert ACTIONS[action](bus, forged, at(1)) == REFUSED[action]
    assert everything(bus) == before


def test_each_claim_of_a_batch_is_judged_by_itself(bus: Bus):
    (short,) = bus.claim(until=at(5))
    bus.add(event("e2"), event("e3"))
    long = bus.claim(until=at(30))
    assert bus.renew([long[0], short, long[1]], now=at(6), lease_until=at(40)) == [
        True,
        False,
        True,
    ]
    assert bus.ack([short, *long], at(35)) == [False, True, True]
    assert bus.ack([], at(35)) == []
    assert bus.renew([], now=at(35), lease_until=at(50)) == []
    assert ids(bus.claim(now=at(36))) == ["e1"]


def test_acknowledging_twice_keeps_the_first_time(bus: Bus):
    (claim,) = bus.claim()
    assert bus.ack([claim], at(1)) == [True]
    assert bus.ack([claim], at(2)) == [False]
    assert bus.record("e1").ack_at == at(1)


def test_one_claim_twice_in_one_call(bus: Bus):
    (claim,) = bus.claim()
    assert bus.ack([claim, claim], at(1)) == [True, False]


def test_renew_extends_the_lease(bus: Bus):
    (claim,) = bus.claim(until=at(10))
    assert bus.renew([claim], now=at(9), lease_until=at(50)) == [True]
    assert bus.record("e1").lease_until == at(50)
    # The claim that was handed out still tells of the old lease; its token is what counts.
    assert bus.holds(claim, at(49))
    assert not bus.is_due("h", ["a"], at(49))
    assert bus.claim(now=at(49)) == []
    assert not bus.holds(claim, at(50))
    assert bus.renew([claim], now=at(50), lease_until=at(90)) == [False]
    (again,) = bus.claim(now=at(50), until=at(80))
    assert again.attempts == 1


def test_renewed_work_can_be_acknowledged(bus: Bus):
    (claim,) = bus.claim(until=at(10))
    bus.renew([claim], now=at(5), lease_until=at(20))
    bus.renew([claim], now=at(15), lease_until=at(30))
    assert bus.ack([claim], at(25)) == [True]
    assert bus.record("e1").attempts == 0


def test_what_is_handed_back_is_free_at_once_and_used_no_attempt(bus: Bus):
    bus.add(event("e2"))
    one, two = bus.claim(session="one")
    bus.hand_back([one, two], at(1))
    assert bus.is_due("h", ["a"], at(1))
    assert state(bus.record("e1"), at(1)) == "reclaimable"
    again = bus.claim(session="two", now=at(1))
    assert ids(again) == ["e1", "e2"]
    assert [c.attempts for c in again] == [0, 0]
    assert bus.record("e1").last_error is None
    assert bus.ack([one, two], at(2)) == [False, False]
    assert bus.ack(again, at(2)) == [True, True]


def test_handing_back_keeps_earlier_failures(bus: Bus):
    (claim,) = bus.claim()
    bus.release(claim, now=at(1), error="first", available_at=at(1), dead=False)
    for now in range(2, 9):
        (claim,) = bus.claim(now=at(now), max_attempts=2)
        assert claim.attempts == 1
        bus.hand_back([claim], at(now))
    assert bus.record("e1").attempts == 1
    assert bus.record("e1").last_error == "first"
    assert bus.dead_letters(10) == []


def test_only_valid_claims_are_handed_back(bus: Bus):
    (stale,) = bus.claim(until=at(5))
    bus.add(event("e2"))
    (valid,) = bus.claim()
    (successor,) = bus.claim(now=at(6))
    bus.hand_back([stale, valid], at(7))
    assert bus.holds(successor, at(7))
    assert ids(bus.claim(now=at(7))) == ["e2"]


def test_claims_do_not_cross_a_namespace(bus: Bus):
    (claim,) = bus.claim()
    other = bus.namespace("other")
    other.register("h")
    assert not other.holds(claim, at(1))
    assert other.ack([claim], at(1)) == [False]
    assert other.renew([claim], now=at(1), lease_until=at(90)) == [False]
    assert not fail(other, claim, at(1), dead=True)
    other.hand_back([claim], at(1))
    assert other.dead_letters(10) == other.latest(10) == []
    assert bus.record("e1").lease_until == at(30)
    assert bus.ack([claim], at(1)) == [True]
