"""Traversals: paths along relations, in either direction, over several hops."""

from __future__ import annotations

from typing import Any

import pytest

from ontologia import (
    EndpointMissingError,
    Entity,
    Field,
    ModelDefinitionError,
    Path,
    QueryError,
    Relation,
    Session,
    left,
    right,
)


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0)


class Team(Entity):
    id: Field[int] = Field(primary_key=True)
    name: Field[str] = Field(default="")


class Project(Entity):
    id: Field[str] = Field(primary_key=True)


class Member(Relation[Person, Team]):
    role: Field[str] = Field(default="")


class Works(Relation[Team, Project]):
    share: Field[int] = Field(default=1)


class Knows(Relation[Person, Person]):
    kind: Field[str] = Field(instance_key=True)


@pytest.fixture
def company(session: Session) -> Session:
    """A session with people in teams that work on projects."""
    session.ensure(Person(id=i, age=a) for i, a in (("ada", 30), ("bob", 20), ("cyd", 40)))
    session.ensure([Team(id=1, name="core"), Team(id=2, name="web"), Project(id="p")])
    session.ensure([Project(id="q")])
    session.ensure(Member(left_key=p, right_key=t, role=r) for p, t, r in MEMBERS)
    session.ensure([Works(left_key=1, right_key="p", share=5), Works(left_key=2, right_key="p")])
    session.ensure([Works(left_key=2, right_key="q", share=9)])
    session.commit()
    return session


MEMBERS = [("ada", 1, "lead"), ("ada", 2, "dev"), ("bob", 2, "lead")]


def windows(query: Any, at: int = 1) -> list[Any]:
    return [query, query.as_of(at), query.with_history()]


def chain(path: Path[Any]) -> str:
    """A path as text: the source, then the far key of each relation."""
    return "-".join([str(path.source.id), *(str(r.right_key) for r in path.relations)])


def test_one_hop_gives_a_path_per_relation(company: Session) -> None:
    for query in windows(company.query().entities(Person)):
        paths = query.via(Member).collect()
        assert [chain(p) for p in paths] == ["ada-1", "ada-2", "bob-2"]
        assert all(type(p) is Path and len(p.relations) == 1 for p in paths)
        assert paths[0].source == Person(id="ada", age=30)
        assert paths[0].relations == [Member(left_key="ada", right_key=1, role="lead")]
        assert paths[0].target == Team(id=1, name="core")
        assert paths[0].relations[0].left == paths[0].source
        assert paths[0].relations[0].right == paths[0].target


def test_several_hops_follow_each_other(company: Session) -> None:
    for query in windows(company.query().entities(Person)):
        paths = query.via(Member).via(Works).collect()
        assert [chain(p) for p in paths] == [
            "ada-1-p",
            "ada-2-p",
            "ada-2-q",
            "bob-2-p",
            "bob-2-q",
        ]
        last = paths[-1]
        assert last.target == Project(id="q")
        assert [r.left.id for r in last.relations] == ["bob", 2]
        assert [r.right.id for r in last.relations] == [2, "q"]


def test_a_hop_follows_the_relation_backwards_where_that_is_the_only_way(company: Session) -> None:
    for query in windows(company.query().entities(Project)):
        paths = query.via(Works).via(Member).collect()
        found = [(p.source.id, [r.left_key for r in p.relations], p.target.id) for p in paths]
        assert found == [
            ("p", [1, "ada"], "ada"),
            ("p", [2, "ada"], "ada"),
            ("p", [2, "bob"], "bob"),
            ("q", [2, "ada"], "ada"),
            ("q", [2, "bob"], "bob"),
        ]
        assert query.via(Works, reverse=True).count() == 3


def test_a_walk_may_turn_around(company: Session) -> None:
    ada = company.query().entities(Person).where(Person.id == "ada")
    for query in windows(ada):
        colleagues = query.via(Member).via(Member, reverse=True)
        assert [p.target.id for p in colleagues.collect()] == ["ada", "ada", "bob"]
        assert [p.id for p in colleagues.without_relations().collect()] == ["ada", "bob"]


def test_sources_are_filtered_sorted_and_cut(company: Session) -> None:
    for query in windows(company.query().entities(Person)):
        assert [chain(p) for p in query.where(Person.age < 30).via(Member)] == ["bob-2"]
        by_age = query.order_by(Person.age).via(Member)
        assert [chain(p) for p in by_age] == ["bob-2", "ada-1", "ada-2"]
        assert [chain(p) for p in query.limit(1).via(Member)] == ["ada-1", "ada-2"]
        assert query.offset(1).via(Member).count() == 1


def test_hops_are_filtered_by_relation_and_ends(company: Session) -> None:
    for query in windows(company.query().entities(Person)):

        def paths(*filters: Any, query: Any = query) -> list[str]:
            return [chain(p) for p in query.via(Member, *filters).collect()]

        assert paths(Member.role == "lead") == ["ada-1", "bob-2"]
        assert paths(right(Member).name == "web") == ["ada-2", "bob-2"]
        assert paths(left(Member).age > 20, Member.role == "dev") == ["ada-2"]
        assert paths((Member.role == "dev") | (right(Member).name == "core")) == ["ada-1", "ada-2"]
        assert paths(~(Member.role == "lead")) == ["ada-2"]
        assert paths(Member.role == "nobody") == []
        deep = query.via(Member, Member.role == "lead").via(Works, Works.share > 1)
        assert [chain(p) for p in deep.collect()] == ["ada-1-p", "bob-2-q"]
        assert deep.count() == 2


