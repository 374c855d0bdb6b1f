"""The claim state machine on SQLite and in memory, step by step against a plain model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.events import Bus, at, event, request, state

from ontologia import OntologiaConfig
from ontologia.storage.events import DEAD_LETTER_TYPE, LEASE_RAN_OUT, Claim, EventRecord
from ontologia.storage.uri import open_store

TYPES = {"one": ("a", "b"), "two": ("b", DEAD_LETTER_TYPE)}
"""What each handler asks for."""

handlers = st.sampled_from(sorted(TYPES))
worker_sessions = st.sampled_from(["s1", "s2"])
spans = st.integers(0, 9)
picks = st.lists(st.integers(0, 5), min_size=1, max_size=3)
limits = st.integers(1, 4)
max_attempts = st.integers(1, 3)
new_events = st.lists(
    st.tuples(
        st.sampled_from("aab"), st.sampled_from([100, 100, 7]), st.sampled_from([None, None, "k"])
    ),
    min_size=1,
    max_size=3,
)


@dataclass
class Item:
    """An event of the model: the number of its position is its place in the log."""

    name: str
    type: str
    priority: int
    root: str
    cause: str | None = None


@dataclass
class Delivery:
    """Where an event stands with a handler."""

    session: str
    claimed: int
    ticket: int | None
    """The claim that was handed out last, unless it ended."""
    until: int
    attempts: int = 0
    available: int = 0
    error: str | None = None
    state: str | None = None
    """``acknowledged`` or ``dead``, once it is."""

    def holds(self, ticket: int, now: int) -> bool:
        return self.ticket == ticket and self.until > now and self.state is None

    def shown(self, now: int) -> str:
        if self.state is not None:
            return self.state
        if self.ticket is not None and self.until > now:
            return "claimed"
        return "backoff" if self.available > now else "reclaimable"


@dataclass
class Model:
    """What the port promises, without any cleverness."""

    log: list[Item] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    deliveries: dict[tuple[str, str], Delivery] = field(default_factory=dict)
    letters: list[tuple[Any, ...]] = field(default_factory=list)
    tickets: list[tuple[str, str]] = field(default_factory=list)
    """Event and handler of each claim ever handed out."""

    def due(self, handler: str, now: int) -> list[Item]:
        found = []
        for item in self.log[self.starts[handler] :]:
            if item.type in TYPES[handler]:
                at_hand = self.deliveries.get((item.name, handler))
                if at_hand is None or at_hand.shown(now) == "reclaimable":
                    found.append(item)
        return sorted(found, key=lambda item: -item.priority)

    def claim(
        self, handler: str, session: str, now: int, until: int, limit: int, max_attempts: int
    ) -> list[int]:
        taken: list[int] = []
        for item in self.due(handler, now):
            if len(taken) == limit:
                break
            fresh = Delivery(session, now, None, until)
            delivery = self.deliveries.setdefault((item.name, handler), fresh)
            if delivery.ticket is not None:
                delivery.attempts += 1
                delivery.error = LEASE_RAN_OUT
                if delivery.attempts >= max_attempts:
                    self.bury(item, handler, delivery, now)
                    continue
            delivery.session, delivery.claimed, delivery.until = session, now, until
            delivery.ticket = len(self.tickets)
            taken.append(delivery.ticket)
            self.tickets.append((item.name, handler))
        return taken

    def bury(self, item: Item, handler: str, delivery: Delivery, now: int) -> None:
        delivery.state, delivery.ticket = "dead", None
        self.letters.insert(
            0, (item.name, handler, now, delivery.attempts, delivery.error, delivery.session)
        )
        if item.type != DEAD_LETTER_TYPE:
            name = f"{handler} gave up {item.name}"
            self.log.append(Item(name, DEAD_LETTER_TYPE, item.priority, item.root, item.name))

    def held(self, ticket: int, now: int) -> Delivery | None:
        delivery = self.deliveries[self.tickets[ticket]]
        return delivery if delivery.holds(ticket, now) else None

    def ack(self, ticket: int, now: int) -> bool:
        delivery = self.held(ticket, now)
        if delivery is not None:
            delivery.state = "acknowledged"
        return delivery is not None

    def renew(self, ticket: int, now: int, until: int) -> bool:
        delivery = self.held(ticket, now)
        if delivery is not None:
            delivery.until = until
        return delivery is not None

    def hand_back(self, ticket: int, now: int) -> None:
        delivery = self.held(ticket, now)
        if delivery is not None:
            delivery.ticket = None

    def release(self, ticket: int, now: int, error: str, available: int, dead: bool) -> bool:
        delivery = self.held(ticket, now)
        if delivery is None:
            return False
        delivery.attempts, delivery.error = delivery.attempts + 1, error
        name, handler = self.tickets[ticket]
        if dead:
            (item,) = [i for i in self.log if i.name == name]
            self.bury(item, handler, delivery, now)
        else:
            delivery.ticket, delivery.available = None, available
        return True


class Claims(RuleBasedStateMachine):
    """Two handlers in two sessions; another namespace must not shine through."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now = 0
        self.serial = 0
        stores = [open_store(uri, OntologiaConfig()) for uri in (":memory:", "memory://")]
        self.buses = [Bus(store) for store in stores]
        self.claims: list[list[Claim]] = [[] for _ in self.buses]
        """The claim of each ticket of the model, per store."""

    @initialize(start=st.sampled_from(["retained", "now"]))
    def begin(self, start: str) -> None:
        for bus in self.buses:
            bus.namespace("other").add(event("stranger", "a"), event("stranger 2", "b"))
        self.register("one", "retained")
        self.enqueue([("a", 100, None), ("b", 100, None)])
        self.register("two", start)

    def teardown(self) -> None:
        for bus in self.buses:
            bus.store.close()

    # What is done

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(handler=handlers, start=st.sampled_from(["retained", "now"]))
    def register(self, handler: str, start: str) -> None:
        self.model.starts.setdefault(handler, len(self.model.log) if start == "now" else 0)
        for bus in self.buses:
            bus.register(handler, start=start, now=at(self.now))

    @rule(new=new_events)
    def enqueue(self, new: list[tuple[str, int, str | None]]) -> None:
        events, right = [], []
        for type_name, priority, key in new:
            self.serial += 1
            # Ids fall as positions grow: they must not decide the order.
            name = f"e{1000 - self.serial}"
            right.append(key is None or key not in self.model.keys)
            if key is not None:
                self.model.keys.add(key)
            if right[-1]:
                self.model.log.append(Item(name, type_name, priority, name))
            events.append(
                event(name, type_name, priority=priority, dedupe_key=key, created_at=at(self.now))
            )
        for bus in self.buses:
            assert bus.enqueue(events) == right

    @rule(
        handler=handlers,
        session=worker_sessions,
        lease=st.integers(1, 9),
        limit=limits,
        max_attempts=max_attempts,
    )
    def claim(self, handler: str, session: str, lease: int, limit: int, max_attempts: int) -> None:
        until = self.now + lease
        taken = self.model.claim(handler, session, self.now, until, limit, max_attempts)
        right = []
        for ticket in taken:
            pair = self.model.tickets[ticket]
            right.append((*pair, at(until), self.model.deliveries[pair].attempts, 0))
        for bus, known in zip(self.buses, self.claims, strict=True):
            found = bus.claim(
                handler,
                now=at(self.now),
                until=at(until),
                types=TYPES[handler],
                session=session,
                limit=limit,
                max_attempts=max_attempts,
            )
            assert [(name(c.event), c.handler_id, *c[3:]) for c in found] == right
            known += found

    @rule(handler=handlers)
    def claim_and_roll_back(self, handler: str) -> None:
        for bus in self.buses:
            with bus.undone() as tx:
                wanted = request(
                    handler, now=at(self.now), until=at(self.now + 5), types=TYPES[handler]
                )
                tx.events.enqueue([event("undone", dedupe_key="k2")])
                tx.events.ack(tx.events.claim(wanted).taken[::2], at(self.now))

    def _tickets(self, picks: list[int]) -> list[int]:
        """Some of the newest tickets, or the oldest if there are few."""
        newest = len(self.model.tickets) - 1
        return [max(newest - pick, 0) for pick in picks]

    def _each(self, tickets: list[int]) -> list[tuple[Bus, list[Claim]]]:
        return [
            (bus, [known[t] for t in tickets])
            for bus, known in zip(self.buses, self.claims, strict=True)
        ]

    @precondition(lambda self: self.model.tickets)
    @rule(picks=picks)
    def ack(self, picks: list[int]) -> None:
        tickets = self._tickets(picks)
        right = [self.model.ack(t, self.now) for t in tickets]
        for bus, claims in self._each(tickets):
            assert bus.ack(claims, at(self.now)) == right

    @precondition(lambda self: self.model.tickets)
    @rule(picks=picks, more=spans)
    def renew(self, picks: list[int], more: int) -> None:
        tickets, until = self._tickets(picks), self.now + more
        right = [self.model.renew(t, self.now, until) for t in tickets]
        for bus, claims in self._each(tickets):
            assert bus.renew(claims, now=at(self.now), lease_until=at(until)) == right

    @precondition(lambda self: self.model.tickets)
    @rule(picks=picks)
    def hand_back(self, picks: list[int]) -> None:
        tickets = self._tickets(picks)
        for ticket in tickets:
            self.model.hand_back(ticket, self.now)
        for bus, claims in self._each(tickets):
            bus.hand_back(claims, at(self.now))

    @precondition(lambda self: self.model.tickets)
    @rule(pick=st.integers(0, 5), wait=spans, dead=st.sampled_from([False, False, True]))
    def release(self, pick: int, wait: int, dead: bool) -> None:
        tickets = self._tickets([pick])
        error, available = f"failed at {self.now}", self.now + wait
        right = self.model.release(tickets[0], self.now, error, available, dead)
        for bus, (claim,) in self._each(tickets):
            done = bus.release(
                claim, now=at(self.now), error=error, available_at=at(available), dead=dead
            )
            assert done is right

    # What is true after every step

    @invariant()
    def the_log_is_the_same(self) -> None:
        right = [(i.name, i.type, i.priority, i.root, i.cause) for i in self.model.log]
        for bus in self.buses:
            assert [
                (name(e), e.type, e.priority, e.root_event_id, e.causation_id)
                for e in reversed(bus.latest(1000))
            ] == right

    @invariant()
    def every_delivery_is_the_same(self) -> None:
        right = {
            pair: (d.shown(self.now), d.session, at(d.claimed), d.attempts, d.error)
            for pair, d in self.model.deliveries.items()
        }
        for bus in self.buses:
            assert {
                (name(e), c.handler_id): (
                    state(c, at(self.now)),
                    c.session_id,
                    c.claimed_at,
                    c.attempts,
                    c.last_error,
                )
                for e in bus.latest(1000)
                for c in bus.claims(e.id)
                if c.session_id
            } == right

    @invariant()
    def the_dead_are_the_same(self) -> None:
        right = [(n, h, at(t), *rest) for n, h, t, *rest in self.model.letters]
        for bus in self.buses:
            names = {e.id: name(e) for e in bus.latest(1000)}
            assert [
                (names[d.event_id], d.handler_id, d.failed_at, d.attempts, d.last_error, d[-1])
                for d in bus.dead_letters(1000)
            ] == right

    @invariant()
    def the_same_is_due(self) -> None:
        for handler in self.model.starts:
            right = bool(self.model.due(handler, self.now))
            for bus in self.buses:
                assert bus.is_due(handler, TYPES[handler], at(self.now)) is right

    @invariant()
    def the_same_claims_hold(self) -> None:
        right = [self.model.held(t, self.now) is not None for t in range(len(self.model.tickets))]
        for bus, known in zip(self.buses, self.claims, strict=True):
            with bus.store.write(bus.name) as tx:
                assert [tx.events.holds(claim, at(self.now)) for claim in known] == right


def name(found: EventRecord) -> str:
    """The id of an event; of one that the store made itself, what it tells."""
    if found.type != DEAD_LETTER_TYPE:
        return found.id
    news = json.loads(found.payload)
    return f"{news['handler_id']} gave up {news['event_id']}"


TestClaims = Claims.TestCase
