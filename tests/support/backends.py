"""The backends that the conformance suite runs against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from ontologia import Session
from ontologia.storage.base import Capabilities
from support import postgres

OpenSession = Callable[..., Session]
"""``open_session(namespace=None, **options)``."""


@dataclass(frozen=True)
class Backend:
    """One way to store things: how to get a URI of a fresh, empty store."""

    name: str
    new_uri: Callable[[Path], str]
    """Called with a directory that belongs to the test."""

    shared: bool = True
    """Whether several sessions that open one URI see the same store."""

    def can(self, what: str) -> bool:
        """Whether a store of this kind can do something: a capability, or ``shared``."""
        return self.shared if what == "shared" else bool(getattr(self.capabilities, what))

    @cached_property
    def capabilities(self) -> Capabilities:
        """What a store of this kind says that it can do."""
        with TemporaryDirectory() as directory, Session(self.new_uri(Path(directory))) as session:
            return session.capabilities


BACKENDS = [
    Backend("memory", lambda directory: f"memory://{uuid4()}"),
    Backend("sqlite-file", lambda directory: f"sqlite:///{directory / f'{uuid4()}.db'}"),
    Backend("sqlite-memory", lambda directory: ":memory:", shared=False),
    Backend("postgres", lambda directory: postgres.new_uri()),
]

POSTGRES = [b for b in BACKENDS if b.name == "postgres"]
