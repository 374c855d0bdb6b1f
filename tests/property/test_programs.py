"""Random programs on every backend, step by step against the plain model."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.postgres import borrowed_uri

from ontologia import OntologiaConfig, Session
from property import plain
from property.declarations import ENDS, Edge, LivesAt, Node, Place, key_of
from property.plain import PlainStore, Window
from property.strategies import (
    anything,
    build,
    expected,
    expression,
    found,
    numbered,
    start,
    window,
)

TYPES = [Node, Place, Edge, LivesAt]
QUICK = OntologiaConfig(sqlite_synchronous="NORMAL")


class Programs(RuleBasedStateMachine):
    """ensure, commit, discard, reopen and query on every backend, and in the model.

    Each store also has a second namespace, written in between, that must not shine through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = PlainStore()
        self.stranger = PlainStore()
        self.directory = Path(tempfile.mkdtemp())
        self.server = ExitStack()
        self.uris = [
            f"sqlite:///{self.directory / 'store.db'}",
            f"memory://{uuid4()}",
            self.server.enter_context(borrowed_uri()),
        ]
        self.sessions: list[Session] = []
        self.strangers: list[Session] = []
        self.numbers = [0]
        """The id of each commit of the model; the store counts those of both namespaces."""
        self.head = 0

    @initialize()
    def open(self) -> None:
        self.sessions = [Session(uri, config=QUICK) for uri in self.uris]
        self.strangers = [Session(uri, "stranger", config=QUICK) for uri in self.uris]

    def teardown(self) -> None:
        for session in self.sessions + self.strangers:
            session.close()
        self.server.close()
        shutil.rmtree(self.directory)

    @rule(items=st.lists(numbered(anything), min_size=1, max_size=8))
    def ensure(self, items: list[Any]) -> None:
        for obj in items:
            self.model.ensure(type(obj).__name__, key_of(obj), obj.model_dump())
        for session in self.sessions:
            session.ensure(items)

    @rule(items=st.lists(numbered(anything), min_size=3, max_size=8))
    def ensure_and_commit(self, items: list[Any]) -> None:
        self.ensure(items)
        self.commit()

    @rule(cls=st.sampled_from(TYPES))
    def ensure_what_is_there_already(self, cls: Any) -> None:
        for version in self.model.versions(cls.__name__, Window()):
            self.model.ensure(cls.__name__, version.key, version.fields)
        for session in self.sessions:
            session.ensure(start(session, cls, Window()).collect())

    @rule()
    def commit(self) -> None:
        expected_id = self.model.commit()
        if expected_id is not None:
            self.head += 1
            self.numbers.append(self.head)
            expected_id = self.head
        for session in self.sessions:
            assert session.commit() == expected_id
            assert session.pending == 0

    @rule()
    def discard(self) -> None:
        self.model.discard()
        for session in self.sessions:
            session.discard()

    @rule(obj=numbered(anything))
    def a_stranger_commits(self, obj: Any) -> None:
        self.stranger.ensure(type(obj).__name__, key_of(obj), obj.model_dump())
        expected_id = self.stranger.commit()
        if expected_id is not None:
            self.head += 1
            expected_id = self.head
        for session in self.strangers:
            session.ensure(obj)
            assert session.commit() == expected_id

    @rule()
    def reopen(self) -> None:
        """What is queued is forgotten; what is committed stays."""
        self.model.discard()
        fresh = [Session(uri, config=QUICK) for uri in self.uris]
        for session in self.sessions:
            session.close()
        self.sessions = fresh

    def _window(self, window: Window) -> Window:
        """The window with the store's number of the model's commit."""
        if window.mode == "latest":
            return window
        known = window.commit < len(self.numbers)
        return Window(window.mode, self.numbers[window.commit] if known else self.head + 7)

    def _rows(self, frames: list[plain.Frame]) -> list[Any]:
        return [(self.numbers[commit], *rest) for commit, *rest in expected(frames)]

    @rule(number=st.integers(0, 2**40))
    def query(self, number: int) -> None:
        r = Random(number)
        for cls in TYPES:
            seen = window(r, self.model)
            frames = self.model.frames(cls.__name__, seen, ENDS[cls])
            condition = expression(r, cls, frames)
            right = [f for f in frames if plain.truth(condition, f) is True]
            for session in self.sessions:
                query = start(session, cls, self._window(seen)).where(build(cls, condition))
                assert found(query) == self._rows(right)
                assert query.count() == len(right)

    @rule(number=st.integers(0, 2**40), cls=st.sampled_from(TYPES))
    def get(self, number: int, cls: Any) -> None:
        seen = window(Random(number), self.model)
        newest = {v.key: v for v in self.model.versions(cls.__name__, seen)}
        for key in {v.key for v in self.model.versions(cls.__name__, Window("history"))}:
            for session in self.sessions:
                obj = start(session, cls, self._window(seen)).get(*key)
                if key not in newest:
                    assert obj is None
                else:
                    assert plain.exact(obj.model_dump()) == plain.exact(newest[key].fields)

    @rule(a=st.integers(0, 6), b=st.integers(0, 6))
    def compare_two_commits(self, a: int, b: int) -> None:
        if not a < b < len(self.numbers):
            return
        before, after = self.model.state(a), self.model.state(b)
        added = {i for i in after if i not in before}
        changed = {
            i
            for i in after
            if i in before and plain.exact(after[i].fields) != plain.exact(before[i].fields)
        }
        for session in self.sessions:
            diff = session.diff(self.numbers[a], self.numbers[b])
            assert {self._identity(c) for c in diff.added} == added
            assert {self._identity(c) for c in diff.changed} == changed

    @staticmethod
    def _identity(change: Any) -> tuple[str, tuple[Any, ...]]:
        return change.type, change.key if isinstance(change.key, tuple) else (change.key,)

    @rule()
    def list_commits(self) -> None:
        newest_first = self.numbers[:0:-1]
        for session in self.sessions:
            assert [c.commit_id for c in session.list_commits(100)] == newest_first
            for number, changed in zip(self.numbers[1:], self.model.commits, strict=True):
                touched = session.list_commit_changes(number)
                assert sorted(c["type"] for c in touched) == sorted(name for name, _ in changed)

    @rule()
    def verify(self) -> None:
        for session in self.sessions:
            report = session.verify()
            assert report.ok, report.problems

    @invariant()
    def the_same_is_true_everywhere(self) -> None:
        for cls in TYPES:
            right = self._rows(self.model.frames(cls.__name__, Window(), ENDS[cls]))
            for session in self.sessions:
                assert found(start(session, cls, Window())) == right


TestPrograms = Programs.TestCase
