"""Commits: queued intents reconciled with what is stored, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from uuid_utils.compat import uuid7

from ontologia.clock import Clock
from ontologia.errors import (
    BatchSizeExceededError,
    Failure,
    LeaseExpiredError,
    SchemaError,
    ValidationError,
)
from ontologia.model.canonical import datetime_text, text
from ontologia.model.codec import Row
from ontologia.model.entity import Entity, Relation
from ontologia.model.event import Event, event_payload
from ontologia.model.spec import TypeSpec
from ontologia.state.schema import Types
from ontologia.storage.base import Addition, Replacement, Transaction, Transactions, TypeId
from ontologia.storage.events import Claim, EventRecord


@dataclass
class UnitOfWork:
    """What is queued for the next commit: the wanted rows by identity, and metadata."""

    rows: dict[TypeSpec, dict[Row, Row]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def clear(self) -> None:
        """Forget everything."""
        self.rows.clear()
        self.metadata.clear()

    def add(self, types: Types, obj: Any) -> None:
        """Queue an object or several, as they are now; none of them if one is not storable."""
        several = isinstance(obj, Iterable) and not isinstance(obj, str | bytes | type | Mapping)
        objects: Iterable[Any] = obj if several else (obj,)
        fresh: dict[TypeSpec, dict[Row, Row]] = {}
        for cls, group in groupby(objects, type):
            if not issubclass(cls, Entity | Relation):
                raise _not_stateful(next(group))
            spec = types.add(cls)
            spec.rows(group, fresh.setdefault(spec, {}))  # noqa: B031 (read here, or raised)
        self._merge(fresh)

    def _merge(self, fresh: Mapping[TypeSpec, dict[Row, Row]]) -> None:
        for spec, rows in fresh.items():
            present = self.rows.get(spec)
            if present is None:
                present = self.rows[spec] = self._converted(spec)
            present.update(rows)

    def _converted(self, spec: TypeSpec) -> dict[Row, Row]:
        """What another class of the same type queued: a reloaded module declares types again."""
        for other in list(self.rows):
            if (other.kind, other.name) != (spec.kind, spec.name):
                continue
            if other.fingerprint != spec.fingerprint:
                raise SchemaError(
                    f"two different classes of the type {spec.name!r} are used in one commit.",
                    fix="commit() or discard() before the type is declared anew.",
                )
            order = [other.position[f.name] for f in spec.fields]
            return {k: tuple(r[i] for i in order) for k, r in self.rows.pop(other).items()}
        return {}

    def absorb(self, other: UnitOfWork) -> None:
        """Take over what another unit queued."""
        self._merge(other.rows)
        self.metadata.update(other.metadata)
        other.rows, other.metadata = {}, {}

    def annotate(self, key: str, value: str) -> None:
        """Attach metadata to the next commit."""
        for name, item in (("key", key), ("value", value)):
            try:
                if not isinstance(item, str):
                    raise ValueError("commit metadata is text")
                text(item)
            except ValueError as error:
                raise ValidationError(
                    "commit metadata", [Failure(name, item, str(error))]
                ) from None
        self.metadata[key] = value


class Outgoing(NamedTuple):
    """An event to enqueue: its payload, and the key by which it exists once."""

    event: Event
    payload: str
    dedupe_key: str | None = None


def outgoing(event: object) -> list[Outgoing]:
    """Events as they leave a session; raises ValidationError."""
    return [Outgoing(e, event_payload(e)) for e in as_events(event)]


def as_events(event: object) -> Sequence[Event]:
    """One event, several, or none, as a sequence; raises ValidationError."""
    if event is None:
        return ()
    several = isinstance(event, Iterable) and not isinstance(event, str | bytes | Mapping)
    events: list[Any] = list(event) if several else [event]  # type: ignore[call-overload]
    for item in events:
        if not isinstance(item, Event):
            raise ValidationError(
                "commit",
                [Failure("event", item, "not an event")],
                "pass an instance of an Event class, or a list of them.",
            )
    return events


def _not_stateful(obj: object) -> ValidationError:
    fix = "pass instances of your Entity and Relation classes."
    if isinstance(obj, Event):
        fix = "pass events to commit(event=...)."
    elif isinstance(obj, type):
        fix = f"pass an instance: {obj.__name__}(...)."
    return ValidationError(
        "ensure", [Failure("object", obj, "neither an entity nor a relation")], fix
    )


class Committer:
    """Turns units of work into commits."""

    def __init__(
        self,
        store: Transactions,
        namespace: str,
        types: Types,
        *,
        session_id: str,
        clock: Clock,
        max_batch_size: int,
    ) -> None:
        self._store, self._namespace, self._types = store, namespace, types
        self._session_id, self._clock, self._max_batch_size = session_id, clock, max_batch_size

    def commit(
        self,
        unit: UnitOfWork,
        outgoing: Sequence[Outgoing],
        *,
        claim: Claim | None = None,
        ack: bool = False,
    ) -> int | None:
        """Write the difference and the events; the commit id, None if no state changed.

        Under a claim, only while it holds its lease; ``ack`` finishes the claim as well.
        """
        size = len(unit)
        if size > self._max_batch_size:
            raise BatchSizeExceededError(size, self._max_batch_size)
        if not size and not outgoing and not ack:
            self._check(claim)
            unit.clear()
            return None
        now = datetime_text(self._clock.now())

        def body(tx: Transaction) -> tuple[int | None, list[EventRecord], list[bool]]:
            if claim is not None:
                held = tx.events.ack([claim], now)[0] if ack else tx.events.holds(claim, now)
                if not held:
                    raise LeaseExpiredError(claim.event.id, claim.handler_id)
            commit_id = self._reconcile(tx, unit, now)
            records = [self.record(o, now, claim, commit_id) for o in outgoing]
            return commit_id, records, tx.events.enqueue(records) if records else []

        commit_id, records, new = self._store.transact(self._namespace, body)
        unit.clear()
        self.fill_in(outgoing, records, new)
        if records:
            self._store.signal.notify()
        return commit_id

    def _check(self, claim: Claim | None) -> None:
        """A commit of nothing, too, tells a handler that its lease ran out."""
        if claim is not None:
            with self._store.read(self._namespace) as snapshot:
                if not snapshot.events.holds(claim, datetime_text(self._clock.now())):
                    raise LeaseExpiredError(claim.event.id, claim.handler_id)

    def fill_in(
        self, outgoing: Sequence[Outgoing], records: Sequence[EventRecord], new: Sequence[bool]
    ) -> None:
        """Tell event objects what the store knows of them, unless they were there already."""
        for (event, _, _), record, is_new in zip(outgoing, records, new, strict=True):
            if not is_new:
                continue
            event.id, event.created_at = record.id, record.created_at
            event.root_event_id, event.chain_depth = record.root_event_id, record.chain_depth
            event.causation_id = record.causation_id

    def record(
        self, outgoing: Outgoing, now: str, claim: Claim | None, commit_id: int | None
    ) -> EventRecord:
        """An event as it will be stored; its lineage goes on from the claimed event."""
        event_id = str(uuid7())
        cause = None if claim is None else claim.event
        return EventRecord(
            event_id,
            self._namespace,
            outgoing.event.__event_type__,
            outgoing.payload,
            now,
            outgoing.event.priority,
            event_id if cause is None else cause.root_event_id,
            0 if cause is None else cause.chain_depth + 1,
            None if cause is None else cause.id,
            commit_id,
            outgoing.dedupe_key,
        )

    def _reconcile(self, tx: Transaction, unit: UnitOfWork, now: str) -> int | None:
        versions = self._types.prepare(tx, unit.rows, now)
        tx.lock(unit.rows)
        changes = []
        touched: list[TypeId] = []
        for spec, rows in unit.rows.items():
            added, replaced = delta(tx, spec, rows)
            if added or replaced:
                changes.append((spec, added, replaced))
                touched.append((spec.kind, spec.name))
        if not changes:
            return None
        metadata = {**unit.metadata, "namespace": self._namespace}
        commit_id = tx.add_commit(now, self._session_id, metadata, touched)
        for spec, added, replaced in changes:
            tx.write(spec, versions[spec], commit_id, added, replaced)
        return commit_id


def delta(
    tx: Transaction, spec: TypeSpec, rows: dict[Row, Row]
) -> tuple[list[Addition], list[Replacement]]:
    """The rows that are new and those that differ, found with one read."""
    k, payload = spec.key_size, spec.codec.payload
    present: list[Row] = []
    replaced: list[Replacement] = []
    for stored in tx.current(spec, rows):
        key = stored[:k]
        wanted = rows[key]
        if stored[:-1] != wanted:
            replaced.append((wanted, payload(wanted), stored[-1]))
        present.append(key)
    if len(present) == len(rows):
        return [], replaced
    known = set(present)
    return [(row, payload(row)) for key, row in rows.items() if key not in known], replaced
