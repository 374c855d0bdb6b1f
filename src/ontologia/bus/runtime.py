"""The runtime: deliveries claimed, run, and finished or given back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ontologia.bus.context import CURRENT, Ambient, HandlerContext
from ontologia.bus.handlers import Handler, in_event_loop, order_text
from ontologia.bus.hooks import EventHooks
from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import BusError, EventLoopLimitError, LeaseExpiredError
from ontologia.model.canonical import datetime_text, loads
from ontologia.model.event import Event
from ontologia.state.commit import Committer, Outgoing, UnitOfWork
from ontologia.state.schema import Types
from ontologia.storage.base import Store, Transaction
from ontologia.storage.events import Claim, ClaimRequest, Claims, EventRecord

if TYPE_CHECKING:
    from ontologia.session import Session

log = logging.getLogger(__name__)

_JITTER_MS = 100
# How many new events are looked at together for a handler that keeps order.
_ORDERED = 1_000


@dataclass(frozen=True)
class Finished:
    """A handler that succeeded and waits to be acknowledged, with what it emitted."""

    claim: Claim
    buffered: Sequence[Outgoing]
    at: str
    """When it succeeded. The lease must have held then; that nobody else has claimed the event
    since is what the token tells when the acknowledgement is written, a moment later."""


class Runtime:
    """Delivers events of one namespace to handlers."""

    def __init__(
        self,
        session: Session,
        store: Store,
        committer: Committer,
        types: Types,
        clock: Clock,
        config: OntologiaConfig,
        hooks: EventHooks,
        ambient: Ambient,
    ) -> None:
        self._session, self._store, self._committer = session, store, committer
        self._types, self._clock, self._config = types, clock, config
        self._hooks, self._ambient = hooks, ambient
        self._namespace = session.namespace
        self._leases: dict[str, str] = {}
        self._full: set[str] = set()
        self._coroutines = threading.local()

    def _now(self) -> datetime:
        return self._clock.now()

    def _later(self, now: datetime, milliseconds: float) -> str:
        return datetime_text(now + timedelta(milliseconds=milliseconds))

    def lease_ms(self, handler: Handler) -> int:
        """How long a claim of a handler lasts."""
        return handler.lease_ms or self._config.event_claim_lease_ms

    def max_attempts(self, handler: Handler) -> int:
        """How often a handler may fail."""
        return handler.max_attempts or self._config.event_max_attempts

    @property
    def poll_seconds(self) -> float:
        """How long to wait before the store is asked again."""
        return self._config.event_poll_interval_ms / 1000

    def lease_until(self, claim: Claim) -> str:
        """Until when a claim lasts, as far as it was renewed."""
        return self._leases.get(claim.token, claim.lease_until)

    def has_lapsed(self, claim: Claim) -> bool:
        """Whether the lease of a claim ran out."""
        return self.lease_until(claim) <= datetime_text(self._now())

    def register(self, handlers: Sequence[Handler]) -> None:
        """Make handlers known to the store."""
        now = datetime_text(self._now())

        def body(tx: Transaction) -> None:
            for handler in handlers:
                types = (handler.event_type,)
                tx.events.register_handler(handler.handler_id, handler.start, now, types)

        self._store.transact(self._namespace, body)

    # Claiming

    def claim(self, handler: Handler, limit: int) -> Claims:
        """Take what is due for a handler."""
        # Where there was more than could be taken, there is no need to look first.
        if handler.handler_id not in self._full and not self._is_due(handler):
            return Claims([], [])
        keys = None
        if handler.ordered_by is not None:
            # All that is new must be in its place before the first of a key can be told.
            while len(keys := self._order_keys(handler)) == _ORDERED:
                self._claim(handler, 0, keys)
        claims = self._claim(handler, limit, keys)
        if len(claims.taken) == limit:
            self._full.add(handler.handler_id)
        else:
            self._full.discard(handler.handler_id)
        try:
            for claim in claims.taken:
                self._hooks.claimed(claim.handler_id, claim.event)
        except BaseException:  # an exit inside a hook
            self.hand_back(claims.taken)
            raise
        for record in claims.dead:
            error = LeaseExpiredError(record.id, handler.handler_id)
            self._hooks.dead_lettered(handler.handler_id, record, error)
        if claims.dead:
            self._store.signal.notify()
        return claims

    def _is_due(self, handler: Handler) -> bool:
        now = datetime_text(self._now())
        with self._store.read(self._namespace) as snapshot:
            return snapshot.events.is_due(handler.handler_id, (handler.event_type,), now)

    def _order_keys(self, handler: Handler) -> dict[str, str | None]:
        with self._store.read(self._namespace) as snapshot:
            types = (handler.event_type,)
            unseen = snapshot.events.unseen(handler.handler_id, types, _ORDERED)
        return {record.id: self._order_key(handler, record) for record in unseen}

    def _claim(
        self, handler: Handler, limit: int, order_keys: dict[str, str | None] | None
    ) -> Claims:
        now = self._now()
        request = ClaimRequest(
            handler.handler_id,
            (handler.event_type,),
            self._session.session_id,
            limit,
            datetime_text(now),
            self._later(now, self.lease_ms(handler)),
            self.max_attempts(handler),
            order_keys,
        )
        return self._store.transact(self._namespace, lambda tx: tx.events.claim(request))

    def _order_key(self, handler: Handler, record: EventRecord) -> str | None:
        try:
            return self._key_of(handler, self._load(handler, record))
        except Exception:  # the handler will fail on it, and say why
            return None

    def _key_of(self, handler: Handler, event: Event) -> str | None:
        return None if handler.ordered_by is None else order_text(handler.ordered_by(event))

    def refresh(self, queue: deque[Claim], lease_ms: int) -> bool:
        """Give what waits a fresh lease if a good part of it is gone; drop what was lost.

        False if the first one was lost, so that the caller looks again.
        """
        if self.lease_until(queue[0]) > self._later(self._now(), lease_ms * 3 // 4):
            return True
        claims = list(queue)
        held = self.renew(claims, lease_ms)
        queue.clear()
        queue.extend(c for c, ok in zip(claims, held, strict=True) if ok)
        self._forget(c for c, ok in zip(claims, held, strict=True) if not ok)
        return held[0]

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[bool]:
        """Extend leases; for each claim whether it still held it."""
        now = self._now()
        until = self._later(now, lease_ms)
        held = self._store.transact(
            self._namespace,
            lambda tx: tx.events.renew(claims, now=datetime_text(now), lease_until=until),
        )
        self._leases.update({c.token: until for c, ok in zip(claims, held, strict=True) if ok})
        return held

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Return what was not started."""
        if not claims:
            return
        now = datetime_text(self._now())
        try:
            self._store.transact(self._namespace, lambda tx: tx.events.hand_back(claims, now))
        finally:
            self._forget(claims)
        self._store.signal.notify()

    def _forget(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._leases.pop(claim.token, None)

    # Running

    def run(self, handler: Handler, claim: Claim) -> Finished | None:
        """Run a handler; what is to be acknowledged, None if it failed or did so itself."""
        context: HandlerContext[Any] | None = None
        token = CURRENT.set(CURRENT.get())
        try:
            event = self._load(handler, claim.event)
            self._key_of(handler, event)
            context = HandlerContext(self._session, event, claim, self)
            CURRENT.set(context)
            result = handler.function(context)
            if inspect.isawaitable(result):
                self._await(result)
        except Exception as error:
            if context is None or not context.finished:
                self._failed(handler, claim, error)
                return None
            log.warning(
                "handler %s failed after its final commit", handler.handler_id, exc_info=error
            )
        except asyncio.CancelledError:
            why = "something that it awaited was cancelled."
            if context is None or not context.finished:
                self._failed(handler, claim, BusError("the handler was cancelled.", why=why))
                return None
        finally:
            CURRENT.reset(token)
            if context is not None:
                context.end()
        assert context is not None
        if context.finished:
            self._forget([claim])
            self._hooks.succeeded(claim.handler_id, claim.event)
            return None
        return Finished(claim, context.buffered, datetime_text(self._now()))

    def _load(self, handler: Handler, record: EventRecord) -> Event:
        event = handler.event_class.model_validate(loads(record.payload), mode="json")
        event.id, event.created_at, event.priority = record.id, record.created_at, record.priority
        event.root_event_id, event.chain_depth = record.root_event_id, record.chain_depth
        event.causation_id = record.causation_id
        return event

    def _await(self, result: Awaitable[Any]) -> None:
        """Wait for a coroutine in the event loop of this thread."""
        if in_event_loop():
            # A run that blocks somebody's event loop, with a coroutine behind a decorator.
            with ThreadPoolExecutor(1) as other:
                other.submit(copy_context().run, asyncio.run, _finished(result)).result()
            return
        runner: asyncio.Runner | None = getattr(self._coroutines, "runner", None)
        if runner is None:
            runner = self._coroutines.runner = asyncio.Runner()
        runner.run(_finished(result), context=copy_context())

    def enter(self) -> None:
        """A thread works for this run from now on."""
        self._ambient.running = True

    def leave(self) -> None:
        """A thread works for this run no more: end its event loop."""
        self._ambient.running = False
        runner: asyncio.Runner | None = getattr(self._coroutines, "runner", None)
        if runner is not None:
            self._coroutines.runner = None
            runner.close()

    def _failed(self, handler: Handler, claim: Claim, error: Exception) -> None:
        now = self._now()
        attempts = claim.attempts + 1
        dead = attempts >= self.max_attempts(handler)
        base, most = self._config.event_backoff_base_ms, self._config.event_backoff_max_ms
        delay = min(base * 2 ** min(attempts, 62), most) + random.randint(0, _JITTER_MS)  # noqa: S311
        held = self._store.transact(
            self._namespace,
            lambda tx: tx.events.release(
                claim,
                now=datetime_text(now),
                error=_text(error),
                available_at=self._later(now, delay),
                dead=dead,
            ),
        )
        self._forget([claim])
        log.warning(
            "handler %s failed on event %s",
            handler.handler_id,
            claim.event.id,
            exc_info=error,
            extra={"attempts": attempts, "dead": dead, "held": held},
        )
        if held and dead:
            self._store.signal.notify()
            self._hooks.dead_lettered(claim.handler_id, claim.event, error)
        else:
            self._hooks.failed(claim.handler_id, claim.event, error)

    def finish(self, finished: Sequence[Finished]) -> None:
        """Acknowledge what succeeded, and enqueue what it emitted, in one transaction."""
        in_time = [f for f in finished if self.lease_until(f.claim) > f.at]
        acked: list[Finished] = []
        outgoing: list[tuple[Outgoing, EventRecord]] = []
        new: list[bool] = []
        if in_time:
            acked, outgoing, new = self._store.transact(
                self._namespace, lambda tx: self._acknowledge(tx, in_time)
            )
        self._forget(f.claim for f in finished)
        self._committer.fill_in([o for o, _ in outgoing], [r for _, r in outgoing], new)
        if outgoing:
            self._store.signal.notify()
        held_tokens = {f.claim.token for f in acked}
        for item in finished:
            if item.claim.token in held_tokens:
                self._hooks.succeeded(item.claim.handler_id, item.claim.event)
            else:
                self._lost(item.claim)

    def _acknowledge(
        self, tx: Transaction, finished: Sequence[Finished]
    ) -> tuple[list[Finished], list[tuple[Outgoing, EventRecord]], list[bool]]:
        """Those that still held their claims, and what they emitted as it was stored."""
        held = tx.events.ack([f.claim for f in finished], min(f.at for f in finished))
        acked = [f for f, ok in zip(finished, held, strict=True) if ok]
        now = datetime_text(self._now())
        outgoing = [
            (o, self._committer.record(o, now, f.claim, None)) for f in acked for o in f.buffered
        ]
        new = tx.events.enqueue([record for _, record in outgoing]) if outgoing else []
        return acked, outgoing, new

    def _lost(self, claim: Claim) -> None:
        error = LeaseExpiredError(claim.event.id, claim.handler_id)
        log.warning("handler %s: %s", claim.handler_id, error)
        self._hooks.failed(claim.handler_id, claim.event, error)

    # What a handler does through its context

    def queue(self, unit: UnitOfWork, obj: Any) -> None:
        """Queue objects in a unit of work."""
        unit.add(self._types, obj)

    def commit(
        self, claim: Claim, unit: UnitOfWork, outgoing: Sequence[Outgoing], *, ack: bool
    ) -> int | None:
        """A handler's commit, under its claim."""
        return self._committer.commit(unit, outgoing, claim=claim, ack=ack)

    def check_depth(self, claim: Claim) -> None:
        """Refuse an event that would make a chain too long; raises EventLoopLimitError."""
        depth, limit = claim.event.chain_depth + 1, self._config.max_event_chain_depth
        if depth > limit:
            raise EventLoopLimitError(depth, limit, claim.event.root_event_id)

    def wake(self) -> None:
        """Let the loop look again."""
        self._store.signal.notify()


async def _finished(result: Awaitable[Any]) -> None:
    await result


def _text(error: Exception) -> str:
    """What an exception says, in a form that can be stored whatever it is."""
    name = type(error).__name__
    try:
        said = f"{name}: {error}"
    except Exception:  # its own __str__ fails
        said = name
    return said.replace("\0", "").encode("utf-8", "replace").decode()
