"""Random orders, cuts, groups and aggregates: engine, evaluator and plain model agree."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support.postgres import borrowed_uri

from ontologia import Session, count, count_where
from property import plain
from property.declarations import ENDS, Edge, Node
from property.plain import Aggregate, Condition, PlainStore, Ref
from property.strategies import (
    CONSTANTS,
    EDGE_FIELDS,
    FIXED,
    OPERATOR_FUNCTIONS,
    build,
    build_ref,
    constant,
    edge,
    expected,
    expression,
    found,
    histories,
    node,
    one_of,
    start,
    window,
    write,
)

DATA: dict[Any, Any] = {Node: node, Edge: one_of(node, edge, edge)}
SCALARS = [(name, kind) for name, kind in FIXED if kind not in ("any", "whole")]
UNORDERED = ("bool", "choice")
numbers = st.lists(st.integers(0, 2**40), min_size=15, max_size=20)


def scalar_ref(r: Random, cls: Any) -> Ref:
    if cls is Edge and r.random() < 0.4:
        return Ref(*r.choice(EDGE_FIELDS))
    side = "own" if cls is Node else r.choice(["left", "right"])
    if r.random() < 0.1:
        return Ref("box", "decimal", ("price",), side=side)
    return Ref(*r.choice(SCALARS), side=side)


def some_ref(r: Random, cls: Any, suits: Callable[[Ref], bool]) -> Ref:
    while not suits(ref := scalar_ref(r, cls)):
        pass
    return ref


def an_aggregate(r: Random, cls: Any, frames: list[plain.Frame]) -> Aggregate:
    function = r.choice(["count", "count_where", "sum", "avg", "min", "max", "avg_len"])
    if function == "count":
        return Aggregate("count")
    if function == "count_where":
        return Aggregate(function, predicate=expression(r, cls, frames, depth=1))
    if function == "avg_len":
        side = "own" if cls is Node else r.choice(["left", "right"])
        return Aggregate(function, Ref(r.choice(["tags", "prices"]), "", side=side))
    if function == "avg":
        # The mean of numbers beyond 2**53 may be rounded; these are exact.
        names = ("real", "amount", "weight", "slot")
        return Aggregate(function, some_ref(r, cls, lambda ref: ref.field in names))
    if function == "sum":
        return Aggregate(function, some_ref(r, cls, lambda ref: ref.kind in ("number", "decimal")))
    return Aggregate(function, some_ref(r, cls, lambda ref: ref.kind not in UNORDERED))


def a_condition(r: Random, cls: Any, frames: list[plain.Frame]) -> Condition:
    item = an_aggregate(r, cls, frames)
    while item.ref is not None and item.ref.kind == "datetime":
        # Python does not compare the least of naive and aware times with anything.
        item = an_aggregate(r, cls, frames)
    value: Any = r.randint(0, 3)
    if item.ref is not None and item.ref.kind in CONSTANTS:
        value = constant(r, item.ref, frames)
    return Condition(item, r.choice(sorted(OPERATOR_FUNCTIONS)), value, r.random() < 0.3)


def build_aggregate(cls: Any, item: Aggregate) -> Any:
    if item.function == "count":
        return count()
    if item.function == "count_where":
        return count_where(build(cls, item.predicate))
    assert item.ref is not None
    return getattr(build_ref(cls, item.ref), item.function)()


def build_condition(cls: Any, condition: Condition) -> Any:
    compare = OPERATOR_FUNCTIONS[condition.op]
    built = compare(build_aggregate(cls, condition.item), condition.constant)
    return ~built if condition.negated else built


def total(query: Any, cls: Any, item: Aggregate) -> Any:
    """An aggregate over everything, not per group."""
    if item.function == "count":
        return query.count()
    if item.function == "count_where":
        return query.count_where(build(cls, item.predicate))
    assert item.ref is not None
    return getattr(query, item.function)(build_ref(cls, item.ref))


@pytest.mark.parametrize("cls", [Node, Edge])
@given(data=st.data())
def test_orders_and_cuts_agree(cls: Any, data: st.DataObject) -> None:
    history = data.draw(histories(DATA[cls]))
    note(f"history: {history}")
    model = PlainStore()
    with (
        borrowed_uri() as uri,
        Session(":memory:") as engine,
        Session("memory://") as evaluator,
        Session(uri) as server,
    ):
        write(history, model, engine, evaluator, server)
        for r in map(Random, data.draw(numbers, "queries")):
            seen = window(r, model)
            keys = [(scalar_ref(r, cls), r.random() < 0.5) for _ in range(r.randint(0, 3))]
            limit, offset = r.choice([None, None, 0, 1, 3]), r.choice([0, 0, 1, 2])
            case = f"{seen}: {keys} limit {limit} offset {offset}"
            frames = plain.ordered(model.frames(cls.__name__, seen, ENDS[cls]), keys)
            right = frames[offset : None if limit is None else offset + limit]
            built = [(build_ref(cls, ref), descending) for ref, descending in keys]
            for session in (engine, evaluator, server):
                query = start(session, cls, seen).offset(offset)
                query = query.order_by(*(k.desc() if down else k for k, down in built))
                query = query if limit is None else query.limit(limit)
                assert found(query) == expected(right), f"{session}, {case}"


@pytest.mark.parametrize("cls", [Node, Edge])
@given(data=st.data())
def test_groups_and_aggregates_agree(cls: Any, data: st.DataObject) -> None:
    history = data.draw(histories(DATA[cls]))
    note(f"history: {history}")
    model = PlainStore()
    with (
        borrowed_uri() as uri,
        Session(":memory:") as engine,
        Session("memory://") as evaluator,
        Session(uri) as server,
    ):
        write(history, model, engine, evaluator, server)
        for r in map(Random, data.draw(numbers, "queries")):
            seen = window(r, model)
            frames = model.frames(cls.__name__, seen, ENDS[cls])
            keys = list({(k := scalar_ref(r, cls)).field + k.side: k for _ in range(2)}.values())
            items = {f"column {i}": an_aggregate(r, cls, frames) for i in range(r.randint(0, 3))}
            having = [a_condition(r, cls, frames) for _ in range(r.choice([0, 0, 1, 2]))]
            case = f"{seen}: by {keys}, {items}, having {having}"
            right = plain.grouped(frames, keys, items, having)
            for session in (engine, evaluator, server):
                query = start(session, cls, seen)
                grouping = query.group_by(*(build_ref(cls, k) for k in keys))
                grouping = grouping.having(*(build_condition(cls, c) for c in having))
                rows = grouping.agg(**{n: build_aggregate(cls, i) for n, i in items.items()})
                assert [list(row.values()) for row in rows] == right, f"{session}, {case}"
                for item in items.values():
                    value = total(query, cls, item)
                    assert value == plain.aggregate(item, frames), f"{session}, {seen}: {item}"
