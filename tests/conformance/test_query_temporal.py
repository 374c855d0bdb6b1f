"""The past: every kind of query in every temporal mode."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from threading import Event, Thread
from typing import Any

import pytest
from support.clock import FakeClock

from ontologia import (
    EndpointMissingError,
    Entity,
    Field,
    QueryError,
    Relation,
    Session,
    commit_of,
    count,
    count_where,
    left,
    right,
)


class Account(Entity):
    id: Field[str] = Field(primary_key=True)
    owner: Field[str | None] = Field(default=None)
    total: Field[int] = Field(default=0, index=True)
    fee: Field[Decimal] = Field(default=Decimal(0))
    tags: Field[list[str]] = Field(default_factory=list)


class Bank(Entity):
    id: Field[int] = Field(primary_key=True)
    city: Field[str] = Field(default="")


class HeldAt(Relation[Account, Bank]):
    n: Field[int] = Field(default=0)


@pytest.fixture
def story(session: Session, clock: FakeClock) -> Session:
    """Four commits, a minute apart, the first at noon.

    1: a total 1; bank 1 in Bonn; a at 1 (n=1)
    2: a total 2, b total 10
    3: bank 1 moves to Rom; bank 2 in Rom; b at 2 (n=2)
    4: a total 4; a at 1 (n=4)
    """
    steps = [
        [
            Account(id="a", owner="x", total=1, fee=Decimal("0.10"), tags=["new"]),
            Bank(id=1, city="Bonn"),
            HeldAt(left_key="a", right_key=1, n=1),
        ],
        [
            Account(id="a", owner="x", total=2, fee=Decimal("0.20")),
            Account(id="b", owner="y", total=10),
        ],
        [
            Bank(id=1, city="Rom"),
            Bank(id=2, city="Rom"),
            HeldAt(left_key="b", right_key=2, n=2),
        ],
        [
            Account(id="a", owner="y", total=4, fee=Decimal("0.20")),
            HeldAt(left_key="a", right_key=1, n=4),
        ],
    ]
    for number, step in enumerate(steps, 1):
        session.ensure(step)
        assert session.commit() == number
        clock.advance(60)
    return session


def accounts(query: Any) -> list[tuple[str, int]]:
    return [(a.id, a.total) for a in query.collect()]


def test_latest_is_the_default(story: Session) -> None:
    assert accounts(story.query().entities(Account)) == [("a", 4), ("b", 10)]


def test_as_of_shows_the_state_after_a_commit(story: Session) -> None:
    query = story.query().entities(Account)
    assert accounts(query.as_of(0)) == []
    assert accounts(query.as_of(1)) == [("a", 1)]
    assert accounts(query.as_of(2)) == [("a", 2), ("b", 10)]
    assert accounts(query.as_of(3)) == [("a", 2), ("b", 10)]
    assert accounts(query.as_of(4)) == [("a", 4), ("b", 10)]
    assert accounts(query.as_of(99)) == accounts(query)


def test_as_of_a_moment_shows_the_state_at_that_time(story: Session) -> None:
    query = story.query().entities(Account)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert accounts(query.as_of(noon - timedelta(microseconds=1))) == []
    assert accounts(query.as_of(noon)) == [("a", 1)]
    assert accounts(query.as_of(noon + timedelta(seconds=59))) == [("a", 1)]
    assert accounts(query.as_of(noon + timedelta(seconds=60))) == [("a", 2), ("b", 10)]
    assert accounts(query.as_of(noon + timedelta(days=900))) == [("a", 4), ("b", 10)]
    elsewhere = timezone(timedelta(hours=-5))
    assert accounts(query.as_of(datetime(2026, 1, 1, 7, 0, 30, tzinfo=elsewhere))) == [("a", 1)]
    assert accounts(query.as_of(story.get_commit(2).created_at)) == [("a", 2), ("b", 10)]


def test_as_of_a_moment_is_resolved_when_the_query_runs(story: Session, clock: FakeClock) -> None:
    query = story.query().entities(Account).as_of(clock.now() + timedelta(hours=1))
    story.ensure(Account(id="c"))
    story.commit()
    assert query.count() == 3


def test_with_history_shows_every_version_oldest_first(story: Session) -> None:
    query = story.query().entities(Account).with_history()
    assert accounts(query) == [("a", 1), ("a", 2), ("b", 10), ("a", 4)]
    assert [commit_of(a) for a in query] == [1, 2, 2, 4]


def test_history_since_shows_versions_after_a_commit(story: Session) -> None:
    query = story.query().entities(Account)
    assert accounts(query.history_since(0)) == accounts(query.with_history())
    assert accounts(query.history_since(1)) == [("a", 2), ("b", 10), ("a", 4)]
    assert accounts(query.history_since(2)) == [("a", 4)]
    assert accounts(query.history_since(4)) == []
    assert accounts(query.history_since(99)) == []


def test_the_last_mode_counts(story: Session) -> None:
    query = story.query().entities(Account)
    assert accounts(query.with_history().as_of(1)) == [("a", 1)]
    assert accounts(query.as_of(1).history_since(2)) == [("a", 4)]
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert accounts(query.as_of(moment).as_of(2)) == [("a", 2), ("b", 10)]
    assert len(accounts(query.as_of(moment).with_history())) == 4


def test_objects_know_their_commit(story: Session) -> None:
    query = story.query().entities(Account)
    assert commit_of(query.get("a")) == 4
    assert commit_of(query.as_of(3).get("a")) == 2
    assert commit_of(query.with_history().first()) == 1
    assert commit_of(story.query().relations(HeldAt).as_of(3).get("a", 1)) == 1
    assert commit_of(Account(id="fresh")) is None


def test_filters_see_the_values_of_their_moment(story: Session) -> None:
    query = story.query().entities(Account)
    assert accounts(query.as_of(1).where(Account.total == 1)) == [("a", 1)]
    assert accounts(query.as_of(2).where(Account.total == 1)) == []
    assert accounts(query.with_history().where(Account.total < 4)) == [("a", 1), ("a", 2)]
    assert accounts(query.history_since(1).where(Account.owner == "y")) == [("b", 10), ("a", 4)]
    assert accounts(query.as_of(1).where(Account.tags.any_path() == "new")) == [("a", 1)]
    assert accounts(query.where(Account.tags.any_path() == "new")) == []
    assert accounts(query.with_history().where(Account.id == "a", Account.total > 1)) == [
        ("a", 2),
        ("a", 4),
    ]


def test_order_and_limit_in_history(story: Session) -> None:
    history = story.query().entities(Account).with_history()
    assert accounts(history.order_by(Account.total.desc()).limit(2)) == [("b", 10), ("a", 4)]
    assert accounts(history.order_by(Account.owner)) == [("a", 1), ("a", 2), ("b", 10), ("a", 4)]
    assert accounts(history.order_by(Account.fee.desc(), Account.id)) == [
        ("a", 2),
        ("a", 4),
        ("a", 1),
        ("b", 10),
    ]
    assert accounts(history.limit(1).offset(3)) == [("a", 4)]
    assert history.first().total == 1
    assert history.get("a").total == 4
    assert story.query().entities(Account).history_since(2).get("b") is None


def test_aggregates_in_the_past(story: Session) -> None:
    query = story.query().entities(Account)
    for at, expected in ((1, (1, 1, Decimal("0.1"))), (2, (2, 12, Decimal("0.2")))):
        past = query.as_of(at)
        assert (past.count(), past.sum(Account.total), past.sum(Account.fee)) == expected
    assert query.as_of(0).count() == 0
    assert query.as_of(0).sum(Account.total) is None
    history = query.with_history()
    assert (history.count(), history.sum(Account.total)) == (4, 17)
    assert (history.min(Account.total), history.max(Account.fee)) == (1, Decimal("0.2"))
    assert history.avg(Account.total) == 4.25
    assert history.avg_len(Account.tags) == 0.25
    assert history.count_where(Account.owner == "x") == 2
    assert query.history_since(1).count_where(Account.owner == "x") == 1


def test_groups_in_the_past(story: Session) -> None:
    query = story.query().entities(Account)
    assert query.as_of(2).group_by(Account.owner).agg(n=count(), total=Account.total.sum()) == [
        {"owner": "x", "n": 1, "total": 2},
        {"owner": "y", "n": 1, "total": 10},
    ]
    assert query.group_by(Account.owner).agg(n=count()) == [{"owner": "y", "n": 2}]
    assert query.with_history().group_by(Account.id).having(count() > 1).agg(
        n=count(), most=Account.total.max(), new=count_where(Account.tags.any_path() == "new")
    ) == [{"id": "a", "n": 3, "most": 4, "new": 1}]
    assert query.history_since(3).group_by(Account.fee).agg(n=count()) == [
        {"fee": Decimal("0.20"), "n": 1}
    ]
    assert query.as_of(0).group_by(Account.owner).agg(n=count()) == []


def held(query: Any) -> list[tuple[str, int, int, str]]:
    return [(r.left_key, r.left.total, r.n, r.right.city) for r in query.collect()]


def test_relations_and_their_ends_are_of_the_same_moment(story: Session) -> None:
    query = story.query().relations(HeldAt)
    assert held(query) == [("a", 4, 4, "Rom"), ("b", 10, 2, "Rom")]
    assert held(query.as_of(1)) == [("a", 1, 1, "Bonn")]
    assert held(query.as_of(2)) == [("a", 2, 1, "Bonn")]
    assert held(query.as_of(3)) == [("a", 2, 1, "Rom"), ("b", 10, 2, "Rom")]


def test_ends_of_a_version_are_those_of_its_commit(story: Session) -> None:
    query = story.query().relations(HeldAt)
    assert held(query.with_history()) == [
        ("a", 1, 1, "Bonn"),
        ("b", 10, 2, "Rom"),
        ("a", 4, 4, "Rom"),
    ]
    assert held(query.history_since(3)) == [("a", 4, 4, "Rom")]
    assert query.with_history().get("a", 1).left.total == 4
    assert query.as_of(3).get("a", 1).left.total == 2


def test_filters_on_ends_in_the_past(story: Session) -> None:
    query = story.query().relations(HeldAt)
    in_rom, big = right(HeldAt).city == "Rom", left(HeldAt).total > 3
    assert held(query.where(in_rom)) == [("a", 4, 4, "Rom"), ("b", 10, 2, "Rom")]
    assert held(query.as_of(2).where(in_rom)) == []
    assert held(query.as_of(3).where(in_rom & ~big)) == [("a", 2, 1, "Rom")]
    assert held(query.with_history().where(in_rom)) == [("b", 10, 2, "Rom"), ("a", 4, 4, "Rom")]
    assert held(query.with_history().where(~in_rom | ~big)) == [("a", 1, 1, "Bonn")]
    assert held(query.history_since(1).where(left(HeldAt).id == "a")) == [("a", 4, 4, "Rom")]
    by_total = query.with_history().order_by(left(HeldAt).total.desc())
    assert [r.left_key for r in by_total] == ["b", "a", "a"]


def test_aggregates_over_ends_in_the_past(story: Session) -> None:
    query = story.query().relations(HeldAt)
    assert query.sum(left(HeldAt).total) == 14
    assert query.as_of(1).sum(left(HeldAt).total) == 1
    assert query.with_history().sum(left(HeldAt).total) == 15
    assert query.as_of(3).group_by(right(HeldAt).city).agg(n=count()) == [
        {"right.city": "Rom", "n": 2}
    ]
    assert query.with_history().group_by(right(HeldAt).city).agg(
        n=count(), total=left(HeldAt).total.sum()
    ) == [{"right.city": "Bonn", "n": 1, "total": 1}, {"right.city": "Rom", "n": 2, "total": 14}]
    assert query.history_since(3).max(left(HeldAt).fee) == Decimal("0.20")


def paths(query: Any) -> list[tuple[str, int, int, str]]:
    return [
        (p.source.id, p.source.total, p.relations[0].n, p.target.city)
        for p in query.via(HeldAt).collect()
    ]


def test_traversals_in_the_past(story: Session) -> None:
    query = story.query().entities(Account)
    assert paths(query) == [("a", 4, 4, "Rom"), ("b", 10, 2, "Rom")]
    assert paths(query.as_of(0)) == []
    assert paths(query.as_of(2)) == [("a", 2, 1, "Bonn")]
    assert paths(query.as_of(3)) == [("a", 2, 1, "Rom"), ("b", 10, 2, "Rom")]
    assert query.as_of(2).via(HeldAt).without_relations().collect() == [Bank(id=1, city="Bonn")]
    moment = datetime(2026, 1, 1, 12, 1, 30, tzinfo=UTC)
    assert paths(query.as_of(moment)) == paths(query.as_of(2))


def test_traversals_from_versions_see_their_moment(story: Session) -> None:
    query = story.query().entities(Account)
    assert paths(query.with_history()) == [
        ("a", 1, 1, "Bonn"),
        ("a", 2, 1, "Bonn"),
        ("a", 4, 4, "Rom"),
    ]
    assert paths(query.history_since(1)) == [("a", 2, 1, "Bonn"), ("a", 4, 4, "Rom")]
    assert query.with_history().via(HeldAt).count() == 3
    reached = query.with_history().via(HeldAt).without_relations().collect()
    assert [b.city for b in reached] == ["Bonn", "Rom"]
    filtered = query.with_history().via(HeldAt, right(HeldAt).city == "Rom")
    assert [p.source.total for p in filtered] == [4]


def test_traversals_over_two_hops_in_the_past(story: Session) -> None:
    banks = story.query().entities(Bank)

    def neighbours(query: Any) -> list[tuple[int, str]]:
        return [(p.source.id, p.target.id) for p in query.via(HeldAt).collect()]

    assert neighbours(banks.as_of(2)) == [(1, "a")]
    assert neighbours(banks) == [(1, "a"), (2, "b")]
    assert neighbours(banks.with_history()) == [(1, "a"), (1, "a"), (2, "b")]
    again = banks.with_history().via(HeldAt).via(HeldAt).collect()
    assert [(p.source.city, p.relations[0].left.total, p.target.city) for p in again] == [
        ("Bonn", 1, "Bonn"),
        ("Rom", 2, "Rom"),
        ("Rom", 10, "Rom"),
    ]


def test_no_query_sees_part_of_a_commit(session: Session) -> None:
    session.ensure([Account(id="a", total=50), Account(id="b", total=50), Bank(id=0)])
    session.ensure(HeldAt(left_key="a", right_key=0, n=50))
    session.commit()
    done = Event()

    def transfer() -> None:
        try:
            for n in range(1, 201):
                session.ensure([Account(id="a", total=50 - n), Account(id="b", total=50 + n)])
                session.ensure(HeldAt(left_key="a", right_key=0, n=50 - n))
                session.commit()
        finally:
            done.set()

    writer = Thread(target=transfer)
    writer.start()
    query, relations = session.query().entities(Account), session.query().relations(HeldAt)
    while not done.is_set():
        assert query.sum(Account.total) == 100
        assert sum(a.total for a in query) == 100
        assert query.with_history().count() % 2 == 0
        assert query.history_since(1).avg(Account.total) in (None, 50.0)
        assert all(r.left.total == r.n for r in relations)
        assert all(p.source.total == p.relations[0].n for p in query.via(HeldAt).collect())
    writer.join()
    assert query.get("a").total == -150


def test_a_relation_from_before_its_end_dangles_there(session: Session) -> None:
    session.ensure(HeldAt(left_key="a", right_key=1))
    session.commit()
    session.ensure([Account(id="a"), Bank(id=1)])
    session.commit()
    query = session.query().relations(HeldAt)
    assert query.get("a", 1).left.id == "a"
    for past in (query.as_of(1), query.with_history()):
        with pytest.raises(EndpointMissingError):
            past.get("a", 1).left
        assert past.where(left(HeldAt).id.is_null()).count() == 1


def test_a_value_that_comes_back_is_a_version_of_its_own(session: Session) -> None:
    for total in (1, 2, 1):
        session.ensure(Account(id="a", total=total))
        session.commit()
    query = session.query().entities(Account)
    assert accounts(query.with_history()) == [("a", 1), ("a", 2), ("a", 1)]
    assert accounts(query.with_history().where(Account.total == 1)) == [("a", 1), ("a", 1)]
    assert [accounts(query.as_of(n)) for n in (1, 2, 3)] == [[("a", 1)], [("a", 2)], [("a", 1)]]


def test_commits_of_other_namespaces_do_not_show(open_session: Any) -> None:
    own, other = open_session("own"), open_session("other")
    for n in (1, 2, 3):
        other.ensure(Account(id="a", total=-n))
        other.commit()
        own.ensure(Account(id="a", total=n))
        own.commit()
    query = own.query().entities(Account)
    assert accounts(query.with_history()) == [("a", 1), ("a", 2), ("a", 3)]
    assert [commit_of(a) for a in query.with_history()] == [2, 4, 6]
    assert accounts(query.as_of(3)) == [("a", 1)]
    assert accounts(query.history_since(3)) == [("a", 2), ("a", 3)]
    assert accounts(query.as_of(1)) == []


def test_history_can_be_exported_with_its_commits(story: Session) -> None:
    rows = story.query().relations(HeldAt).with_history().to_dicts()
    assert [(r["left_key"], r["n"], r["_commit_id"]) for r in rows] == [
        ("a", 1, 1),
        ("b", 2, 3),
        ("a", 4, 4),
    ]
    assert "_commit_id" not in story.query().relations(HeldAt).as_of(1).to_dicts()[0]


def test_the_past_is_queried_across_a_migration(open_session: Any) -> None:
    def declare(later: bool) -> tuple[Any, Any]:
        class Owner(Entity):
            id: Field[str] = Field(primary_key=True)
            age: Field[int] = Field(default=0)
            if later:
                tier: Field[str] = Field(default="iron")

        class Rents(Relation[Owner, Bank]):
            n: Field[int] = Field(default=0)

        return Owner, Rents

    before, rents_before = declare(False)
    first = open_session()
    first.ensure([before(id="a", age=1), Bank(id=1), rents_before(left_key="a", right_key=1, n=1)])
    first.commit()
    owner, rents = declare(True)
    second = open_session(entity_types=[owner, Bank], relation_types=[rents])
    second.migrate(dry_run=False, force=True)
    second.ensure([owner(id="a", age=2, tier="gold"), owner(id="b", age=3)])
    second.ensure(rents(left_key="b", right_key=1, n=2))
    second.commit()

    owners, relations = second.query().entities(owner), second.query().relations(rents)
    iron, of_iron = owner.tier == "iron", left(rents).tier == "iron"
    assert [o.age for o in owners.where(iron)] == [3]
    assert [o.age for o in owners.as_of(1).where(iron)] == [1]
    assert [o.age for o in owners.with_history().where(iron)] == [1, 3]
    assert [o.age for o in owners.with_history().order_by(owner.tier, owner.age.desc())] == [
        2,
        3,
        1,
    ]
    assert owners.as_of(1).get("a").tier == "iron"
    assert owners.with_history().group_by(owner.tier).agg(n=count(), age=owner.age.sum()) == [
        {"tier": "gold", "n": 1, "age": 2},
        {"tier": "iron", "n": 2, "age": 4},
    ]
    assert [r.n for r in relations.where(of_iron)] == [2]
    assert [r.n for r in relations.as_of(1).where(of_iron)] == [1]
    assert [(r.n, r.left.tier) for r in relations.with_history()] == [(1, "iron"), (2, "iron")]
    assert relations.with_history().group_by(left(rents).tier).agg(n=count()) == [
        {"left.tier": "iron", "n": 2}
    ]
    assert [p.source.tier for p in owners.as_of(1).via(rents)] == ["iron"]
    banks = second.query().entities(Bank)
    assert [p.target.age for p in banks.as_of(1).via(rents)] == [1]
    assert [p.target.age for p in banks.via(rents)] == [2, 3]
    assert banks.with_history().via(rents).without_relations().to_dicts() == [
        {"id": "a", "age": 1, "tier": "iron"}
    ]


@pytest.mark.parametrize("bad", [-1, True, 1.5, "1", None, 2**63])
def test_commits_that_make_no_sense_are_refused(session: Session, bad: Any) -> None:
    query = session.query().entities(Account)
    for method in (query.as_of, query.history_since):
        with pytest.raises(QueryError):
            method(bad)


def test_moments_without_a_time_zone_are_refused(session: Session) -> None:
    with pytest.raises(QueryError, match="time zone"):
        session.query().entities(Account).as_of(datetime(2026, 1, 1))


def test_moments_beyond_the_calendar_are_refused(session: Session) -> None:
    edge = datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-1)))
    with pytest.raises(QueryError):
        session.query().entities(Account).as_of(edge).count()
