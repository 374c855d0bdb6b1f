"""Faults on purpose: write transactions that break in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ontologia import Session


class Fault(Exception):
    """What the broken store raises."""


class _Breaking:
    """A transaction whose one method does its work and then fails."""

    def __init__(self, transaction: Any, method: str, fault: type[BaseException]) -> None:
        self._transaction, self._method, self._fault = transaction, method, fault

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._transaction, name)
        head, _, rest = self._method.partition(".")
        if name == head and rest:
            return _Breaking(found, rest, self._fault)
        if name != self._method:
            return found

        def broken(*args: Any, **kwargs: Any) -> Any:
            found(*args, **kwargs)
            raise self._fault(name)

        return broken


@contextmanager
def break_store(
    session: Session, method: str, fault: type[BaseException] = Fault
) -> Iterator[None]:
    """Within this, write transactions fail after that method; ``end``: just before they end."""
    store = session._store
    original = store.write

    @contextmanager
    def write(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with original(*args, **kwargs) as transaction:
            yield _Breaking(transaction, method, fault)
            if method == "end":
                raise fault(method)

    store.write = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.write = original  # type: ignore[method-assign]
