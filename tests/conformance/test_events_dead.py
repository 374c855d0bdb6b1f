"""Dead letters: what a handler gave up, by its own word or by crashing too often."""

import json
from collections.abc import Callable, Iterator

import pytest
from support.events import Bus, at, event, ids, opened, state

from ontologia.storage.events import DEAD_LETTER_TYPE, DeadLetter, EventRecord

FAILED = event(
    "e1",
    payload='{"order":"o1"}',
    priority=7,
    root_event_id="e0",
    chain_depth=4,
    causation_id="e0",
    commit_id=2,
    dedupe_key="k",
)


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        yield bus


def give_up(bus: Bus, **options: object) -> None:
    """The third attempt of a handler fails and says that it is the last."""
    for now in (0, 10, 20):
        (claim,) = bus.claim(now=at(now), until=at(now + 5), session=f"s{now}", **options)
        done = bus.release(
            claim, now=at(now + 1), error="no", available_at=at(now + 2), dead=now == 20
        )
        assert done


def crash(bus: Bus, **options: object) -> None:
    """Three leases run out; the next claim finds it."""
    for now in (0, 10, 20):
        (claim,) = bus.claim(now=at(now), until=at(now + 5), session=f"s{now}", **options)
        assert claim.attempts == now // 10
    assert bus.claim(now=at(30), session="finder", **options) == []


both = pytest.mark.parametrize("die", [give_up, crash])
Die = Callable[..., None]


def told(bus: Bus) -> list[EventRecord]:
    return [e for e in bus.latest(100) if e.type == DEAD_LETTER_TYPE]


@both
def test_the_dead_letter(bus: Bus, die: Die):
    bus.add(FAILED)
    die(bus)
    (letter,) = bus.dead_letters(10)
    failed_at, error = (at(21), "no") if die is give_up else (at(30), letter.last_error)
    assert letter == DeadLetter(
        "e1", "h", "ns", failed_at, 3, error, "a", '{"order":"o1"}', "e0", 4, "s20"
    )
    if die is crash:
        assert "lease ran out" in error
    record = bus.record("e1")
    assert (record.dead_lettered_at, record.attempts, record.last_error) == (failed_at, 3, error)
    assert (record.ack_at, state(record, at(31))) == (None, "dead")


@both
def test_exactly_one_event_tells_of_it(bus: Bus, die: Die):
    bus.add(FAILED)
    die(bus)
    (letter,) = bus.dead_letters(10)
    (news,) = told(bus)
    assert json.loads(news.payload) == {
        "event_id": "e1",
        "handler_id": "h",
        "attempts": 3,
        "last_error": letter.last_error,
    }
    assert (news.root_event_id, news.chain_depth, news.causation_id) == ("e0", 4, "e1")
    assert (news.namespace, news.created_at) == ("ns", letter.failed_at)
    assert (news.commit_id, news.dedupe_key) == (None, None)
    assert news.id not in ("e0", "e1")
    assert ids(bus.chain("e0")) == ["e1", news.id]


@both
def test_dead_is_for_good(bus: Bus, die: Die):
    bus.add(FAILED)
    die(bus)
    assert not bus.is_due("h", ["a"], at(1000))
    assert bus.claim(now=at(1000)) == []
    assert len(bus.dead_letters(10)) == len(told(bus)) == 1


@both
def test_other_handlers_still_get_the_event(bus: Bus, die: Die):
    bus.register("other")
    bus.add(FAILED)
    die(bus)
    (claim,) = bus.claim("other", now=at(40), until=at(60))
    assert (claim.event, claim.attempts) == (FAILED, 0)
    assert bus.ack([claim], at(41)) == [True]


@both
def test_each_handler_that_gives_up_says_so(bus: Bus, die: Die):
    bus.register("other")
    bus.add(FAILED)
    die(bus)
    for now in (40, 50, 60):
        bus.claim("other", now=at(now), until=at(now + 5))
    bus.claim("other", now=at(70))
    assert [d.handler_id for d in bus.dead_letters(10)] == ["other", "h"]
    assert [json.loads(e.payload)["handler_id"] for e in told(bus)] == ["other", "h"]


