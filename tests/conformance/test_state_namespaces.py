"""Nothing crosses a namespace."""

from typing import Any

import pytest
from support.backends import OpenSession
from support.models import Customer, OrderPlaced, Product, Subscription

from ontologia import CommitNotFoundError, ConfigError, OntologiaConfig, Session


@pytest.fixture
def pair(open_session: OpenSession) -> tuple[Session, Session]:
    """Two namespaces of one store that hold the same identities with other values."""
    red, blue = open_session("red"), open_session("blue")
    for session, age in ((red, 1), (blue, 2)):
        session.ensure([Customer(id="c", age=age), Product(sku=age)])
        session.ensure(Subscription(left_key="c", right_key=age, plan=session.namespace))
        session.commit(event=OrderPlaced(order_id=session.namespace))
    return red, blue


def test_state_is_separate(pair: tuple[Session, Session]):
    for session, age in zip(pair, (1, 2), strict=True):
        assert session.query().entities(Customer).collect() == [Customer(id="c", age=age)]
        assert session.query().entities(Product).get(3 - age) is None
        assert session.query().entities(Customer).sum(Customer.age) == age
        (relation,) = session.query().relations(Subscription).collect()
        assert (relation.plan, relation.left.age) == (session.namespace, age)


def test_history_is_separate_although_commit_ids_are_one_sequence(pair: tuple[Session, Session]):
    red, blue = pair
    assert red.query().entities(Customer).as_of(2).collect() == [Customer(id="c", age=1)]
    assert blue.query().entities(Customer).as_of(1).collect() == []
    assert blue.query().entities(Customer).with_history().count() == 1


def test_commits_are_separate(pair: tuple[Session, Session]):
    red, blue = pair
    assert [c.commit_id for c in red.list_commits()] == [1]
    assert [c.commit_id for c in blue.list_commits()] == [2]
    assert blue.get_commit(2).metadata["namespace"] == "blue"
    for ask in (red.get_commit, red.list_commit_changes, lambda commit: red.diff(0, commit)):
        with pytest.raises(CommitNotFoundError):
            ask(2)


def test_changes_of_one_are_not_changes_of_the_other(pair: tuple[Session, Session]):
    red, blue = pair
    assert {c["change_type"] for c in blue.list_commit_changes(2)} == {"added"}
    blue.ensure(Customer(id="c", age=5))
    blue.commit()
    assert red.query().entities(Customer).get("c").age == 1
    assert len(blue.diff(2, 3).changed) == 1


def test_events_are_separate(pair: tuple[Session, Session]):
    for session in pair:
        assert [e.payload["order_id"] for e in session.list_events()] == [session.namespace]


def test_verify_looks_at_its_own(pair: tuple[Session, Session]):
    for session in pair:
        report = session.verify()
        assert report.ok
        assert report.checked["Customer"] == 1


def test_a_session_without_a_namespace_uses_the_configured_one(open_session: OpenSession):
    assert open_session().namespace == "default"
    config = OntologiaConfig(default_namespace="shop")
    assert open_session(config=config).namespace == "shop"
    assert open_session("other", config=config).namespace == "other"


@pytest.mark.parametrize("name", ["a'b", 'x"; --', "é/ü", " ", "%", "A"])
def test_any_text_is_a_namespace(open_session: OpenSession, name: str):
    session, lower = open_session(name), open_session(name.lower() + "_")
    session.ensure(Customer(id="1"))
    session.commit()
    assert session.query().entities(Customer).count() == 1
    assert lower.query().entities(Customer).count() == 0


@pytest.mark.parametrize("name", ["", 5, "a\0b", "\ud800"])
def test_unusable_namespaces_are_refused(uri: str, name: Any):
    with pytest.raises(ConfigError, match="namespace"):
        Session(uri, name)
