"""explain(): the statement, the values bound to it, and the plan."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from ontologia import Entity, Field, Relation, Session, count, left


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0, index=True)
    name: Field[str] = Field(default="", index=True)
    credit: Field[Decimal] = Field(default=Decimal(0), index=True)
    city: Field[str] = Field(default="")


class Product(Entity):
    id: Field[int] = Field(primary_key=True)


class Buys(Relation[Customer, Product]):
    n: Field[int] = Field(default=0, index=True)


@pytest.fixture
def shop(session: Session) -> Session:
    """A session with some rows."""
    session.ensure(Customer(id=f"{i:04}", age=i, name=f"n{i}") for i in range(60))
    session.ensure(Product(id=i) for i in range(50))
    session.ensure(Buys(left_key=f"{i:04}", right_key=i % 50, n=i) for i in range(60))
    session.commit()
    return session


@pytest.fixture
def engine(shop: Session) -> Session:
    """As ``shop``, on backends that run queries themselves."""
    return shop


def scans(alias: str, steps: str) -> bool:
    """Whether a whole table is read; databases say it in their own words."""
    return bool(re.search(rf"SCAN {alias}\b|Seq Scan on \S+ {alias}\b", steps))


def plan(query: Any) -> str:
    return "\n".join(query.explain().plan)


def test_every_backend_explains(shop: Session) -> None:
    for query in (
        shop.query().entities(Customer).where(Customer.age > 5),
        shop.query().relations(Buys).where(left(Buys).age > 5),
        shop.query().entities(Customer).as_of(1),
        shop.query().entities(Customer).with_history(),
        shop.query().entities(Customer).via(Buys),
        shop.query().entities(Customer).group_by(Customer.city),
    ):
        explanation = query.explain()
        assert explanation.sql
        assert explanation.plan
        assert explanation.sql in str(explanation)


def test_explaining_reads_nothing_and_changes_nothing(shop: Session) -> None:
    query = shop.query().entities(Customer).where(Customer.age > 5).limit(3)
    query.explain()
    assert len(query.collect()) == 3


def test_values_are_bound_not_written(engine: Session) -> None:
    query = engine.query().entities(Customer)
    explanation = query.where(Customer.name == "se'cret", Customer.age > 77).limit(5).explain()
    assert explanation.sql.lstrip().upper().startswith("SELECT")
    assert "se'cret" in explanation.parameters
    assert 77 in explanation.parameters
    assert "cret" not in explanation.sql
    assert "77" not in explanation.sql
    assert "cret" in str(explanation)


def test_names_are_quoted(engine: Session) -> None:
    sql = engine.query().entities(Customer).where(Customer.city == "x").explain().sql
    assert '"entity_Customer"' in sql
    assert '"city"' in sql


INDEXED = {
    "equality": Customer.age == 5,
    "range": Customer.age > 50,
    "two-sided range": (Customer.age > 5) & (Customer.age <= 9),
    "in": Customer.age.in_([1, 2, 3]),
    "in many": Customer.age.in_(range(300)),
    "text equality": Customer.name == "n7",
    "text range": Customer.name >= "n9",
    "prefix": Customer.name.startswith("n19"),
    "decimal equality": Customer.credit == Decimal("1.0"),
    "decimal range": Customer.credit > Decimal("5.5"),
}


@pytest.mark.parametrize("case", INDEXED)
def test_indexed_filters_use_the_index(engine: Session, case: str) -> None:
    steps = plan(engine.query().entities(Customer).where(INDEXED[case]))
    assert "INDEX" in steps.upper()
    assert not scans("t", steps)


@pytest.mark.parametrize("case", INDEXED)
def test_indexed_aggregates_use_the_index(engine: Session, case: str) -> None:
    query = engine.query().entities(Customer).where(INDEXED[case])
    steps = "\n".join(query.group_by(Customer.city).explain(n=count()).plan)
    assert "INDEX" in steps.upper()


def test_filters_by_key_use_the_primary_key(engine: Session) -> None:
    for query in (engine.query().entities(Customer), engine.query().entities(Customer).as_of(1)):
        steps = plan(query.where(Customer.id == "0007"))
        assert "PRIMARY KEY" in steps or "INDEX" in steps.upper()
        assert not scans("t", steps)


def test_relations_are_found_by_either_end(engine: Session) -> None:
    query = engine.query().relations(Buys)
    for condition in (Buys.left_key == "0007", Buys.right_key == 7, Buys.n == 7):
        steps = plan(query.where(condition))
        assert not scans("t", steps), condition


def test_endpoints_are_joined_by_their_key(engine: Session) -> None:
    steps = plan(engine.query().relations(Buys).where(left(Buys).age == 7))
    assert not scans("l", steps)


def test_each_hop_of_a_traversal_is_explained(engine: Session) -> None:
    explanation = engine.query().entities(Customer).where(Customer.age == 3).via(Buys).explain()
    assert explanation.sql.upper().count("SELECT") >= 2
    assert "entity_Customer" in explanation.sql
    assert "relation_Buys" in explanation.sql
    assert 3 in explanation.parameters


def test_the_past_is_read_from_history(engine: Session) -> None:
    sql = engine.query().entities(Customer).as_of(1).explain().sql
    assert '"entity_Customer_history"' in sql
    assert "history" not in engine.query().entities(Customer).explain().sql
