"""Temporal modes and cuts of traversals, set before or after the hops."""

from __future__ import annotations

import pytest
from support.clock import FakeClock

from ontologia import Entity, Field, Relation, Session


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0)


class Knows(Relation[Person, Person]):
    pass


@pytest.fixture
def people(session: Session, clock: FakeClock) -> Session:
    session.ensure([Person(id=i) for i in "abc"])
    session.ensure(Knows(left_key="a", right_key="b"))
    session.commit()
    clock.advance(seconds=10)
    session.ensure(Person(id="a", age=1))
    session.ensure(Knows(left_key="a", right_key="c"))
    session.commit()
    return session


def ends(query: object) -> list[tuple[int, str]]:
    return [(p.source.age, p.target.id) for p in query.collect()]  # type: ignore[attr-defined]


def test_modes_may_follow_the_hops(people: Session, clock: FakeClock) -> None:
    walk = people.query().entities(Person).where(Person.id == "a").via(Knows)
    assert ends(walk) == [(1, "b"), (1, "c")]
    assert ends(walk.as_of(1)) == [(0, "b")]
    assert ends(walk.as_of(clock.advance(seconds=-5))) == [(0, "b")]
    assert ends(walk.with_history()) == [(0, "b"), (1, "b"), (1, "c")]
    assert ends(walk.history_since(1)) == [(1, "b"), (1, "c")]
    reached = walk.without_relations()
    assert [p.id for p in reached.as_of(1).collect()] == ["b"]
    assert reached.with_history().count() == 2


def test_modes_before_and_after_the_hops_are_the_same(people: Session) -> None:
    query = people.query().entities(Person)
    assert query.as_of(1).via(Knows).collect() == query.via(Knows).as_of(1).collect()
    assert query.with_history().via(Knows).collect() == query.via(Knows).with_history().collect()


def test_traversals_can_be_cut(people: Session) -> None:
    walk = people.query().entities(Person).where(Person.id == "a").via(Knows)
    assert ends(walk.limit(1)) == [(1, "b")]
    assert ends(walk.offset(1)) == [(1, "c")]
    assert walk.limit(1).count() == 1
    assert [p.id for p in walk.without_relations().offset(1).limit(5)] == ["c"]
