"""ensure, commit, discard: what is written, what is not, and when."""

from typing import Any

import pytest
from support.backends import OpenSession
from support.models import Customer, OrderPlaced, Product, Subscription

from ontologia import (
    BatchSizeExceededError,
    OntologiaConfig,
    Session,
    SessionClosedError,
    ValidationError,
    commit_of,
)


def customers(session: Session) -> list[Customer]:
    return session.query().entities(Customer).collect()


# Reconciliation


def test_commit_returns_the_id_and_makes_the_state_readable(session: Session):
    session.ensure(Customer(id="1", name="Ada"))
    assert customers(session) == []
    assert session.commit() == 1
    assert customers(session) == [Customer(id="1", name="Ada")]


def test_nothing_queued_is_no_commit(session: Session):
    assert session.commit() is None
    assert session.list_commits() == []


def test_ensuring_what_is_already_true_writes_nothing(session: Session):
    wanted = [
        Customer(id="1", tags=["a"]),
        Product(sku=1),
        Subscription(left_key="1", right_key=1),
    ]
    session.ensure(wanted)
    session.commit()
    session.ensure(wanted)
    assert session.commit() is None
    assert len(session.list_commits()) == 1
    assert session.query().entities(Customer).with_history().count() == 1


def test_only_what_differs_is_written(session: Session):
    session.ensure([Customer(id=str(i)) for i in range(3)])
    session.commit()
    session.ensure([Customer(id="0"), Customer(id="1", age=1), Customer(id="3")])
    commit_id = session.commit()
    changes = {c["key"]: c["change_type"] for c in session.list_commit_changes(commit_id)}
    assert changes == {"1": "changed", "3": "added"}


def test_a_change_back_is_a_new_version(session: Session):
    for age in (1, 2, 1):
        session.ensure(Customer(id="1", age=age))
        session.commit()
    history = session.query().entities(Customer).with_history().collect()
    assert [(commit_of(c), c.age) for c in history] == [(1, 1), (2, 2), (3, 1)]


def test_the_last_of_an_identity_wins_and_one_version_is_written(session: Session):
    session.ensure([Customer(id="1", age=1), Customer(id="1", age=2)])
    session.ensure(Customer(id="1", age=3))
    assert session.pending == 1
    session.commit()
    assert [c.age for c in session.query().entities(Customer).with_history()] == [3]


def test_ensure_takes_a_snapshot(session: Session):
    ada = Customer(id="1", tags=["a"])
    session.ensure(ada)
    ada.age = 99
    ada.tags.append("b")
    session.commit()
    assert customers(session) == [Customer(id="1", tags=["a"])]


def test_an_object_that_was_read_can_be_changed_and_ensured_again(session: Session):
    session.ensure(Customer(id="1", name="Ada", tags=["a"]))
    session.commit()
    ada = session.query().entities(Customer).get("1")
    ada.tags.append("b")
    session.ensure(ada)
    assert session.commit() == 2
    assert session.query().entities(Customer).get("1").tags == ["a", "b"]
    assert session.query().entities(Customer).as_of(1).get("1").tags == ["a"]


def test_many_types_share_one_commit(session: Session):
    session.ensure(
        [Customer(id="1"), Product(sku=1), Subscription(left_key="1", right_key=1), Product(sku=2)]
    )
    commit_id = session.commit()
    assert {c["type"] for c in session.list_commit_changes(commit_id)} == {
        "Customer",
        "Product",
        "Subscription",
    }
    assert len(session.list_commits()) == 1


def test_commit_ids_are_dense_and_grow(session: Session):
    ids = []
    for age in (1, 2, 2, 3):
        session.ensure(Customer(id="1", age=age))
        ids.append(session.commit())
    assert ids == [1, 2, None, 3]


# Queueing


@pytest.mark.parametrize(
    "several",
    [
        lambda objects: objects,
        tuple,
        iter,
        lambda objects: (o for o in objects),
        lambda objects: dict.fromkeys(objects).keys(),
        set,
    ],
    ids=["list", "tuple", "iterator", "generator", "keys", "set"],
)
def test_ensure_takes_any_iterable(session: Session, several: Any):
    session.ensure(several([Customer(id="1"), Customer(id="2")]))
    assert session.pending == 2
    session.commit()
    assert len(customers(session)) == 2


def test_ensure_takes_the_results_of_a_query(session: Session):
    session.ensure([Customer(id="1"), Customer(id="2")])
    session.commit()
    session.ensure(session.query().entities(Customer))
    assert session.commit() is None


def test_an_empty_iterable_queues_nothing(session: Session):
    session.ensure([])
    assert session.pending == 0


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        "text",
        b"bytes",
        Customer,
        OrderPlaced(order_id="1"),
        {"id": "1"},
        [[Customer(id="1")]],
    ],
    ids=["none", "number", "text", "bytes", "class", "event", "dict", "nested"],
)
def test_ensure_refuses_anything_else(session: Session, wrong: Any):
    with pytest.raises(ValidationError, match="fix:"):
        session.ensure(wrong)
    assert session.pending == 0


def test_an_iterable_is_queued_whole_or_not_at_all(session: Session):
    with pytest.raises(ValidationError):
        session.ensure([Customer(id="1"), "no customer"])

    def broken() -> Any:
        yield Customer(id="1")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        session.ensure(broken())
    assert session.pending == 0


