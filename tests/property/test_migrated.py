"""Random filters on a store whose types were migrated: old versions are upgraded on the way."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support.postgres import borrowed_uri

from ontologia import Entity, Field, OntologiaConfig, Session
from property import plain
from property.declarations import ENDS, Edge, Node
from property.plain import PlainStore, Window
from property.strategies import (
    build,
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


class OldNode(Entity, name="Node"):
    """What a node was before it had fields."""

    id: Field[str] = Field(primary_key=True)


QUICK = OntologiaConfig(sqlite_synchronous="NORMAL")


@pytest.mark.parametrize("cls", [Node, Edge])
@given(data=st.data())
def test_filters_agree_after_a_migration(cls: Any, data: st.DataObject) -> None:
    history = data.draw(histories(one_of(node, edge)))
    note(f"history: {history}")
    numbers = data.draw(st.lists(st.integers(0, 2**40), min_size=15, max_size=20), "queries")
    model = PlainStore()
    with tempfile.TemporaryDirectory() as directory, borrowed_uri() as server_uri:
        uris = [f"sqlite:///{Path(directory) / 'store.db'}", f"memory://{uuid4()}"]
        write([[Node(id="a"), Node(id="z")]], model)
        with (
            Session(uris[0], config=QUICK, entity_types=[Node]) as on_file,
            Session(uris[1], entity_types=[Node]) as in_memory,
            Session(server_uri, entity_types=[Node]) as server,
        ):
            for session in (on_file, in_memory, server):
                with Session(session.datastore_uri) as before:
                    before.ensure([OldNode(id="a"), OldNode(id="z")])
                session.migrate(dry_run=False, force=True)
            write(history, model, on_file, in_memory, server)
            stored = model.frames(cls.__name__, Window("history"), ENDS[cls])
            for r in map(Random, numbers):
                plain_filter, seen = expression(r, cls, stored), window(r, model)
                frames = model.frames(cls.__name__, seen, ENDS[cls])
                right = [f for f in frames if plain.truth(plain_filter, f) is True]
                for session in (on_file, in_memory, server):
                    query = start(session, cls, seen).where(build(cls, plain_filter))
                    case = f"{session}, {seen}: {plain_filter}"
                    assert found(query) == expected(right), case
                    assert query.count() == len(right), case
