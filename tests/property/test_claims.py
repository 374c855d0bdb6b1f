"""The claim state machine on every backend, step by step against a plain model."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.events import Bus, at, event, request, state
from support.postgres import borrowed_uri

from ontologia import OntologiaConfig
from ontologia.storage.events import (
    DEAD_LETTER_TYPE,
    LEASE_RAN_OUT,
    Claim,
    ClaimRequest,
)
from ontologia.storage.uri import open_store

TYPES = {"one": ("a", "b"), "two": ("b", DEAD_LETTER_TYPE), "orderly": ("a", "b")}
"""What each handler asks for."""

ORDERED = "orderly"
"""The handler that keeps order."""

handlers = st.sampled_from(sorted(TYPES))
worker_sessions = st.sampled_from(["s1", "s2"])
spans = st.integers(0, 9)
picks = st.lists(st.integers(0, 5), min_size=1, max_size=3)
limits = st.integers(1, 4)
max_attempts = st.integers(1, 3)
order_keys = st.sampled_from(["x", "x", "y", None])
new_events = st.lists(
    st.tuples(
        st.sampled_from("aab"),
        st.sampled_from([100, 100, 7]),
        st.sampled_from([None, None, "k"]),
        order_keys,
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
    order_key: str | None = None


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
    generation: int = 0
    alone: bool = False
    """Whether the last claim took nothing else along."""
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
    cursors: dict[str, int] = field(default_factory=dict)
    """How much of the log each known handler was handed."""
    handed: set[tuple[str, str]] = field(default_factory=set)
    deliveries: dict[tuple[str, str], Delivery] = field(default_factory=dict)
    """What was claimed at least once."""
    letters: list[tuple[Any, ...]] = field(default_factory=list)
    tickets: list[tuple[str, str]] = field(default_factory=list)
    """Event and handler of each claim ever handed out."""

    def unseen(self, handler: str) -> list[Item]:
        return [i for i in self.log[self.cursors[handler] :] if i.type in TYPES[handler]]

    def hand_out(self, handler: str, look: int) -> None:
        for item in self.unseen(handler)[:look]:
            self.handed.add((item.name, handler))
            self.cursors[handler] = self.log.index(item) + 1

    def shown(self, item: Item, handler: str, now: int) -> str:
        delivery = self.deliveries.get((item.name, handler))
        return "reclaimable" if delivery is None else delivery.shown(now)

    def due(self, handler: str, now: int) -> list[Item]:
        known = [i for i in self.log if (i.name, handler) in self.handed]
        state = {i.name: self.shown(i, handler, now) for i in known}
        unfinished = [i for i in known if state[i.name] not in ("acknowledged", "dead")]
        found = []
        for item in unfinished:
            same = [i for i in unfinished if i.order_key == item.order_key]
            if handler == ORDERED and item.order_key is not None:
                busy = any(state[i.name] == "claimed" for i in same)
                if busy or same[0] is not item:
                    continue
            if state[item.name] == "reclaimable":
                found.append(item)
        return sorted(found, key=lambda item: -item.priority)

    def claim(
        self, handler: str, session: str, now: int, until: int, limit: int, max_attempts: int
    ) -> list[int]:
        self.hand_out(handler, len(self.log))
        chosen: list[Item] = []
        while not chosen and (due := self.due(handler, now)):
            chosen = self.choose(handler, due[:limit], now, max_attempts)
        taken: list[int] = []
        for item in chosen:
            fresh = Delivery(session, now, None, until)
            delivery = self.deliveries.setdefault((item.name, handler), fresh)
            delivery.session, delivery.claimed, delivery.until = session, now, until
            delivery.ticket, delivery.alone = len(self.tickets), len(chosen) == 1
            taken.append(delivery.ticket)
            self.tickets.append((item.name, handler))
        return taken

    def choose(self, handler: str, due: list[Item], now: int, max_attempts: int) -> list[Item]:
        """Those that go together: an event whose lease ran out goes alone, or is given up."""
        chosen: list[Item] = []
        for item in due:
            delivery = self.deliveries.get((item.name, handler))
            if delivery is None or delivery.ticket is None:
                chosen.append(item)
                continue
            if chosen:
                break
            attempts = delivery.attempts + delivery.alone
            if attempts < max_attempts:
                delivery.attempts, delivery.error = attempts, LEASE_RAN_OUT
                return [item]
            delivery.attempts, delivery.error = attempts, LEASE_RAN_OUT
            self.bury(item, handler, delivery, now)
        return chosen

    def bury(self, item: Item, handler: str, delivery: Delivery, now: int) -> None:
        delivery.state, delivery.ticket = "dead", None
        self.letters.insert(
            0, (item.name, handler, now, delivery.attempts, delivery.error, delivery.session)
        )
        if item.type != DEAD_LETTER_TYPE:
            before = [i for i in self.log if i.cause == item.name and i.name.startswith(handler)]
            name = f"{handler} gave up {item.name} ({len(before)})"
            self.log.append(Item(name, DEAD_LETTER_TYPE, item.priority, item.root, item.name))

    def held(self, ticket: int, now: int) -> Delivery | None:
        delivery = self.deliveries.get(self.tickets[ticket])
        return delivery if delivery is not None and delivery.holds(ticket, now) else None

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

    def redeliver(self, names: list[str] | None, handler: str | None, only_dead: bool) -> int:
        count = 0
        for (name, owner), delivery in self.deliveries.items():
            wanted = (names is None or name in names) and handler in (None, owner)
            if wanted and delivery.state in (["dead"] if only_dead else ["dead", "acknowledged"]):
                count += 1
                delivery.state = delivery.ticket = None
                delivery.attempts = delivery.until = delivery.available = 0
                delivery.generation += 1
        return count

    def forget(self, handler: str) -> bool:
        for place in [p for p in self.handed if p[1] == handler]:
            delivery = self.deliveries.get(place)
            if delivery is None or delivery.state is None:
                self.handed.discard(place)
                self.deliveries.pop(place, None)
        return self.cursors.pop(handler, None) is not None


class Claims(RuleBasedStateMachine):
    """Three handlers in two sessions; another namespace must not shine through."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now = 0
        self.serial = 0
        self.server = ExitStack()
        uris = (":memory:", "memory://", self.server.enter_context(borrowed_uri()))
        stores = [open_store(uri, OntologiaConfig()) for uri in uris]
        self.buses = [Bus(store) for store in stores]
        self.claims: list[list[Claim]] = [[] for _ in self.buses]
        """The claim of each ticket of the model, per store."""

    @initialize(start=st.sampled_from(["retained", "now"]))
    def begin(self, start: str) -> None:
        for bus in self.buses:
            bus.namespace("other").add(event("stranger", "a"), event("stranger 2", "b"))
        self.register("one", "retained")
        self.enqueue([("a", 100, None, "x"), ("b", 100, None, "x"), ("a", 7, None, "y")])
        self.register("two", start)
        self.register(ORDERED, start)

    def teardown(self) -> None:
        for bus in self.buses:
            bus.store.close()
        self.server.close()

    # What is done

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.model.tickets)
    @rule()
    def leases_run_out(self) -> None:
        self.now = max([self.now, *(d.until for d in self.model.deliveries.values())])

    @rule(handler=handlers, start=st.sampled_from(["retained", "now"]))
    def register(self, handler: str, start: str) -> None:
        self.model.cursors.setdefault(handler, len(self.model.log) if start == "now" else 0)
        for bus in self.buses:
            bus.register(handler, start=start, now=at(self.now))

    def _known(self, handler: str) -> None:
        """As every run begins."""
        if handler not in self.model.cursors:
            self.register(handler, "retained")

    @rule(handler=handlers)
    def forget_handler(self, handler: str) -> None:
        right = self.model.forget(handler)
        for bus in self.buses:
            assert bus.forget_handler(handler) is right

    @rule(handler=handlers)
    def rewind(self, handler: str) -> None:
        if handler in self.model.cursors:
            self.model.cursors[handler] = 0
        for bus in self.buses:
            bus.rewind(handler)

    @rule(new=new_events)
    def enqueue(self, new: list[tuple[str, int, str | None, str | None]]) -> None:
        events, right = [], []
        for type_name, priority, key, order_key in new:
            self.serial += 1
            # Ids fall as positions grow: they must not decide the order.
            name = f"e{1000 - self.serial}"
            right.append(key is None or key not in self.model.keys)
            if key is not None:
                self.model.keys.add(key)
            if right[-1]:
                item = Item(name, type_name, priority, name, order_key=order_key)
                self.model.log.append(item)
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
        self._known(handler)
        until = self.now + lease
        taken = self.model.claim(handler, session, self.now, until, limit, max_attempts)
        right = []
        for ticket in taken:
            pair = self.model.tickets[ticket]
            delivery = self.model.deliveries[pair]
            right.append((*pair, at(until), delivery.attempts, delivery.generation))
        for bus, known in zip(self.buses, self.claims, strict=True):
            wanted = request(
                handler,
                now=at(self.now),
                until=at(until),
                types=TYPES[handler],
                session=session,
                limit=limit,
                max_attempts=max_attempts,
            )
            found = self._claimed(bus, wanted)
            names = named(bus)
            assert [(names[c.event.id], c.handler_id, *c[3:6]) for c in found] == right
            known += found

    def _claimed(self, bus: Bus, wanted: ClaimRequest, look: int = 1000) -> list[Claim]:
        """Claim as a handler does: one that keeps order looks at what is new before."""
        if wanted.handler_id == ORDERED:
            keys = {i.name: i.order_key for i in self.model.log}
            new = bus.unseen(ORDERED, wanted.types, look)
            wanted = replace(wanted, order_keys={e.id: keys[e.id] for e in new})
        with bus.store.write(bus.name) as tx:
            taken: list[Claim] = tx.events.claim(wanted).taken
        return taken

    @rule(look=st.integers(1, 3))
    def look_ahead(self, look: int) -> None:
        """The handler that keeps order looks at some of what is new, and claims nothing."""
        self._known(ORDERED)
        self.model.hand_out(ORDERED, look)
        for bus in self.buses:
            wanted = request(ORDERED, now=at(self.now), types=TYPES[ORDERED], limit=0)
            assert self._claimed(bus, wanted, look) == []

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
    @rule(picks=picks, more=st.integers(1, 9))
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

    @rule(
        picks=st.none() | picks,
        handler=st.none() | handlers,
        only_dead=st.sampled_from([False, True]),
    )
    def redeliver(self, picks: list[int] | None, handler: str | None, only_dead: bool) -> None:
        names = None if picks is None else [i.name for i in self.model.log[: max(picks) + 1]]
        right = self.model.redeliver(names, handler, only_dead)
        for bus in self.buses:
            wanted = [i for i, n in named(bus).items() if n in (names or ())]
            chosen = None if names is None else wanted
            options = {"event_ids": chosen, "handler_id": handler, "only_dead": only_dead}
            assert bus.redeliver(**options) == right

    # What is true after every step

    @invariant()
    def the_log_is_the_same(self) -> None:
        right = [(i.name, i.type, i.priority, i.root, i.cause) for i in self.model.log]
        for bus in self.buses:
            names = named(bus)
            assert [
                (names[e.id], e.type, e.priority, e.root_event_id, e.causation_id)
                for e in reversed(bus.latest(1000))
            ] == right

    @invariant()
    def every_delivery_is_the_same(self) -> None:
        right = {
            pair: (d.shown(self.now), d.session, at(d.claimed), d.attempts, d.error)
            for pair, d in self.model.deliveries.items()
        }
        for bus in self.buses:
            names = named(bus)
            assert {
                (names[e.id], c.handler_id): (
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
            names = named(bus)
            assert [
                (names[d.event_id], d.handler_id, d.failed_at, d.attempts, d.last_error, d[-1])
                for d in bus.dead_letters(1000)
            ] == right

    @invariant()
    def the_same_is_due(self) -> None:
        for handler in self.model.cursors:
            right = bool(self.model.due(handler, self.now) or self.model.unseen(handler))
            for bus in self.buses:
                assert bus.is_due(handler, TYPES[handler], at(self.now)) is right

    @invariant()
    def the_same_claims_hold(self) -> None:
        right = [self.model.held(t, self.now) is not None for t in range(len(self.model.tickets))]
        for bus, known in zip(self.buses, self.claims, strict=True):
            with bus.store.write(bus.name) as tx:
                assert [tx.events.holds(claim, at(self.now)) for claim in known] == right


def named(bus: Bus) -> dict[str, str]:
    """The ids of events; of those that the store made itself, what they tell, by their ids."""
    names: dict[str, str] = {}
    for found in reversed(bus.latest(1000)):
        names[found.id] = found.id
        if found.type == DEAD_LETTER_TYPE:
            news = json.loads(found.payload)
            told = f"{news['handler_id']} gave up {news['event_id']}"
            again = sum(n.startswith(f"{told} (") for n in names.values())
            names[found.id] = f"{told} ({again})"
    return names


TestClaims = Claims.TestCase
# There are many rules, and most of what is worth finding takes several of them in a row.
TestClaims.settings = settings(max_examples=max(120, settings.default.max_examples))