def test_discard_forgets_what_is_queued(session: Session):
    session.ensure(Customer(id="1"))
    session.add_commit_meta("why", "test")
    session.discard()
    assert session.pending == 0
    session.ensure(Customer(id="2"))
    session.commit()
    assert [c.id for c in customers(session)] == ["2"]
    assert "why" not in session.get_commit(1).metadata


def test_intents_are_gone_after_a_commit(session: Session):
    session.ensure(Customer(id="1", age=1))
    session.commit()
    assert session.pending == 0
    session.ensure(Customer(id="2"))
    session.commit()
    assert [c["key"] for c in session.list_commit_changes(2)] == ["2"]


# Batches


def test_a_batch_beyond_the_limit_is_refused_and_stays_queued(open_session: OpenSession):
    session = open_session(config=OntologiaConfig(max_batch_size=3))
    session.ensure([Customer(id=str(i)) for i in range(3)])
    session.ensure(Product(sku=1))
    with pytest.raises(BatchSizeExceededError) as caught:
        session.commit(event=OrderPlaced(order_id="1"))
    assert (caught.value.size, caught.value.limit) == (4, 3)
    assert (session.list_commits(), session.list_events()) == ([], [])
    assert session.pending == 4


def test_a_batch_of_exactly_the_limit_is_committed(open_session: OpenSession):
    session = open_session(config=OntologiaConfig(max_batch_size=3))
    session.ensure([Customer(id=str(i)) for i in range(3)])
    session.ensure(Customer(id="1", age=5))
    assert session.commit() == 1


def test_the_limit_is_10000_unless_configured(session: Session):
    assert session.config.max_batch_size == 10_000
    session.ensure(Product(sku=i) for i in range(10_001))
    with pytest.raises(BatchSizeExceededError):
        session.commit()
    session.discard()
    session.ensure(Product(sku=i) for i in range(10_000))
    assert session.commit() == 1
    assert session.query().entities(Product).count() == 10_000
    session.ensure(Product(sku=i, price=2.0 if i % 10 == 0 else 1.0) for i in range(10_000))
    assert len(session.list_commit_changes(session.commit())) == 1_000


# Context manager


def test_a_clean_exit_commits_and_closes(open_session: OpenSession):
    with open_session() as session:
        session.ensure(Customer(id="1"))
        reader = open_session()
    assert customers(reader) == [Customer(id="1")]
    with pytest.raises(SessionClosedError):
        session.ensure(Customer(id="2"))


def test_an_exception_discards_and_goes_on(open_session: OpenSession):
    reader = open_session()

    def work() -> None:
        with open_session() as session:
            session.ensure(Customer(id="1"))
            session.commit()
            session.ensure(Customer(id="2"))
            raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        work()
    assert [c.id for c in customers(reader)] == ["1"]


def test_a_failing_commit_at_the_end_is_raised_and_closes(open_session: OpenSession):
    session = open_session(config=OntologiaConfig(max_batch_size=1))
    with pytest.raises(BatchSizeExceededError), session:
        session.ensure([Customer(id="1"), Customer(id="2")])
    with pytest.raises(SessionClosedError):
        session.commit()


def test_leaving_a_session_that_was_closed_inside_is_fine(session: Session):
    with session:
        session.close()


def test_every_verb_of_a_closed_session_says_so(session: Session):
    query = session.query().entities(Customer)
    session.ensure(Customer(id="1"))
    session.commit()
    session.close()
    session.close()
    for verb in (
        lambda: session.ensure(Customer(id="1")),
        lambda: session.add_commit_meta("a", "b"),
        session.commit,
        session.discard,
        session.query,
        session.list_commits,
        session.list_events,
        session.validate,
        session.migrate,
        session.verify,
        lambda: session.get_commit(1),
        lambda: session.list_commit_changes(1),
        lambda: session.diff(0, 1),
        lambda: session.drop(Customer),
        query.collect,
        query.count,
        session.__enter__,
    ):
        with pytest.raises(SessionClosedError):
            verb()


# Several sessions


def test_sessions_on_one_store_see_each_others_commits(open_session: OpenSession):
    one, two = open_session(), open_session()
    one.ensure(Customer(id="1"))
    assert one.commit() == 1
    assert customers(two) == [Customer(id="1")]
    two.ensure(Customer(id="1", age=2))
    assert two.commit() == 2
    one.ensure(Customer(id="1", age=2))
    assert one.commit() is None
    assert one.session_id != two.session_id


def test_what_was_committed_survives_the_session(open_session: OpenSession):
    keeper = open_session()  # a store that is not durable lives as long as someone has it open
    with open_session() as session:
        session.ensure(Customer(id="1", tags=["a"]))
    if keeper.capabilities.durable:
        keeper.close()
    again = open_session()
    assert customers(again) == [Customer(id="1", tags=["a"])]
    assert again.verify().ok
    again.ensure(Customer(id="2"))
    assert again.commit() == 2


def test_a_commit_is_possible_while_results_are_being_read(session: Session):
    session.ensure([Customer(id=str(i)) for i in range(5)])
    session.commit()
    for customer in session.query().entities(Customer):
        customer.age = 1
        session.ensure(customer)
        session.commit()
    assert session.query().entities(Customer).sum(Customer.age) == 5
