"""Sessions on every backend.

A test that asks for ``session`` or ``uri`` runs on all backends; one that asks for
``open_session`` runs on those whose stores several sessions can share, and one that asks for
``engine`` on those that run queries themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.backends import BACKENDS, Backend, OpenSession
from support.clock import FakeClock

from ontologia import Session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backends", help="backends to test, as package.module:LIST")


def _backends(config: pytest.Config) -> list[Backend]:
    place = config.getoption("--backends", default=None)
    if not place:
        return BACKENDS
    module, _, name = place.partition(":")
    return list(getattr(import_module(module), name))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        several = "open_session" in metafunc.fixturenames
        chosen = [b for b in _backends(metafunc.config) if b.shared or not several]
        if "engine" in metafunc.fixturenames:
            chosen = [b for b in chosen if b.capabilities.query_engine]
        for mark in metafunc.definition.iter_markers("needs"):
            chosen = [b for b in chosen if b.can(mark.args[0])]
        metafunc.parametrize("backend", chosen, ids=[b.name for b in chosen])


@pytest.fixture
def clock() -> FakeClock:
    """The clock of every session that these fixtures open; it moves only when told to."""
    return FakeClock()


@pytest.fixture
def new_uri(backend: Backend, tmp_path: Path) -> Callable[[], str]:
    """A function that gives the URI of another fresh, empty store at each call."""
    return lambda: backend.new_uri(tmp_path)


@pytest.fixture
def uri(new_uri: Callable[[], str]) -> str:
    """The store of this test."""
    return new_uri()


@pytest.fixture
def _opener(uri: str, clock: FakeClock) -> Iterator[OpenSession]:
    opened: list[Session] = []

    def open_session(namespace: str | None = None, **options: Any) -> Session:
        session = Session(uri, namespace, **{"clock": clock, **options})
        opened.append(session)
        return session

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def open_session(_opener: OpenSession) -> OpenSession:
    """``open_session(namespace=None, **options)``: another session on the store of this test.

    All are closed at the end. ``session``, if asked for as well, is on the same store.
    """
    return _opener


@pytest.fixture
def session(_opener: OpenSession) -> Session:
    """A session on the store of this test."""
    return _opener()
