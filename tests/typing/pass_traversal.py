from __future__ import annotations

from typing import assert_type

from ontologia import Entity, Field, Path, Relation, Session


class Person(Entity):
    id: Field[str] = Field(primary_key=True)


class City(Entity):
    name: Field[str] = Field(primary_key=True)


class LivesIn(Relation[Person, City]):
    since: Field[int] = Field(default=0)


class Knows(Relation[Person, Person]):
    pass


def walk(session: Session) -> None:
    people = session.query().entities(Person)
    assert_type(people.via(LivesIn).collect(), list[Path[Person, City]])
    assert_type(people.via(Knows).via(LivesIn).without_relations().collect(), list[City])
    assert_type(people.via(Knows, reverse=True).without_relations().first(), Person | None)
    cities = session.query().entities(City)
    assert_type(cities.via(LivesIn).without_relations().collect(), list[Person])
    assert_type(cities.via(LivesIn, LivesIn.since > 2000, reverse=True).count(), int)