def test_without_relations_gives_each_entity_once(company: Session) -> None:
    for query in windows(company.query().entities(Person)):
        reached = query.via(Member).without_relations()
        assert reached.collect() == [Team(id=1, name="core"), Team(id=2, name="web")]
        assert list(reached) == reached.collect()
        assert reached.count() == 2
        assert reached.first() == Team(id=1, name="core")
        assert reached.to_dicts() == [{"id": 1, "name": "core"}, {"id": 2, "name": "web"}]
        projects = query.via(Member).via(Works).without_relations()
        assert projects.collect() == [Project(id="p"), Project(id="q")]
        nobody = query.where(Person.id == "cyd").via(Member).without_relations()
        assert (nobody.collect(), nobody.count(), nobody.first()) == ([], 0, None)


def test_paths_can_be_counted_iterated_and_exported(company: Session) -> None:
    for query in windows(company.query().entities(Person)):
        via = query.via(Member)
        assert via.count() == 3 == len(via.collect()) == len(list(via))
        assert chain(via.first()) == "ada-1"
        assert query.where(Person.id == "cyd").via(Member).first() is None
        assert via.to_dicts()[2] == {
            "source": {"id": "bob", "age": 20},
            "relations": [{"left_key": "bob", "right_key": 2, "role": "lead"}],
            "target": {"id": 2, "name": "web"},
        }


def know(session: Session, *pairs: str) -> Any:
    session.ensure(Person(id=i) for i in "abcd")
    session.ensure(Knows(left_key=p[0], right_key=p[1], kind=p[2:] or "k") for p in pairs)
    session.commit()
    return session.query().entities(Person)


def test_self_relations_are_followed_forwards_unless_reversed(session: Session) -> None:
    for query in windows(know(session, "ab", "bc", "ca", "cc")):
        a = query.where(Person.id == "a")
        assert [chain(p) for p in a.via(Knows)] == ["a-b"]
        assert [chain(p) for p in a.via(Knows, reverse=False)] == ["a-b"]
        assert [p.relations[0].left_key for p in a.via(Knows, reverse=True)] == ["c"]
        assert [p.target.id for p in a.via(Knows, reverse=True)] == ["c"]
        two = a.via(Knows).via(Knows)
        assert [chain(p) for p in two] == ["a-b-c"]
        assert [chain(p) for p in two.via(Knows)] == ["a-b-c-a", "a-b-c-c"]
        assert [e.id for e in two.via(Knows).without_relations()] == ["a", "c"]
        back_and_forth = a.via(Knows).via(Knows, reverse=True)
        assert [p.target.id for p in back_and_forth] == ["a"]


def test_parallel_relations_are_separate_paths(session: Session) -> None:
    for query in windows(know(session, "abx", "aby", "bcz")):
        paths = query.via(Knows).via(Knows).collect()
        assert [[r.kind for r in p.relations] for p in paths] == [["x", "z"], ["y", "z"]]
        assert query.via(Knows).via(Knows).without_relations().count() == 1


def test_a_relation_that_dangles_ends_in_nothing(session: Session) -> None:
    for query in windows(know(session, "ax", "ab")):
        paths = query.via(Knows).collect()
        assert [chain(p) for p in paths] == ["a-b", "a-x"]
        assert paths[1].target is None
        with pytest.raises(EndpointMissingError):
            paths[1].relations[0].right
        assert [e.id for e in query.via(Knows).without_relations()] == ["b"]
        assert query.via(Knows).without_relations().count() == 1


def test_paths_are_values(session: Session) -> None:
    query = know(session, "ab")
    assert query.via(Knows).collect() == query.via(Knows).collect()
    with pytest.raises(AttributeError):
        query.via(Knows).first().source = None


def test_types_that_were_never_committed_lead_nowhere(session: Session) -> None:
    for query in windows(know(session, "ab")):
        assert query.via(Member).collect() == []
        assert query.via(Member).via(Works).count() == 0
        assert query.via(Knows).via(Member).without_relations().collect() == []


def test_builders_of_traversals_never_change(session: Session) -> None:
    query = know(session, "ab", "bc")
    one = query.via(Knows)
    one.via(Knows), one.without_relations()
    assert one.count() == 2


def test_many_sources_are_followed_at_once(session: Session) -> None:
    session.ensure(Person(id=f"{i:04}", age=i) for i in range(3_000))
    session.ensure(Team(id=i) for i in range(10))
    session.ensure(Member(left_key=f"{i:04}", right_key=i % 10) for i in range(3_000))
    session.commit()
    for query in windows(session.query().entities(Person).where(Person.age >= 500)):
        assert query.via(Member).count() == 2_500
        assert [t.id for t in query.via(Member).without_relations()] == list(range(10))
        assert all(p.target.id == p.source.age % 10 for p in query.via(Member).collect())


def test_hops_that_do_not_fit_are_refused(session: Session) -> None:
    query = session.query().entities(Person)
    with pytest.raises(QueryError, match="no right end at Person"):
        query.via(Member, reverse=True)
    with pytest.raises(QueryError, match="at Person"):
        query.via(Works)
    with pytest.raises(QueryError, match="at Project"):
        query.via(Member).via(Works).via(Member)
    with pytest.raises(QueryError, match="belongs to"):
        query.via(Member, Works.share > 1)
    with pytest.raises(QueryError):
        query.via(Member, Person.age > 1)
    for bad in (Person, "Member", None):
        with pytest.raises(ModelDefinitionError, match="needs a Relation class"):
            query.via(bad)


def test_traversals_stay_in_their_namespace(open_session: Any) -> None:
    own, other = open_session("own"), open_session("other")
    know(other, "ab", "ac")
    for query in windows(know(own, "ab"), 2):
        assert [chain(p) for p in query.via(Knows)] == ["a-b"]
        assert query.via(Knows).without_relations().count() == 1
