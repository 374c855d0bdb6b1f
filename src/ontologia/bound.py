"""BoundSession: a session that takes part in a transaction of the application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from ontologia.errors import BindError
from ontologia.model import Entity, Event, Relation
from ontologia.query.builder import Query
from ontologia.state.commit import Committer, UnitOfWork, outgoing
from ontologia.state.reading import Reader
from ontologia.state.schema import Types

Stateful = Entity | Relation[Any, Any]


class BoundSession:
    """The verbs of a session, inside the transaction that is open on a connection.

    >>> with session.bind(connection) as bound:
    ...     bound.ensure(Customer(id="c1", name="Ada"))

    What it writes appears when the owner of the connection commits, and vanishes when it is rolled
    back. It never commits, rolls back or closes the connection. As a context manager it writes
    what is queued on a clean exit, and forgets it on an exception. Like the connection, it is
    used by one thread at a time.
    """

    def __init__(
        self,
        reader: Reader,
        committer: Committer,
        types: Types,
        check: Callable[[], None],
    ) -> None:
        self._reader, self._committer, self._types = reader, committer, types
        self._check_session = check
        self._unit = UnitOfWork()
        self._closed = False

    def _check(self) -> None:
        self._check_session()
        if self._closed:
            raise BindError("the bound session has ended.", fix="bind the connection again.")

    def ensure(self, obj: Stateful | Iterable[Stateful]) -> None:
        """Queue what should be true, as it is now; the next commit writes what differs."""
        self._check()
        self._unit.add(self._types, obj)

    def add_commit_meta(self, key: str, value: str) -> None:
        """Attach metadata to the next commit."""
        self._check()
        self._unit.annotate(key, value)

    @property
    def pending(self) -> int:
        """The number of objects queued for the next commit."""
        return len(self._unit)

    def discard(self) -> None:
        """Forget what is queued; what was written belongs to the transaction."""
        self._unit.clear()

    def commit(self, *, event: Event | Sequence[Event] | None = None) -> int | None:
        """Write what differs, and the events, as a part of the caller's transaction.

        Returns the commit id, or None if no state changed. On failure nothing of it is left,
        everything stays queued, and the transaction can go on.
        """
        self._check()
        return self._committer.commit(self._unit, outgoing(event))

    def query(self) -> Query:
        """Start a query, which sees what the transaction sees."""
        self._check()
        return Query(self._reader, self._types)

    def close(self) -> None:
        """Let go of the connection; what is queued is forgotten. Idempotent."""
        self._closed = self._reader.closed = True
        self._unit.clear()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._closed:
                self.commit()
        finally:
            self.close()
