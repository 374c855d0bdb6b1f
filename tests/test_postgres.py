"""PostgreSQL: many writers, lost connections, restarts, and whatever else servers do."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from support import postgres
from support.events import Bus, at, event, ids, request
from support.models import Customer, OrderPlaced
from support.proxy import Proxy

from ontologia import (
    InvalidDatastoreError,
    LockContentionError,
    MissingDependencyError,
    OntologiaConfig,
    Session,
    StorageError,
)
from ontologia.storage.postgres_schema import migrations
from ontologia.storage.uri import open_store

IMPATIENT = OntologiaConfig(lock_timeout_ms=100)


@pytest.fixture
def uri() -> str:
    return postgres.new_uri()


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    """A server of its own, to be stopped and killed."""
    server = postgres.Server()
    yield server
    server.remove()


# Order


def orders() -> list[tuple[str, ...]]:
    """All orders of begin, insert and end of two transactions."""
    steps = [("1 begin", "1 insert", "1 end"), ("2 begin", "2 insert", "2 end")]
    found = set()
    for order in itertools.permutations([*steps[0], *steps[1]]):
        if all(sorted(s, key=order.index) == list(s) for s in steps):
            found.add(order)
    return sorted(found)


@pytest.mark.parametrize("undone", [None, "1", "2"])
@pytest.mark.parametrize("order", orders(), ids=lambda o: "".join(s[0] + s[2] for s in o))
def test_a_reader_never_runs_ahead_of_a_writer(uri: str, order: Any, undone: str | None):
    """Two writers in every order of their steps, and a reader that looks after each of them."""
    store = open_store(uri, OntologiaConfig())
    bus = Bus(store)
    bus.register("h")
    seen_events: list[str] = []
    seen_commits: list[int] = []

    def look() -> None:
        seen_events.extend(c.event.id for c in bus.claim(limit=1))
        with store.read("ns") as snapshot:
            new = snapshot.commits(1, seen_commits[-1] if seen_commits else 0)
            seen_commits.extend(c.commit_id for c in new)
            listed = ids(snapshot.events.latest(10))
        assert set(listed) >= set(seen_events)

    open_transactions: dict[str, tuple[ExitStack, Any]] = {}
    committed: dict[str, int] = {}
    for step in order:
        writer, what = step.split()
        if what == "begin":
            stack = ExitStack()
            open_transactions[writer] = stack, stack.enter_context(store.write("ns"))
        elif what == "insert":
            tx = open_transactions[writer][1]
            committed[writer] = tx.add_commit(at(0), "s", {}, [])
            tx.events.enqueue([event(f"e{writer}", commit_id=committed[writer])])
        elif undone == writer:
            stack = open_transactions[writer][0]
            with pytest.raises(RuntimeError), stack:
                raise RuntimeError
            del committed[writer]
        else:
            open_transactions[writer][0].close()
        look()
    for _ in range(3):
        look()
    right = sorted(committed.values())
    assert seen_commits == right
    # Positions are drawn when the server gets to it, not when the caller was told to enqueue.
    log = postgres.rows(uri, "SELECT id FROM events ORDER BY position")
    assert seen_events == [event_id for (event_id,) in log]
    assert sorted(seen_events) == [f"e{writer}" for writer in sorted(committed)]
    store.close()


def test_the_past_is_complete_before_it_is_read(uri: str):
    """While commit 2 is there and commit 1 is being written, as_of(2) has no answer yet."""
    with Session(uri) as session, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        session.ensure(Customer(id="0"))
        session.commit()
        tx = stack.enter_context(session._store.write("default"))
        assert tx.add_commit(at(0), "s", {}, []) == 2
        spec = session._types.add(Customer)
        row = spec.codec.row(Customer(id="slow"))
        tx.write(spec, 1, 2, [(row, spec.codec.payload(row))], [])
        session.ensure(Customer(id="quick"))
        assert session.commit() == 3
        assert session.head == 1
        reading = pool.submit(lambda: session.query().entities(Customer).as_of(3).collect())
        time.sleep(0.2)
        assert not reading.done()
        stack.close()
        assert [c.id for c in reading.result()] == ["0", "quick", "slow"]
        assert session.head == 3


def test_history_ends_before_what_is_being_written(uri: str):
    """While commit 2 is being written and 3 is there, nobody is shown 3 and misses 2 for good."""
    with Session(uri) as session, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        session.ensure(Customer(id="0"))
        session.commit()
        tx = stack.enter_context(session._store.write("default"))
        assert tx.add_commit(at(0), "s", {}, []) == 2
        spec = session._types.add(Customer)
        row = spec.codec.row(Customer(id="slow"))
        tx.write(spec, 1, 2, [(row, spec.codec.payload(row))], [])
        session.ensure(Customer(id="quick"))
        assert session.commit() == 3
        customers = session.query().entities(Customer)
        assert [c.id for c in customers.with_history()] == ["0"]
        assert customers.history_since(1).collect() == []
        assert customers.with_history().count() == 1
        difference = pool.submit(session.diff, 1, 3)
        time.sleep(0.2)
        assert not difference.done()
        stack.close()
        assert [c.key for c in difference.result().added] == ["quick", "slow"]
        assert [c.id for c in customers.with_history()] == ["0", "slow", "quick"]
        assert [c.id for c in customers.history_since(1)] == ["slow", "quick"]


def test_unrelated_transactions_do_not_hold_up_readers(uri: str):
    with psycopg.connect(uri) as other, Session(uri) as session:
        other.execute("CREATE TABLE public.unrelated (n int)")
        other.execute("SELECT pg_current_xact_id()")
        session.ensure(Customer(id="1"))
        assert session.commit(event=OrderPlaced(order_id="1")) == 1
        assert session.head == 1
        assert len(session.list_events()) == 1


def test_writers_of_different_identities_do_not_wait(uri: str):
    with Session(uri, config=IMPATIENT) as one, Session(uri, config=IMPATIENT) as two:
        one.ensure(Customer(id="0"))
        one.commit()
        with one._store.write("default") as tx:
            spec = one._types.add(Customer)
            tx.lock({spec: [("1",)]})
            two.ensure(Customer(id="2"))
            assert two.commit() == 2
            two.ensure(Customer(id="1"))
            with pytest.raises(LockContentionError):
                two.commit()
        assert two.commit() == 3


def test_of_those_who_create_the_same_one_wins_and_the_others_reconcile(uri: str):
    names = [f"c{n}" for n in range(40)]
    barrier = threading.Barrier(5)

    def work(session: Session) -> list[int | None]:
        found = []
        for name in names:
            barrier.wait()
            session.ensure(Customer(id=name, age=7))
            found.append(session.commit())
        return found

    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(uri)) for _ in range(5)]
        with ThreadPoolExecutor(5) as pool:
            results = list(pool.map(work, sessions))
        for attempts in zip(*results, strict=True):
            assert len([a for a in attempts if a is not None]) == 1
        assert len(sessions[0].list_commits(100)) == 40
        assert sessions[0].verify().ok


def test_large_batches_and_small_commits_take_turns(uri: str):
    def batch(session: Session, age: int) -> None:
        session.ensure(Customer(id=str(i), age=age) for i in range(600))
        session.commit()

    def single(session: Session, age: int) -> None:
        for i in range(20):
            session.ensure(Customer(id=str(i * 7), age=age))
            session.commit()

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        sessions = [stack.enter_context(Session(uri)) for _ in range(4)]
        work = [(batch, 1), (batch, 2), (single, 3), (single, 4)]
        jobs = [pool.submit(w, s, age) for s, (w, age) in zip(sessions, work, strict=True)]
        for job in jobs:
            job.result()
        assert sessions[0].verify().ok


def test_times_never_go_back_however_many_write(uri: str):
    def work(session: Session) -> None:
        for i in range(25):
            session.ensure(Customer(id=f"{session.session_id}-{i}"))
            session.commit()

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        sessions = [stack.enter_context(Session(uri)) for _ in range(4)]
        list(pool.map(work, sessions))
        commits = sessions[0].list_commits(1000)[::-1]
    assert [c.commit_id for c in commits] == list(range(1, 101))
    times = [c.created_at for c in commits]
    assert times == sorted(times)


# Setting up


def _open(uri: str, ready: Any, results: Any) -> None:
    ready.wait()
    try:
        with Session(uri) as session:
            session.ensure(Customer(id="same", age=1))
            session.commit()
        results.put(None)
    except Exception as error:  # reported by the parent
        results.put(repr(error))


def test_ten_processes_may_start_at_once():
    uri = postgres.empty_uri()
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(10), context.Queue()
    processes = [context.Process(target=_open, args=(uri, ready, results)) for _ in range(10)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [None] * 10
    for process in processes:
        process.join(30)
    with Session(uri) as session:
        assert session.head == 1
        assert session.verify().unknown == ["Customer"]


def test_the_migrations_as_sql_are_all_that_is_needed():
    uri = postgres.empty_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        for script in migrations("elsewhere"):
            connection.execute(f"BEGIN; {script} COMMIT;".encode())
    config = OntologiaConfig(postgres_schema="elsewhere")
    with Session(uri, config=config) as session:
        session.ensure(Customer(id="1"))
        assert session.commit() == 1
    assert postgres.rows(uri, "SELECT to_regclass('ontologia.commits')") == [(None,)]
    assert postgres.rows(uri, "SELECT count(*) FROM elsewhere.commits") == [(1,)]


def test_two_schemas_of_one_database_are_two_datastores(uri: str):
    odd = OntologiaConfig(postgres_schema='odd "name" 1')
    with Session(uri) as one, Session(uri, config=odd) as two:
        one.ensure(Customer(id="1"))
        two.ensure([Customer(id="2"), Customer(id="3")])
        assert one.commit() == two.commit() == 1
        assert one.query().entities(Customer).count() == 1
        assert two.query().entities(Customer).count() == 2


def test_tables_of_another_application_are_left_alone():
    uri = postgres.empty_uri()
    postgres.rows(uri, "CREATE TABLE public.events (n int)")
    with pytest.raises(InvalidDatastoreError, match="another application"):
        Session(uri, config=OntologiaConfig(postgres_schema="public"))


def test_native_columns_are_there_for_other_tools(uri: str):
    from datetime import UTC, date, datetime
    from decimal import Decimal
    from uuid import UUID

    from ontologia import Entity, Field

    class Invoice(Entity):
        id: Field[UUID] = Field(primary_key=True)
        total: Field[Decimal] = Field(index=True)
        at: Field[datetime]
        due: Field[date]
        paid: Field[bool]
        document: Field[bytes]
        lines: Field[list[str]]

    one = UUID(int=1)
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    with Session(uri) as session:
        session.ensure(
            Invoice(
                id=one,
                total=Decimal("12.50"),
                at=moment,
                due=date(2026, 2, 1),
                paid=True,
                document=b"\0\xff",
                lines=["a"],
            )
        )
        session.commit()
    (row,) = postgres.rows(
        uri, 'SELECT id, total, at, due, paid, document, lines FROM "entity_Invoice"'
    )
    assert row == (one, Decimal("12.50"), moment, date(2026, 2, 1), True, b"\0\xff", ["a"])


def test_names_that_are_too_long_for_the_server_stay_apart(uri: str):
    from ontologia import Entity, Field

    class One(Entity, name="x" * 47 + "1"):
        id: Field[str] = Field(primary_key=True)
        field_with_a_rather_long_name_that_says_what_it_is_about_in_detail: Field[int] = Field(
            default=1, index=True
        )
        field_with_a_rather_long_name_that_says_what_it_is_about_in_short: Field[int] = Field(
            default=2, index=True
        )

    class Two(Entity, name="x" * 47 + "2"):
        id: Field[str] = Field(primary_key=True)

    with Session(uri) as session:
        session.ensure([One(id="1"), Two(id="2")])
        session.commit()
        assert [o.id for o in session.query().entities(One)] == ["1"]
        assert [o.id for o in session.query().entities(Two).with_history()] == ["2"]
        assert session.verify().ok


# Trouble


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        Session("postgresql://nobody:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)
    assert caught.value.fix


def test_a_restart_while_idle_is_not_noticed(server: postgres.Server):
    with Session(server.uri) as session:
        session.ensure(Customer(id="1"))
        session.commit()
        for how in (signal.SIGINT, signal.SIGKILL):
            server.restart(how)
            assert session.query().entities(Customer).get("1") is not None
            server.restart(how)
            session.ensure(Customer(id="2", age=how))
            session.commit()
        assert session.verify().ok


def test_backends_that_are_terminated_are_replaced(uri: str):
    with Session(uri) as session:
        session.ensure(Customer(id="1"))
        session.commit()
        terminate(uri)
        assert session.query().entities(Customer).count() == 1
        terminate(uri)
        session.ensure(Customer(id="2"))
        assert session.commit() == 2


def terminate(uri: str) -> None:
    """End all other connections to the database."""
    postgres.rows(
        uri,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


@pytest.mark.parametrize("place", ["lock", "add_commit", "write", "events.enqueue"])
def test_a_connection_lost_during_a_commit_is_made_up_for(uri: str, place: str):
    """What was begun is undone by the server, and done again on another connection."""
    with Session(uri) as session:
        session.ensure(Customer(id="0"))
        session.commit()
        session.ensure(Customer(id="1"))
        store: Any = session._store
        original, lost = store.write, []

        def write(*args: Any, **kwargs: Any) -> Any:
            tx = original(*args, **kwargs)
            if not lost:
                lost.append(True)
                return _Terminating(tx, place, uri)
            return tx

        store.write = write
        commit_id = session.commit(event=OrderPlaced(order_id="1"))
        store.write = original
        assert lost
        assert [c.commit_id for c in session.list_commits()] == [commit_id, 1]
        assert len(session.list_events()) == 1
        assert session.verify().ok


class _Terminating:
    """A transaction whose connections are ended after one of its methods."""

    def __init__(self, context: Any, place: str, uri: str) -> None:
        self._context, self._place, self._uri = context, place, uri

    def __enter__(self) -> Any:
        return _Cut(self._context.__enter__(), self._place, self._uri)

    def __exit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


class _Cut:
    def __init__(self, inner: Any, place: str, uri: str) -> None:
        self._inner, self._place, self._uri = inner, place, uri

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        head, _, rest = self._place.partition(".")
        if name == head and rest:
            return _Cut(found, rest, self._uri)
        if name != self._place:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            terminate(self._uri)
            return result

        return call


@pytest.mark.parametrize("arrives", [True, False])
def test_the_outcome_of_an_unanswered_commit_is_found_out(uri: str, arrives: bool):
    """The answer to COMMIT is lost on its way, or COMMIT itself is."""
    with Proxy(uri) as proxy, Session(proxy.uri) as session:
        session.ensure(Customer(id="0"))
        session.commit(event=OrderPlaced(order_id="0"))
        proxy.cut_at(b"COMMIT", arrives=arrives)
        session.ensure(Customer(id="1"))
        commit_id = session.commit(event=OrderPlaced(order_id="1"))
        assert proxy.cuts == 1
        commits = session.list_commits()
        assert [c.commit_id for c in commits] == [commit_id, 1]
        assert len(session.list_events()) == 2
        assert session.verify().ok


def test_a_number_that_the_server_gave_away_again_is_not_taken_for_the_own(uri: str):
    """After a crash, transactions that were not on disk are forgotten, their numbers too."""
    with Session(uri) as session:
        session.ensure(Customer(id="0"))
        session.commit(event=OrderPlaced(order_id="0"))
        store: Any = session._store
        with store.write("default") as tx:
            tx.add_commit(at(0), "s", {}, [])
            tx.events.enqueue([event("e1", namespace="default")])
            connection = tx._connection
        lost = psycopg.OperationalError()
        assert store._has_committed(connection, lost)
        for witness in (("commits", (2, at(7))), ("events", (["e2", "e3"],))):
            connection.witness = witness
            assert not store._has_committed(connection, lost)
        connection.witness = ("events", (["e1", "e2"],))
        assert store._has_committed(connection, lost)
        connection.xid = str(int(connection.xid) + 1_000_000)
        assert not store._has_committed(connection, lost)


def test_deadlocks_are_retried(uri: str):
    with Session(uri) as session:
        session.ensure([Customer(id="1"), Customer(id="2")])
        session.commit()
        store = session._store
        barrier = threading.Barrier(2)
        attempts = []

        def body(first: str, second: str) -> Any:
            def run(tx: Any) -> None:
                attempts.append(first)
                lock = 'SELECT 1 FROM "entity_Customer" WHERE id = ? FOR UPDATE'
                tx._connection.execute(lock, (first,))
                if len(attempts) <= 2:
                    barrier.wait(10)
                tx._connection.execute(lock, (second,))

            return run

        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(store.transact, "default", body("1", "2")),
                pool.submit(store.transact, "default", body("2", "1")),
            ]
            for job in jobs:
                job.result()
        assert len(attempts) == 3


def test_an_exhausted_pool_says_so(uri: str):
    config = OntologiaConfig(postgres_pool_size=2, lock_timeout_ms=100)
    with Session(uri, config=config) as session, ExitStack() as stack:
        session.ensure(Customer(id="1"))
        session.commit()
        store: Any = session._store
        store._pool.timeout = 0.2
        for _ in range(2):
            stack.enter_context(store.read("default"))
        with pytest.raises(StorageError, match="postgres_pool_size"):
            session.query().entities(Customer).count()
        stack.close()
        assert session.query().entities(Customer).count() == 1


def test_an_open_result_belongs_to_its_moment_whatever_happens(uri: str):
    with Session(uri) as session:
        session.ensure(Customer(id=str(i)) for i in range(10))
        session.commit()
        paused = iter(session.query().entities(Customer))
        next(paused)
        session.ensure(Customer(id=str(i), age=5) for i in range(10))
        session.commit()
        assert {c.age for c in paused} == {0}


# Behind a pooler


def test_without_listening_nothing_outlives_a_transaction(uri: str):
    config = OntologiaConfig(postgres_listen=False)
    with Session(uri, config=config) as session:
        for i in range(12):
            session.ensure(Customer(id=str(i)))
            session.commit(event=OrderPlaced(order_id=str(i)))
            assert session.query().entities(Customer).count() == i + 1
        store: Any = session._store
        with store._pool.connection() as raw:
            for question, answer in (
                ("SELECT count(*) FROM pg_prepared_statements", 0),
                ("SELECT current_setting('search_path') LIKE '%ontologia%'", False),
                ("SELECT count(*) FROM pg_listening_channels()", 0),
                ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0),
            ):
                assert raw.execute(question).fetchone() == (answer,)


# Waking up


def test_a_worker_is_woken_by_another_connection(uri: str):
    store = open_store(uri, OntologiaConfig())
    with closing(store), psycopg.connect(uri, autocommit=True) as other:
        watch = store.watch()
        watch.mark()
        assert not watch.wait(0.2)
        began = time.monotonic()
        other.execute("NOTIFY \"ontologia:ontologia\", 'another process'")
        assert watch.wait(5)
        assert time.monotonic() - began < 1


def test_listening_goes_on_after_the_connection_broke(uri: str, caplog: pytest.LogCaptureFixture):
    store = open_store(uri, OntologiaConfig())
    with closing(store), psycopg.connect(uri, autocommit=True) as other:
        watch = store.watch()
        watch.mark()
        with caplog.at_level(logging.CRITICAL):
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            # What may have been missed meanwhile is looked for.
            assert watch.wait(5)
        watch.mark()
        deadline = time.monotonic() + 10
        while not watch.wait(0.1):
            assert time.monotonic() < deadline
            other.execute("NOTIFY \"ontologia:ontologia\", 'another process'")


def test_the_clock_is_that_of_the_database(uri: str):
    with Session(uri) as session, psycopg.connect(uri, autocommit=True) as other:
        row = other.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        assert abs((session._clock.now() - row[0]).total_seconds()) < 1


def test_a_restart_during_a_claim_loses_nothing(server: postgres.Server):
    """What was being claimed is claimed again; what was claimed keeps its lease."""
    store = open_store(server.uri, OntologiaConfig())
    with closing(store):
        bus = Bus(store)
        bus.register("h")
        bus.add(*(event(f"e{n}") for n in range(6)))
        held = bus.claim(limit=2)

        def claim_and_crash() -> None:
            with store.write("ns") as tx:
                assert len(tx.events.claim(request(limit=2)).taken) == 2
                server.restart(signal.SIGKILL)

        with pytest.raises(StorageError):
            claim_and_crash()
        assert ids(bus.claim(limit=2)) == ["e2", "e3"]
        assert bus.ack(held, at(1)) == [True, True]
        assert ids(bus.claim(limit=10)) == ["e4", "e5"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_restart_under_load_keeps_what_was_acknowledged(
    server: postgres.Server, how: signal.Signals
):
    """Four writers go on through a restart, each commit there exactly once."""
    done = threading.Event()

    def work(own: int) -> list[str]:
        names: list[str] = []
        with Session(server.uri, config=OntologiaConfig(lock_timeout_ms=20_000)) as session:
            while not done.is_set():
                name = f"{own}-{len(names)}"
                session.ensure(Customer(id=name))
                session.commit(event=OrderPlaced(order_id=name))
                names.append(name)
        return names

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, n) for n in range(4)]
        time.sleep(0.7)
        server.restart(how)
        time.sleep(0.7)
        done.set()
        names = sorted(name for job in jobs for name in job.result())
    with Session(server.uri, entity_types=[Customer]) as session:
        history = session.query().entities(Customer).with_history().collect()
        assert sorted(c.id for c in history) == names
        placed = sorted(e.payload["order_id"] for e in session.list_events(100_000))
        assert placed == names
        assert session.verify().ok


def test_without_the_driver_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in [n for n in sys.modules if n.startswith("ontologia.storage.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"ontologia\[postgres\]"):
        Session("postgresql://localhost/x")
