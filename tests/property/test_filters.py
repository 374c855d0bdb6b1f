"""Random filters over random data: engine, evaluator and plain model agree."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support.postgres import borrowed_uri

from ontologia import Session
from property import plain
from property.declarations import ENDS, Edge, LivesAt, Node
from property.plain import PlainStore, Window
from property.strategies import (
    build,
    edge,
    expected,
    expression,
    found,
    histories,
    home,
    node,
    one_of,
    place,
    start,
    window,
    write,
)

DATA: dict[Any, Any] = {
    Node: node,
    Edge: one_of(node, edge, edge),
    LivesAt: one_of(node, place, home, home),
}
EVERYTHING = Window("history")


@pytest.mark.parametrize("cls", [Node, Edge, LivesAt])
@given(data=st.data())
def test_filters_agree_everywhere_and_at_all_times(cls: Any, data: st.DataObject) -> None:
    history = data.draw(histories(DATA[cls]))
    note(f"history: {history}")
    numbers = data.draw(st.lists(st.integers(0, 2**40), min_size=30, max_size=40), "queries")
    model = PlainStore()
    with (
        borrowed_uri() as uri,
        Session(":memory:") as engine,
        Session("memory://") as evaluator,
        Session(uri) as server,
    ):
        write(history, model, engine, evaluator, server)
        stored = model.frames(cls.__name__, EVERYTHING, ENDS[cls])
        for r in map(Random, numbers):
            plain_filter, seen = expression(r, cls, stored), window(r, model)
            condition = build(cls, plain_filter)
            frames = model.frames(cls.__name__, seen, ENDS[cls])
            right = [f for f in frames if plain.truth(plain_filter, f) is True]
            for session in (engine, evaluator, server):
                query = start(session, cls, seen).where(condition)
                case = f"{session}, {seen}: {condition!r}"
                assert found(query) == expected(right), case
                assert query.count() == len(right), case