@both
def test_the_news_is_delivered_and_starts_no_loop(bus: Bus, die: Die):
    bus.add(event("dl", DEAD_LETTER_TYPE))
    die(bus, types=(DEAD_LETTER_TYPE,))
    assert ids(told(bus)) == ["dl"]
    assert [d.event_id for d in bus.dead_letters(10)] == ["dl"]
    assert bus.dead_letters(10)[0].event_type == DEAD_LETTER_TYPE
    assert state(bus.record("dl"), at(40)) == "dead"


def test_a_handler_of_dead_letters_is_handed_the_news(bus: Bus):
    bus.register("undertaker")
    bus.add(FAILED)
    give_up(bus)
    assert bus.is_due("undertaker", [DEAD_LETTER_TYPE], at(40))
    (claim,) = bus.claim("undertaker", types=(DEAD_LETTER_TYPE,), now=at(40))
    assert [claim.event] == told(bus)


def test_crashes_are_counted_against_the_limit_of_the_claim(bus: Bus):
    bus.add(FAILED)
    bus.claim(until=at(5), max_attempts=1)
    assert bus.claim(now=at(5), max_attempts=1) == []
    assert bus.dead_letters(10)[0].attempts == 1


def test_a_crash_after_failures_is_the_last_attempt(bus: Bus):
    bus.add(FAILED)
    (claim,) = bus.claim(max_attempts=2)
    bus.release(claim, now=at(1), error="no", available_at=at(2), dead=False)
    bus.claim(now=at(2), until=at(5), max_attempts=2)
    assert bus.claim(now=at(6), max_attempts=2) == []
    (letter,) = bus.dead_letters(10)
    assert letter.attempts == 2
    assert "lease ran out" in letter.last_error


def test_a_release_may_give_up_before_the_limit(bus: Bus):
    bus.add(FAILED)
    (claim,) = bus.claim(session="s")
    assert bus.release(claim, now=at(1), error="unreadable", available_at=at(1), dead=True)
    (letter,) = bus.dead_letters(10)
    assert (letter.attempts, letter.last_error, letter.session_id) == (1, "unreadable", "s")


def test_what_dies_during_a_claim_does_not_use_up_its_limit(bus: Bus):
    bus.add(*[event(f"e{n}") for n in range(5)])
    for _ in range(3):
        bus.claim(limit=1, until=at(5), max_attempts=1)
    assert ids(bus.claim(now=at(5), limit=2, max_attempts=1)) == ["e3"]
    assert ids(bus.claim(now=at(5), limit=2, max_attempts=1)) == ["e4"]
    assert [d.event_id for d in bus.dead_letters(10)] == ["e2", "e1", "e0"]


def test_one_crashed_event_does_not_take_the_others_along(bus: Bus):
    bus.add(event("e1"))
    bus.claim(until=at(5), max_attempts=1)
    bus.add(event("e2"), event("e3", priority=200))
    assert ids(bus.claim(now=at(5), max_attempts=1)) == ["e3"]
    assert ids(bus.claim(now=at(5), max_attempts=1)) == ["e2"]
    assert [d.event_id for d in bus.dead_letters(10)] == ["e1"]


def test_newest_first_limited_and_in_one_namespace(bus: Bus):
    bus.add(event("e1"), event("e2"), event("e3"))
    for n, claim in enumerate(bus.claim()):
        bus.release(claim, now=at(n), error=f"no {n}", available_at=at(n), dead=True)
    assert [d.event_id for d in bus.dead_letters(10)] == ["e3", "e2", "e1"]
    assert [d.event_id for d in bus.dead_letters(2)] == ["e3", "e2"]
    assert bus.namespace("other").dead_letters(10) == []
