"""Random walks along relations: engine, evaluator and plain model agree."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st
from support.postgres import borrowed_uri

from ontologia import Session, commit_of
from property import plain
from property.declarations import ENDS, Edge, LivesAt, Node, Place, key_of
from property.plain import PlainStore, Window
from property.strategies import (
    build,
    edge,
    expression,
    histories,
    home,
    node,
    one_of,
    place,
    start,
    window,
    write,
)

HOPS: dict[str, list[tuple[Any, bool]]] = {
    "Node": [(Edge, False), (Edge, True), (LivesAt, False)],
    "Place": [(LivesAt, True)],
}
Hop = tuple[Any, bool, Any]
"""The relation, whether it is followed backwards, and a filter or None."""


def walk(r: Random, name: str, model: PlainStore) -> list[Hop]:
    """One to three hops."""
    hops: list[Hop] = []
    for _ in range(r.randint(1, 3)):
        relation, backwards = r.choice(HOPS[name])
        stored = model.frames(relation.__name__, Window("history"), ENDS[relation])
        condition = expression(r, relation, stored, depth=1) if r.random() < 0.3 else None
        hops.append((relation, backwards, condition))
        name = ENDS[relation][0 if backwards else 1]
    return hops


def plain_paths(model: PlainStore, source: type[Any], hops: list[Hop], window: Window) -> list[Any]:
    """Each path as the source and the identities of the relations, with their commits."""
    result = []
    for version in model.versions(source.__name__, window):
        moment = Window("as_of", model.moment(window, version))
        partial: list[tuple[Any, tuple[Any, ...]]] = [(version.key[0], ())]
        for relation, backwards, condition in hops:
            near, far = (1, 0) if backwards else (0, 1)
            frames = model.frames(relation.__name__, moment, ENDS[relation])
            partial = [
                (f.version.key[far], (*steps, (f.version.commit, f.version.key)))
                for node, steps in partial
                for f in frames
                if f.version.key[near] == node
                and (condition is None or plain.truth(condition, f) is True)
            ]
        result += [(version.commit, version.key, steps, end) for end, steps in partial]
    return result


@given(data=st.data())
def test_traversals_agree(data: st.DataObject) -> None:
    history = data.draw(histories(one_of(node, edge, edge, place, home), size=14))
    note(f"history: {history}")
    numbers = data.draw(st.lists(st.integers(0, 2**40), min_size=15, max_size=20), "walks")
    model = PlainStore()
    with (
        borrowed_uri() as uri,
        Session(":memory:") as engine,
        Session("memory://") as evaluator,
        Session(uri) as server,
    ):
        write(history, model, engine, evaluator, server)
        for r in map(Random, numbers):
            source, seen = r.choice([Node, Node, Place]), window(r, model)
            hops = walk(r, source.__name__, model)
            note(f"{seen}: {source.__name__} via {hops}")
            paths = plain_paths(model, source, hops, seen)
            for session in (engine, evaluator, server):
                query = start(session, source, seen)
                for relation, backwards, condition in hops:
                    conditions = [] if condition is None else [build(relation, condition)]
                    query = query.via(relation, *conditions, reverse=backwards)
                check(query, paths, model, hops, seen)


def check(
    query: Any,
    paths: list[Any],
    model: PlainStore,
    hops: list[Hop],
    window: Window,
) -> None:
    far = "left_key" if hops[-1][1] else "right_key"
    target = ENDS[hops[-1][0]][0 if hops[-1][1] else 1]
    collected = query.collect()
    assert [
        (
            commit_of(p.source),
            key_of(p.source),
            tuple((commit_of(r), key_of(r)) for r in p.relations),
            getattr(p.relations[-1], far),
        )
        for p in collected
    ] == paths
    assert query.count() == len(paths)

    # The entity at the end is the one of the moment; reached once however many paths lead there.
    reached = []
    for path, (commit, _, _, end) in zip(collected, paths, strict=True):
        at = commit if window.mode == "history" else model.moment(window)
        version = model.state(at).get((target, (end,)))
        if version is None:
            assert path.target is None
            continue
        assert commit_of(path.target) == version.commit
        assert plain.exact(path.target.model_dump()) == plain.exact(version.fields)
        if (version.commit, end) not in reached:
            reached.append((version.commit, end))
    alone = query.without_relations()
    assert [(commit_of(e), e.id) for e in alone.collect()] == reached
    assert alone.count() == len(reached)
