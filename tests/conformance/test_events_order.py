"""Order keys: of the events with one key, a handler gets one at a time, in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.events import Bus, at, event, ids, opened, request

from ontologia.storage.events import Claim, EventRecord


@pytest.fixture
def bus(uri: str) -> Iterator[Bus]:
    with opened(uri) as bus:
        bus.register_handler("h", "retained", at(0), ["a"])
        yield bus


def key_of(found: EventRecord) -> str | None:
    """The key of ``x1``, ``x2``, ... is ``x``; events whose names begin with ``-`` have none."""
    return None if found.id.startswith("-") else found.id[0]


def claim(
    bus: Bus,
    now: float = 0,
    *,
    lease: float = 30,
    look: int = 1000,
    handler: str = "h",
    **more: int,
) -> list[Claim]:
    """Claim for a handler that keeps order, which looks at so many new events."""
    keys = {e.id: key_of(e) for e in bus.unseen(handler, ["a"], look)}
    wanted = request(handler, now=at(now), until=at(now + lease), **more)
    with bus.store.write(bus.name) as tx:
        found: list[Claim] = tx.events.claim(replace(wanted, order_keys=keys)).taken
    return found


def take(bus: Bus, now: float = 0, **options: Any) -> list[str]:
    """Claim and acknowledge at once; which events."""
    found = claim(bus, now, **options)
    assert bus.ack(found, at(now)) == [True] * len(found)
    return ids(found)


def rest(bus: Bus, now: float = 0, **options: Any) -> list[str]:
    """Everything that is left, as it comes."""
    seen: list[str] = []
    for _ in range(50):
        found = take(bus, now, **options)
        seen += found
        if not found and not bus.unseen(options.get("handler", "h"), ["a"], 1):
            return seen
    raise AssertionError(f"this does not end: {seen}")


def add(bus: Bus, *names: str) -> None:
    bus.add(*map(event, names))


# One at a time


def test_one_of_each_key_and_all_without_one(bus: Bus):
    add(bus, "x1", "x2", "y1", "-1", "x3", "y2", "-2")
    assert ids(claim(bus)) == ["x1", "y1", "-1", "-2"]
    assert claim(bus) == []
    assert not bus.is_due("h", ["a"], at(0)), "what waits for another is not due"


def test_the_next_follows_the_acknowledgement(bus: Bus):
    add(bus, "x1", "y1", "x2", "x3", "y2")
    first = claim(bus)
    bus.ack(first[:1], at(0))
    assert bus.is_due("h", ["a"], at(0))
    assert ids(claim(bus)) == ["x2"]
    bus.ack(first[1:], at(0))
    assert rest(bus) == ["y2"]


def test_new_events_wait_for_those_in_work(bus: Bus):
    add(bus, "x1")
    (first,) = claim(bus)
    add(bus, "x2", "y1")
    assert take(bus) == ["y1"]
    add(bus, "x3")
    assert take(bus) == []
    bus.ack([first], at(0))
    assert rest(bus) == ["x2", "x3"]


def test_commit_order_beats_priority_within_a_key(bus: Bus):
    bus.add(event("x1", priority=1), event("x2", priority=200), event("y1", priority=50))
    assert [take(bus), take(bus)] == [["y1", "x1"], ["x2"]]


def test_the_limit_counts_what_is_taken(bus: Bus):
    add(bus, "x1", "x2", "y1", "z1")
    assert ids(claim(bus, limit=2)) == ["x1", "y1"]
    assert ids(claim(bus, limit=2)) == ["z1"]


def test_several_acknowledged_together(bus: Bus):
    add(bus, "x1", "y1", "x2", "y2")
    assert [take(bus), take(bus), take(bus)] == [["x1", "y1"], ["x2", "y2"], []]


def test_new_events_are_looked_at_in_pieces(bus: Bus):
    """An event nobody has looked at, and so whose key is not known, is not handed out."""
    add(bus, "x1", "x2", "y1", "y2")
    seen = [take(bus, look=1)[:1] for _ in range(4)]
    assert seen == [["x1"], ["x2"], ["y1"], ["y2"]]


def test_handlers_and_namespaces_keep_their_own_order(bus: Bus):
    other = bus.namespace("other")
    for where, handler in ((bus, "g"), (other, "h")):
        where.register_handler(handler, "retained", at(0), ["a"])
    add(bus, "x1", "x2")
    other.add(event("x3"))
    held = claim(bus)
    assert ids(held) == ["x1"]
    assert rest(bus, handler="g") == ["x1", "x2"]
    assert rest(other) == ["x3"]


def test_threads_keep_the_order(bus: Bus):
    names = [f"{key}{n:02}" for n in range(20) for key in "xyz"]
    add(bus, *names)
    seen: list[str] = []

    def work(_: int) -> None:
        idle = 0
        while idle < 50:
            found = claim(bus, limit=2)
            seen.extend(ids(found))  # before the acknowledgement: nobody else has the next yet
            bus.ack(found, at(0))
            idle = 0 if found else idle + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(seen) == sorted(names)
    for key in "xyz":
        mine = [name for name in seen if name[0] == key]
        assert mine == sorted(mine)


# Failure


def test_a_failed_event_holds_up_its_key_until_it_is_done(bus: Bus):
    add(bus, "x1", "x2", "y1", "y2")
    x1, y1 = claim(bus)
    bus.release(x1, now=at(1), error="no", available_at=at(10), dead=False)
    bus.ack([y1], at(1))
    assert rest(bus, 1) == ["y2"], "other keys go on"
    assert not bus.is_due("h", ["a"], at(9))
    assert rest(bus, 10) == ["x1", "x2"]


def test_a_dead_event_lets_its_key_go_on(bus: Bus):
    add(bus, "x1", "x2", "x3")
    (x1,) = claim(bus)
    bus.release(x1, now=at(1), error="no", available_at=at(1), dead=True)
    assert rest(bus, 1) == ["x2", "x3"]


def test_a_lapsed_lease_holds_up_its_key_as_well(bus: Bus):
    add(bus, "x1", "x2", "y1")
    x1, _ = claim(bus)
    assert claim(bus, 29) == []
    found = [*claim(bus, 30), *claim(bus, 30)]
    assert sorted(ids(found)) == ["x1", "y1"], "again, and not the one behind it"
    assert bus.ack([x1], at(31)) == [False]
    assert claim(bus, 31) == [], "a zombie lets nobody pass"
    bus.ack(found, at(31))
    assert rest(bus, 31) == ["x2"]


def test_what_dies_of_lapsed_leases_lets_its_key_go_on(bus: Bus):
    add(bus, "x1", "x2")
    claim(bus, limit=1)
    assert take(bus, 30, max_attempts=1) == ["x2"]
    assert [d.event_id for d in bus.dead_letters(9)] == ["x1"]


def test_what_is_handed_back_stays_first(bus: Bus):
    add(bus, "x1", "x2", "y1")
    bus.hand_back(claim(bus), at(1))
    assert rest(bus, 1) == ["x1", "y1", "x2"]


def test_a_rolled_back_acknowledgement_lets_nobody_pass(bus: Bus):
    add(bus, "x1", "x2")
    found = claim(bus)
    with bus.undone() as tx:
        assert tx.events.ack(found, at(1)) == [True]
    assert claim(bus, 1) == []
    bus.ack(found, at(1))
    assert take(bus, 1) == ["x2"]


# Again


def test_replayed_events_come_in_order(bus: Bus):
    add(bus, "x1", "x2", "y1", "x3")
    rest(bus)
    bus.redeliver()
    assert rest(bus, 1) == ["x1", "y1", "x2", "x3"]
    bus.redeliver(event_ids=["x3", "x1"])
    add(bus, "x4")
    assert rest(bus, 2) == ["x1", "x3", "x4"]


def test_a_replayed_event_goes_before_what_waits(bus: Bus):
    add(bus, "x1", "x2")
    take(bus)
    bus.redeliver(event_ids=["x1"])
    assert rest(bus, 1) == ["x1", "x2"]


def test_a_replay_waits_for_what_is_being_handled(bus: Bus):
    add(bus, "x1", "x2", "x3")
    take(bus)
    (x2,) = claim(bus)
    bus.redeliver(event_ids=["x1"])
    assert claim(bus, 1) == []
    assert not bus.is_due("h", ["a"], at(1))
    assert bus.ack([x2], at(1)) == [True]
    assert rest(bus, 1) == ["x1", "x3"]


@pytest.mark.parametrize("end", ["release", "lapse", "hand_back"])
def test_a_replay_and_what_was_being_handled_go_one_at_a_time(bus: Bus, end: str):
    add(bus, "x1", "x2")
    take(bus)
    (x2,) = claim(bus, lease=5)
    bus.redeliver(event_ids=["x1"])
    if end == "release":
        bus.release(x2, now=at(1), error="no", available_at=at(2), dead=False)
    elif end == "hand_back":
        bus.hand_back([x2], at(1))
    assert sorted([*take(bus, 5), "then", *take(bus, 5)]) == ["then", "x1", "x2"]


def test_a_replayed_dead_letter_keeps_its_place(bus: Bus):
    add(bus, "x1", "x2", "x3")
    (x1,) = claim(bus)
    bus.release(x1, now=at(1), error="no", available_at=at(1), dead=True)
    bus.redeliver(only_dead=True)
    assert rest(bus, 1) == ["x1", "x2", "x3"]


@pytest.mark.parametrize("look", [1000, 1, 2])
def test_a_rewound_handler_keeps_order(bus: Bus, look: int):
    """Events from before its start come before what it is handed again."""
    add(bus, "x1", "y1", "x2", "y2")
    bus.register_handler("late", "now", at(0), ["a"])
    add(bus, "x3", "y3", "x4")
    assert rest(bus, handler="late") == ["x3", "y3", "x4"]
    bus.redeliver(handler_id="late")
    bus.rewind("late")
    seen = rest(bus, 1, handler="late", look=look)
    assert [n for n in seen if n[0] == "x"] == ["x1", "x2", "x3", "x4"]
    assert [n for n in seen if n[0] == "y"] == ["y1", "y2", "y3"]


def test_a_rewound_handler_finishes_what_it_is_at(bus: Bus):
    add(bus, "x1")
    bus.register_handler("late", "now", at(0), ["a"])
    add(bus, "x2", "x3")
    (x2,) = claim(bus, handler="late")
    bus.rewind("late")
    assert claim(bus, 1, handler="late") == []
    bus.ack([x2], at(1))
    assert rest(bus, 1, handler="late") == ["x1", "x3"]


# Removed


@pytest.mark.parametrize("held", [False, True])
def test_a_removed_event_lets_its_key_go_on(bus: Bus, held: bool):
    bus.add(event("x1"), event("x2", created_at=at(9)), event("x3", created_at=at(9)))
    found = claim(bus)
    if not held:
        bus.release(found[0], now=at(1), error="no", available_at=at(99), dead=False)
    assert bus.cleanup(at(5), force=True, limit=99) == 1
    assert bus.get("x1") is None
    assert rest(bus, 2) == ["x2", "x3"]


def test_a_forgotten_handler_starts_over_in_order(bus: Bus):
    add(bus, "x1", "x2", "x3")
    take(bus)
    (x2,) = claim(bus)
    assert bus.forget_handler("h")
    assert bus.ack([x2], at(1)) == [False]
    bus.register_handler("h", "retained", at(1), ["a"])
    assert rest(bus, 1) == ["x2", "x3"], "what it had finished it is not handed again"


def test_events_of_a_type_not_registered_yet_are_unseen(bus: Bus):
    """A handler that was forgotten while it runs, or that asks for another type."""
    add(bus, "x1", "x2")
    for handler in ("h", "stranger"):
        bus.forget_handler("h")
        assert ids(bus.unseen(handler, ["a"], 1)) == ["x1"]
        assert rest(bus, handler=handler) == ["x1", "x2"]


Action = Callable[[Bus, Claim], object]


@pytest.mark.parametrize(
    "end",
    [
        lambda bus, c: bus.ack([c], at(40)),
        lambda bus, c: bus.release(c, now=at(40), error="", available_at=at(40), dead=True),
        lambda bus, c: bus.hand_back([c], at(40)),
        lambda bus, c: bus.renew([c], now=at(40), lease_until=at(99)),
    ],
    ids=["ack", "dead", "hand_back", "renew"],
)
def test_a_zombie_does_not_move_its_key(bus: Bus, end: Action):
    add(bus, "x1", "x2", "x3")
    (zombie,) = claim(bus)
    (again,) = claim(bus, 35)
    end(bus, zombie)
    assert claim(bus, 41) == []
    assert bus.ack([again], at(41)) == [True]
    assert ids(claim(bus, 41)) == ["x2"]
