"""Temporal queries across migrations: old versions are upgraded when they are read."""

from decimal import Decimal
from typing import Any

import pytest
from support.backends import OpenSession
from support.versions import (
    CustomerV1,
    CustomerV2,
    CustomerV3,
    CustomerV4,
    Likes,
    LikesV4,
    make_exact,
    migrate,
    rename,
)

from ontologia import Entity, Field, MissingUpgraderError, Session, commit_of, count, left

UPGRADERS = [rename, make_exact]


@pytest.fixture
def grown(session: Session) -> Session:
    """Ada in every version of the type, one commit in each; Bob since the first."""
    session.ensure([CustomerV1(id="ada", name="Ada", age=1), CustomerV1(id="bob", name="Bob")])
    session.ensure(Likes(left_key="ada", right_key="bob"))
    session.commit()
    migrate(session, CustomerV2)
    session.ensure(CustomerV2(id="ada", name="Ada", age=2, tier="gold"))
    session.commit()
    migrate(session, CustomerV3, upgraders=UPGRADERS)
    session.ensure(CustomerV3(id="ada", full_name="Ada L.", age=3, tier="gold"))
    session.commit()
    migrate(session, CustomerV4, LikesV4)
    session.ensure(CustomerV4(id="ada", full_name="Ada L.", age=Decimal("4.50"), tier="gold"))
    session.ensure(LikesV4(left_key="ada", right_key="bob", strength=2))
    session.commit()
    return session


ADA = [
    CustomerV4(id="ada", full_name="Ada", age=Decimal(1), tier="free"),
    CustomerV4(id="ada", full_name="Ada", age=Decimal(2), tier="gold"),
    CustomerV4(id="ada", full_name="Ada L.", age=Decimal(3), tier="gold"),
    CustomerV4(id="ada", full_name="Ada L.", age=Decimal("4.50"), tier="gold"),
]
BOB = CustomerV4(id="bob", full_name="Bob", age=Decimal(0), tier="free")


def query(session: Session) -> Any:
    return session.query().entities(CustomerV4)


def test_as_of_every_commit(grown: Session):
    for commit_id, ada in enumerate(ADA, 1):
        assert query(grown).as_of(commit_id).collect() == [ada, BOB]
        assert query(grown).as_of(commit_id).get("ada") == ada
    assert query(grown).collect() == [ADA[3], BOB]


def test_history_shows_every_version_in_the_declared_form(grown: Session):
    found = [c for c in query(grown).with_history() if c.id == "ada"]
    assert found == ADA
    assert [commit_of(c) for c in found] == [1, 2, 3, 4]
    assert query(grown).history_since(2).collect() == ADA[2:]


def test_filters_and_orders_see_the_upgraded_values(grown: Session):
    assert query(grown).as_of(1).where(CustomerV4.full_name == "Ada").count() == 1
    assert query(grown).as_of(1).where(CustomerV4.tier == "gold").collect() == []
    assert query(grown).as_of(2).where(CustomerV4.age >= Decimal(2)).collect() == [ADA[1]]
    by_age = query(grown).as_of(2).order_by(CustomerV4.age.desc()).collect()
    assert by_age == [ADA[1], BOB]
    assert query(grown).with_history().where(CustomerV4.full_name.endswith("L.")).count() == 2


def test_aggregates_see_the_upgraded_values(grown: Session):
    assert query(grown).as_of(2).sum(CustomerV4.age) == Decimal(2)
    assert query(grown).with_history().max(CustomerV4.age) == Decimal("4.5")
    groups = query(grown).with_history().group_by(CustomerV4.tier).agg(n=count())
    assert groups == [{"tier": "free", "n": 2}, {"tier": "gold", "n": 3}]


def test_endpoints_and_traversals_cross_migrations(grown: Session):
    relations = grown.query().relations(LikesV4)
    assert relations.as_of(1).first().left == ADA[0]
    assert relations.as_of(3).first().left == ADA[2]
    assert relations.as_of(1).where(left(LikesV4).full_name == "Ada").count() == 1
    assert [r.left for r in relations.with_history()] == [ADA[0], ADA[3]]
    assert query(grown).as_of(2).via(LikesV4).collect()[0].target == BOB


def test_diff_and_changes_cross_migrations(grown: Session):
    (change,) = grown.diff(1, 3).changed
    assert change.fields == {
        "full_name": ("Ada", "Ada L."),
        "age": (Decimal(1), Decimal(3)),
        "tier": ("free", "gold"),
    }
    assert [c["key"] for c in grown.list_commit_changes(2)] == ["ada"]


def test_current_state_equals_its_history(grown: Session):
    report = grown.verify()
    assert report.ok, report.problems
    assert report.checked == {"Customer": 2, "Likes": 1}


def test_old_versions_need_the_upgraders_current_state_does_not(open_session: OpenSession):
    with open_session() as session:
        session.ensure(CustomerV1(id="ada", name="Ada", age=1))
        session.commit()
        migrate(session, CustomerV2)
        migrate(session, CustomerV3, upgraders=[rename])
        bare = open_session(entity_types=[CustomerV3])
    assert bare.query().entities(CustomerV3).first().full_name == "Ada"
    with pytest.raises(MissingUpgraderError):
        bare.query().entities(CustomerV3).as_of(1).first()
    equipped = open_session(upgraders=UPGRADERS)
    assert equipped.query().entities(CustomerV3).as_of(1).first().full_name == "Ada"


class FreeByDefault(Entity, name="Plan"):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str] = "free"


class GoldByDefault(Entity, name="Plan"):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str] = "gold"


class Bare(Entity, name="Plan"):
    id: Field[str] = Field(primary_key=True)


def test_the_default_of_the_migration_stays_the_value_of_old_versions(session: Session):
    session.ensure(Bare(id="1"))
    session.commit()
    migrate(session, FreeByDefault)
    plans = session.query().entities(GoldByDefault)
    assert plans.first().tier == "free"
    assert plans.as_of(1).first().tier == "free"
    assert session.verify().ok
