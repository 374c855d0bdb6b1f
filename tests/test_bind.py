"""Session.bind: what is done through it belongs to the transaction of the caller."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatLoader
from support import postgres
from support.callers import CALLERS, Caller, Django, Psycopg, SQLAlchemyConnection, SQLite3
from support.models import Customer, OrderPlaced, Product, Subscription

from ontologia import (
    BatchSizeExceededError,
    BindError,
    DatastoreReadOnlyError,
    Entity,
    Field,
    HandlerContext,
    LockContentionError,
    OntologiaConfig,
    OntologiaError,
    Session,
    SessionClosedError,
    StorageError,
    ValidationError,
    on_event,
)


class Account(Entity):
    id: Field[str] = Field(primary_key=True)
    balance: Field[Decimal]
    rate: Field[float] = Field(default=0.1)
    photo: Field[bytes] = Field(default=b"")


def new_uri(kind: str, directory: Path, name: str = "app.db") -> str:
    return postgres.new_uri() if kind == "postgres" else f"sqlite:///{directory / name}"


@pytest.fixture(params=CALLERS, ids=lambda p: f"{p[0]}-{p[1].__name__}")
def caller(request: Any, tmp_path: Path) -> Iterator[Caller]:
    kind, cls = request.param
    uri = new_uri(kind, tmp_path)
    with Session(uri) as session:
        session.ensure(Product(sku=1))
    caller = cls(uri)
    caller.begin()
    caller.execute("DROP TABLE IF EXISTS mine")  # databases of a server are used again
    caller.execute("CREATE TABLE mine (n INTEGER)")
    caller.commit()
    yield caller
    caller.close()


@pytest.fixture
def session(caller: Caller) -> Iterator[Session]:
    with Session(caller.uri) as session:
        yield session


@pytest.fixture
def sqlite_session(tmp_path: Path) -> Iterator[Session]:
    with Session(new_uri("sqlite", tmp_path)) as session:
        yield session


@pytest.fixture
def postgres_session() -> Iterator[Session]:
    with Session(postgres.new_uri()) as session:
        yield session


def file_of(session: Session) -> str:
    return session.datastore_uri.removeprefix("sqlite:///")


def names(session: Any) -> list[str]:
    return [c.name for c in session.query().entities(Customer).order_by(Customer.id).collect()]


def handled(session: Session) -> list[str]:
    seen: list[str] = []

    @on_event(OrderPlaced)
    def collect(ctx: HandlerContext[OrderPlaced]) -> None:
        seen.append(ctx.event.order_id)

    session.run([collect], until_idle=True)
    return seen


# Commit and rollback


def test_everything_appears_when_the_caller_commits(caller: Caller, session: Session):
    caller.begin()
    caller.execute("INSERT INTO mine VALUES (1)")
    bound = session.bind(caller.connection)
    bound.ensure([Customer(id="a", name="Ada"), Subscription(left_key="a", right_key=1)])
    bound.add_commit_meta("by", "test")
    assert bound.pending == 2
    event = OrderPlaced(order_id="o1")
    commit_id = bound.commit(event=event)
    assert commit_id is not None
    assert event.id is not None
    assert bound.pending == 0
    assert names(bound) == ["Ada"]
    assert bound.query().relations(Subscription).count() == 1

    assert names(session) == []
    assert session.list_events() == []
    assert commit_id not in [c.commit_id for c in session.list_commits()]
    if caller.postgres:  # where others can write meanwhile
        assert handled(session) == []

    caller.execute("INSERT INTO mine VALUES (2)")
    caller.commit()
    assert names(session) == ["Ada"]
    assert session.get_commit(commit_id).metadata["by"] == "test"
    assert session.list_commits(1)[0].commit_id == commit_id
    (stored,) = session.list_events()
    assert (stored.id, stored.commit_id) == (event.id, commit_id)
    assert handled(session) == ["o1"]
    assert caller_rows(caller) == [(1,), (2,)]
    assert not session.verify().problems


def caller_rows(caller: Caller) -> list[Any]:
    caller.begin()
    rows = caller.execute("SELECT n FROM mine ORDER BY n")
    caller.rollback()
    return rows


def test_everything_vanishes_when_the_caller_rolls_back(caller: Caller, session: Session):
    caller.begin()
    caller.execute("INSERT INTO mine VALUES (1)")
    bound = session.bind(caller.connection)
    # Customer is not registered yet: its tables vanish, too.
    bound.ensure(Customer(id="a", name="Ada"))
    bound.commit(event=OrderPlaced(order_id="o1"))
    assert names(bound) == ["Ada"]
    caller.rollback()

    assert names(session) == []
    assert session.list_events() == []
    assert len(session.list_commits()) == 1
    assert handled(session) == []
    assert caller_rows(caller) == []
    session.ensure(Customer(id="a", name="Anna"))
    session.commit(event=OrderPlaced(order_id="o2"))
    assert names(session) == ["Anna"]
    assert handled(session) == ["o2"]
    assert not session.verify().problems


def test_two_commits_in_one_transaction(caller: Caller, session: Session):
    caller.begin()
    with session.bind(caller.connection) as bound:
        bound.ensure(Customer(id="a", name="Ada"))
        first = bound.commit(event=OrderPlaced(order_id="1"))
        bound.ensure(Customer(id="a", name="Anna"))
        second = bound.commit(event=OrderPlaced(order_id="2"))
        assert first is not None
        assert second is not None
        assert second > first
        bound.ensure(Customer(id="a", name="Anna"))
        assert bound.commit() is None
        past = bound.query().entities(Customer).as_of(first)
        assert [c.name for c in past.collect()] == ["Ada"]
    caller.commit()
    history = session.query().entities(Customer).with_history().collect()
    assert [c.name for c in history] == ["Ada", "Anna"]
    assert handled(session) == ["1", "2"]
    assert not session.verify().problems


@pytest.mark.parametrize("undo", [True, False])
def test_savepoints_of_the_caller(caller: Caller, session: Session, undo: bool):
    caller.begin()
    caller.execute("INSERT INTO mine VALUES (1)")
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="a", name="outer"))
    bound.commit(event=OrderPlaced(order_id="outer"))
    with caller.nested(undo=undo):
        bound.ensure(Customer(id="b", name="inner"))
        bound.commit(event=OrderPlaced(order_id="inner"))
    bound.ensure(Customer(id="c", name="after"))
    bound.commit()
    caller.commit()
    assert names(session) == (["outer", "after"] if undo else ["outer", "inner", "after"])
    assert handled(session) == (["outer"] if undo else ["outer", "inner"])
    assert not session.verify().problems


def test_the_block_writes_what_is_queued_or_forgets_it(caller: Caller, session: Session):
    caller.begin()
    with session.bind(caller.connection) as bound:
        bound.ensure(Customer(id="a", name="Ada"))
    assert names(session) == []
    with pytest.raises(BindError, match="has ended"):
        bound.ensure(Customer(id="b"))
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="b", name="Bob"))
    with pytest.raises(ZeroDivisionError), bound:
        1 / 0
    bound.close()
    caller.commit()
    assert names(session) == ["Ada"]


# Failures


def test_a_failure_of_ours_leaves_the_transaction_usable(
    caller: Caller, session: Session, monkeypatch: pytest.MonkeyPatch
):
    caller.begin()
    caller.execute("INSERT INTO mine VALUES (1)")
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="a", name="Ada"))
    bound.commit(event=OrderPlaced(order_id="kept"))

    from ontologia.storage.sql.events import SQLEvents

    def fail(self: Any, records: Any) -> list[bool]:
        SQLEvents_enqueue(self, records)
        self._connection.execute("SELECT nothing FROM nowhere").fetchall()
        raise AssertionError

    SQLEvents_enqueue = SQLEvents.enqueue  # noqa: N806
    monkeypatch.setattr(SQLEvents, "enqueue", fail)
    bound.ensure([Customer(id="a", name="Anna"), Customer(id="b", name="Bob")])
    with pytest.raises(OntologiaError):
        bound.commit(event=OrderPlaced(order_id="lost"))
    monkeypatch.undo()
    assert names(bound) == ["Ada"]
    assert bound.pending == 2
    bound.discard()
    with pytest.raises(ValidationError):
        bound.commit(event="no event")  # type: ignore[arg-type]
    caller.execute("INSERT INTO mine VALUES (2)")
    bound.ensure(Customer(id="c", name="Carl"))
    bound.commit()
    caller.commit()
    assert names(session) == ["Ada", "Carl"]
    assert handled(session) == ["kept"]
    assert caller_rows(caller) == [(1,), (2,)]
    assert not session.verify().problems


def test_too_much_at_once(caller: Caller):
    with Session(caller.uri, config=OntologiaConfig(max_batch_size=1)) as session:
        caller.begin()
        bound = session.bind(caller.connection)
        bound.ensure([Customer(id="a"), Customer(id="b")])
        with pytest.raises(BatchSizeExceededError):
            bound.commit()
        caller.commit()


def test_a_broken_off_commit_is_undone(
    caller: Caller, session: Session, monkeypatch: pytest.MonkeyPatch
):
    """Also by what is no error of the database."""
    caller.begin()
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="a"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    from ontologia.state.commit import Committer

    monkeypatch.setattr(Committer, "record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bound.commit(event=OrderPlaced(order_id="o"))
    monkeypatch.undo()
    assert names(bound) == []
    caller.execute("INSERT INTO mine VALUES (1)")
    caller.commit()
    assert names(session) == []
    assert caller_rows(caller) == [(1,)]


# Wrong use


def test_another_database(caller: Caller, tmp_path: Path):
    kind = "postgres" if caller.postgres else "sqlite"
    with Session(new_uri(kind, tmp_path, "other.db")) as other:
        caller.begin()
        caller.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(BindError, match="leads to"):
            other.bind(caller.connection)
        caller.commit()
    assert caller_rows(caller) == [(1,)]


def test_another_backend(caller: Caller, tmp_path: Path):
    kind = "sqlite" if caller.postgres else "postgres"
    with Session(new_uri(kind, tmp_path, "other.db")) as other:
        caller.begin()
        with pytest.raises(BindError, match="connection"):
            other.bind(caller.connection)
        caller.rollback()


@pytest.mark.parametrize("uri", ["memory://", ":memory:"])
def test_memory(uri: str):
    with (
        Session(uri) as session,
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(BindError, match="memory"),
    ):
        session.bind(connection)


@pytest.mark.parametrize("thing", [None, 5, "sqlite:///app.db", object(), threading.Lock()])
def test_no_connection_at_all(sqlite_session: Session, postgres_session: Session, thing: Any):
    for session in (sqlite_session, postgres_session):
        with pytest.raises(BindError, match="psycopg"):
            session.bind(thing)


def test_closed_session(caller: Caller, session: Session):
    caller.begin()
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="a"))
    session.close()
    for use in (
        lambda: session.bind(caller.connection),
        bound.commit,
        bound.query,
        lambda: bound.ensure(Customer(id="b")),
    ):
        with pytest.raises(SessionClosedError):
            use()
    caller.rollback()


def test_autocommit(postgres_session: Session, sqlite_session: Session):
    with psycopg.connect(postgres_session.datastore_uri, autocommit=True) as connection:
        with pytest.raises(BindError, match="autocommit"):
            postgres_session.bind(connection)
        with connection.transaction():
            bound = postgres_session.bind(connection)
            bound.ensure(Customer(id="a", name="Ada"))
            bound.commit()
        bound.ensure(Customer(id="b", name="Bob"))
        with pytest.raises(BindError, match="transaction"):
            bound.commit()
        assert connection.autocommit
    with closing(sqlite3.connect(file_of(sqlite_session), isolation_level=None)) as connection:
        with pytest.raises(BindError, match="autocommit"):
            sqlite_session.bind(connection)
        connection.execute("BEGIN")
        bound = sqlite_session.bind(connection)
        bound.ensure(Customer(id="a", name="Ada"))
        bound.commit()
        connection.execute("COMMIT")
        bound.ensure(Customer(id="b", name="Bob"))
        with pytest.raises(BindError, match="BEGIN IMMEDIATE"):
            bound.commit()
        assert connection.isolation_level is None
    assert names(postgres_session) == names(sqlite_session) == ["Ada"]


def test_autocommit_of_frameworks(caller: Caller, session: Session):
    if isinstance(caller, Django):
        with pytest.raises(BindError, match="atomic"):
            session.bind(caller.connection)
    elif type(caller) is SQLAlchemyConnection:
        options = {"isolation_level": "AUTOCOMMIT"}
        with (
            caller.engine.connect().execution_options(**options) as other,
            pytest.raises(BindError, match="autocommit"),
        ):
            session.bind(other)


def test_a_failed_transaction(postgres_session: Session):
    with psycopg.connect(postgres_session.datastore_uri) as connection:
        bound = postgres_session.bind(connection)
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nothing")
        bound.ensure(Customer(id="a", name="Ada"))
        with pytest.raises(BindError, match="failed already"):
            bound.commit()
        connection.rollback()
        bound.commit()
        with connection.pipeline(), pytest.raises(BindError, match="pipeline"):
            postgres_session.bind(connection)
    assert names(postgres_session) == ["Ada"]
    with pytest.raises(BindError, match="closed"):
        bound.query().entities(Customer).count()


def test_a_failed_block_of_django(sqlite_session: Session):
    caller = Django(sqlite_session.datastore_uri)
    caller.begin()
    caller.connection.needs_rollback = True
    with pytest.raises(BindError, match="Django will roll it back"):
        sqlite_session.bind(caller.connection)
    caller.rollback()
    caller.close()


def test_closed_connection_of_sqlalchemy(sqlite_session: Session):
    caller = SQLAlchemyConnection(sqlite_session.datastore_uri)
    caller.close()
    with pytest.raises(BindError, match="closed"):
        sqlite_session.bind(caller.connection)


def test_inside_a_handler(caller: Caller, session: Session):
    caller.begin()
    bound = session.bind(caller.connection)
    bound.ensure(Customer(id="x"))
    caller.rollback()
    found: list[type[Exception]] = []

    @on_event(OrderPlaced)
    def handler(ctx: HandlerContext[OrderPlaced]) -> None:
        for use in (lambda: session.bind(caller.connection), bound.commit):
            try:
                use()
            except BindError as error:
                found.append(type(error))

    session.commit(event=OrderPlaced(order_id="o"))
    session.run([handler], until_idle=True)
    assert found == [BindError, BindError]


def test_read_only_session(sqlite_session: Session):
    with (
        Session(f"{sqlite_session.datastore_uri}?mode=ro") as reader,
        closing(sqlite3.connect(file_of(sqlite_session))) as connection,
    ):
        bound = reader.bind(connection)
        assert names(bound) == []
        bound.ensure(Customer(id="a"))
        with pytest.raises(DatastoreReadOnlyError):
            bound.commit()


def test_another_thread(sqlite_session: Session):
    """The driver's rule; what it says comes as one of our errors."""
    with closing(sqlite3.connect(file_of(sqlite_session))) as connection:
        found: list[BaseException] = []

        def work() -> None:
            try:
                sqlite_session.bind(connection)
            except OntologiaError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert "thread" in str(found[0])


# Settings of the connection


def round_trip(session: Session, connection: Any) -> None:
    account = Account(id="ä€", balance=Decimal("1.50"), rate=0.1 + 0.2, photo=b"\x00\xff")
    with session.bind(connection) as bound:
        bound.ensure([account, Customer(id="é", name="Ünï €", tags=["ß"])])
        bound.commit(event=OrderPlaced(order_id="ø"))
        assert bound.query().entities(Account).collect() == [account]
        assert bound.query().entities(Account).sum(Account.balance) == Decimal("1.50")
        assert names(bound) == ["Ünï €"]
        bound.ensure([account, Customer(id="é", name="Ünï €", tags=["ß"])])
        assert bound.commit() is None


def test_settings_of_sqlite3(sqlite_session: Session):
    with closing(sqlite3.connect(file_of(sqlite_session))) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        connection.isolation_level = "IMMEDIATE"
        round_trip(sqlite_session, connection)
        assert connection.row_factory is sqlite3.Row
        assert connection.text_factory is bytes
        assert connection.isolation_level == "IMMEDIATE"
        assert connection.in_transaction
        assert connection.execute("SELECT 'x' AS n").fetchone()["n"] == b"x"
        connection.commit()
    assert names(sqlite_session) == ["Ünï €"]
    assert handled(sqlite_session) == ["ø"]


def test_a_role_without_the_schema(postgres_session: Session):
    with psycopg.connect(postgres_session.datastore_uri) as connection:
        connection.execute("CREATE ROLE stranger")
        connection.execute("SET LOCAL ROLE stranger")
        with pytest.raises(BindError, match="may not use the schema"):
            postgres_session.bind(connection)
        connection.rollback()


def test_a_read_only_transaction(postgres_session: Session):
    session = postgres_session
    session.ensure(Customer(id="a", name="Ada"))
    session.commit()
    with psycopg.connect(session.datastore_uri) as connection:
        connection.read_only = True
        bound = session.bind(connection)
        assert names(bound) == ["Ada"]
        bound.ensure(Customer(id="a", name="Anna"))
        with pytest.raises(DatastoreReadOnlyError):
            bound.commit()
        assert names(bound) == ["Ada"]


def test_a_lost_connection(postgres_session: Session):
    session = postgres_session
    with psycopg.connect(session.datastore_uri) as connection:
        bound = session.bind(connection)
        bound.ensure(Customer(id="a", name="Ada"))
        bound.commit(event=OrderPlaced(order_id="lost"))
        postgres.rows(
            session.datastore_uri, "SELECT pg_terminate_backend(%s)", connection.info.backend_pid
        )
        bound.ensure(Customer(id="b"))
        with pytest.raises(StorageError):
            bound.commit()
        with pytest.raises(BindError, match="closed"):
            bound.commit()
    assert names(session) == []
    assert handled(session) == []


def test_temporary_tables_of_sqlite3(sqlite_session: Session):
    with closing(sqlite3.connect(file_of(sqlite_session))) as connection:
        connection.execute("CREATE TEMP TABLE Commits (n)")
        with pytest.raises(BindError, match="Commits"):
            sqlite_session.bind(connection)


SETTINGS = ("search_path", "timezone", "datestyle", "lock_timeout", "extra_float_digits")


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel), ids=lambda level: level.name)
def test_settings_of_psycopg(postgres_session: Session, level: psycopg.IsolationLevel):
    class Text(psycopg.adapt.Loader):
        def load(self, data: Any) -> Any:
            return "?"

    def settings() -> list[Any]:
        found = [connection.pgconn.exec_(f"SHOW {name}".encode()) for name in SETTINGS]
        return [result.get_value(0, 0) for result in found]

    with psycopg.connect(
        postgres_session.datastore_uri,
        row_factory=dict_row,
        cursor_factory=psycopg.ClientCursor,
        client_encoding="latin1",
        options="-c timezone=Asia/Tokyo -c datestyle=German -c extra_float_digits=0 "
        "-c search_path=public,pg_catalog -c bytea_output=escape",
    ) as connection:
        connection.isolation_level = level
        for name in ("int8", "text", "json", "uuid"):
            connection.adapters.register_loader(name, Text)
        connection.adapters.register_loader("numeric", FloatLoader)
        connection.execute("CREATE TEMP TABLE commits (n int)")
        connection.execute("DROP TABLE IF EXISTS events")
        connection.execute("CREATE TABLE events (n int)")
        connection.execute("SET LOCAL lock_timeout = '7s'")
        before = settings()
        round_trip(postgres_session, connection)
        assert settings() == before
        assert connection.info.encoding == "iso8859-1"
        assert connection.isolation_level == level
        assert connection.row_factory is dict_row
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.execute("INSERT INTO events VALUES (1)")
        connection.commit()
        assert settings()[:3] == before[:3]
        assert settings()[3] == b"0"
    assert names(postgres_session) == ["Ünï €"]
    assert handled(postgres_session) == ["ø"]


def test_nothing_stays_on_the_connection_after_a_failure(postgres_session: Session):
    with psycopg.connect(postgres_session.datastore_uri) as connection:
        bound = postgres_session.bind(connection)
        bound.ensure(Customer(id="a", name="x" * 10_000))
        with pytest.raises(ValidationError):
            bound.commit(event=[5])  # type: ignore[list-item]
        before = connection.execute("SHOW search_path").fetchone()
        assert before == ('"$user", public',)


# Others


def test_a_snapshot_that_is_too_old(postgres_session: Session):
    """REPEATABLE READ: what others did since is refused, not overwritten."""
    session = postgres_session
    with psycopg.connect(session.datastore_uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        session.ensure(Customer(id="a", name="theirs"))
        session.commit()
        bound = session.bind(connection)
        bound.ensure(Customer(id="a", name="ours"))
        with pytest.raises(BindError, match="older"):
            bound.commit()
        connection.rollback()
        assert names(bound) == ["theirs"]
        session.ensure(Customer(id="a", name="again"))
        session.commit()
        with pytest.raises(BindError, match="run the whole transaction again"):
            bound.commit()
        connection.rollback()
        bound.commit()
        connection.commit()
    assert names(session) == ["ours"]
    assert not session.verify().problems


def test_a_snapshot_from_before_a_migration(postgres_session: Session):
    session = postgres_session

    def declare(more: bool) -> Any:
        if more:

            class Thing(Entity):
                id: Field[str] = Field(primary_key=True)
                size: Field[int] = Field(default=0)
        else:

            class Thing(Entity):  # type: ignore[no-redef]
                id: Field[str] = Field(primary_key=True)

        return Thing

    old, new = declare(False), declare(True)
    session.ensure(old(id="a"))
    session.commit()
    with psycopg.connect(session.datastore_uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        with Session(session.datastore_uri, entity_types=[new]) as other:
            other.migrate(False, force=True)
        bound = session.bind(connection)
        with pytest.raises(BindError, match="older"):
            bound.query().entities(old).collect()
        connection.rollback()


def test_readers_of_lists_wait_for_a_bound_commit(postgres_session: Session):
    """A bound transaction reading the past must not let others read it too early."""
    session = postgres_session
    session.ensure(Customer(id="z", name="Zoe"))
    session.commit()
    with psycopg.connect(session.datastore_uri) as connection:
        bound = session.bind(connection)
        bound.ensure(Customer(id="a", name="Ada"))
        early = bound.commit(event=OrderPlaced(order_id="early"))
        session.ensure(Customer(id="b", name="Bob"))
        late = session.commit(event=OrderPlaced(order_id="late"))
        assert early is not None
        assert late is not None
        assert bound.query().entities(Customer).as_of(late).count() == 3
        assert late not in [c.commit_id for c in session.list_commits()]
        assert handled(session) == []
        connection.commit()
    assert session.query().entities(Customer).as_of(late).count() == 3
    assert sorted(handled(session)) == ["early", "late"]


def test_writers_of_the_same_identity_wait(caller: Caller):
    with Session(caller.uri, config=OntologiaConfig(lock_timeout_ms=100)) as session:
        session.ensure(Customer(id="a", name="before"))
        session.commit()
        caller.begin()
        bound = session.bind(caller.connection)
        bound.ensure(Customer(id="a", name="bound"))
        bound.commit()
        session.ensure(Customer(id="a", name="other"))
        with pytest.raises(LockContentionError):
            session.commit()
        caller.commit()
        session.commit()
        assert names(session) == ["other"]


def test_two_transactions_that_wait_for_each_other(postgres_session: Session):
    session = postgres_session
    session.ensure(Customer(id="x"))
    session.commit()
    meet = threading.Barrier(2)

    def work(first: str, second: str) -> str:
        with psycopg.connect(session.datastore_uri) as connection:
            bound = session.bind(connection)
            bound.ensure(Customer(id=first, name=first + second))
            bound.commit()
            meet.wait(10)
            bound.ensure(Customer(id=second, name=first + second))
            try:
                bound.commit()
            except BindError as error:
                assert "again" in str(error.fix)  # noqa: PT017
                assert bound.pending == 1
                connection.rollback()
                return "undone"
            return first + second

    with ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(work, "ab", "ba"))
    assert found[1] == "undone"
    assert names(session) == [found[0], found[0], ""]
    assert not session.verify().problems


def test_a_schema_of_its_own_behind_a_pooler():
    uri = postgres.new_uri()
    config = OntologiaConfig(postgres_schema='my "own" schema', postgres_listen=False)
    with Session(uri, config=config) as session, psycopg.connect(uri) as connection:
        bound = session.bind(connection)
        bound.ensure(Customer(id="a", name="Ada"))
        bound.commit(event=OrderPlaced(order_id="o"))
        connection.commit()
        assert names(session) == ["Ada"]
        assert handled(session) == ["o"]
        connection.execute('DROP SCHEMA "my ""own"" schema" CASCADE')


def test_a_deferred_transaction_that_read_too_early(sqlite_session: Session):
    session = sqlite_session
    session.ensure(Customer(id="a", name="before"))
    session.commit()
    with closing(sqlite3.connect(file_of(session), isolation_level=None)) as connection:
        connection.execute("BEGIN")
        bound = session.bind(connection)
        assert names(bound) == ["before"]
        session.ensure(Customer(id="a", name="other"))
        session.commit()
        bound.ensure(Customer(id="a", name="ours"))
        with pytest.raises(BindError, match="BEGIN IMMEDIATE"):
            bound.commit()
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        bound.commit()
        connection.execute("COMMIT")
    assert names(session) == ["ours"]


@pytest.mark.parametrize("cls", [Psycopg, SQLite3])
def test_a_waiting_run_is_woken_by_the_commit_of_the_caller(cls: type[Caller], tmp_path: Path):
    uri = new_uri("postgres" if cls is Psycopg else "sqlite", tmp_path)
    config = OntologiaConfig(event_poll_interval_ms=60_000)
    seen = threading.Event()

    @on_event(OrderPlaced)
    def handler(ctx: HandlerContext[OrderPlaced]) -> None:
        seen.set()

    with Session(uri, config=config) as session:
        session.commit()
        runner = threading.Thread(target=session.run, args=([handler],))
        runner.start()
        time.sleep(0.5)
        caller = cls(uri)
        session.bind(caller.connection).commit(event=OrderPlaced(order_id="undone"))
        caller.rollback()
        session.bind(caller.connection).commit(event=OrderPlaced(order_id="done"))
        assert not seen.wait(0.3)
        caller.commit()
        assert seen.wait(5)
        session.stop()
        runner.join()
        caller.close()


def test_an_orm_session_goes_on_with_another_connection(caller: Caller, session: Session):
    """What is bound is asked for its connection each time."""
    bound = session.bind(caller.connection) if not isinstance(caller, Django) else None
    for number in range(3):
        caller.begin()
        bound = bound or session.bind(caller.connection)
        bound.ensure(Customer(id=str(number), name=str(number)))
        bound.commit()
        caller.commit()
    assert names(session) == ["0", "1", "2"]


KILLED = """
import os, sys
from support.callers import Psycopg, SQLite3
from support.models import Customer, OrderPlaced
from ontologia import Session

uri = sys.argv[1]
with Session(uri) as session:
    caller = (Psycopg if uri.startswith("postgres") else SQLite3)(uri)
    caller.execute("INSERT INTO mine VALUES (1)")
    bound = session.bind(caller.connection)
    bound.ensure([Customer(id=str(n), name="killed") for n in range(100)])
    bound.commit(event=OrderPlaced(order_id="killed"))
    if sys.argv[2] == "after":
        caller.commit()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_kill_9_around_the_commit_of_the_caller(kind: str, when: str, tmp_path: Path):
    uri = new_uri(kind, tmp_path)
    with Session(uri) as session:
        caller = (Psycopg if kind == "postgres" else SQLite3)(uri)
        caller.execute("DROP TABLE IF EXISTS mine")
        caller.execute("CREATE TABLE mine (n INTEGER)")
        caller.commit()
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, uri, when],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
        kept = when == "after"
        # The server may need a moment to notice.
        deadline = time.monotonic() + 10
        session.ensure(Customer(id="0", name="mine"))
        while True:
            try:
                session.commit()
                break
            except LockContentionError:
                assert time.monotonic() < deadline
        assert names(session) == (["mine", *["killed"] * 99] if kept else ["mine"])
        assert handled(session) == (["killed"] if kept else [])
        assert caller_rows(caller) == ([(1,)] if kept else [])
        assert not session.verify().problems
        caller.close()


def test_nothing_is_imported_before_it_is_used():
    program = (
        "import sys, ontologia; found = {'sqlalchemy', 'django', 'psycopg', 'sqlite3'} & "
        "set(sys.modules); sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_asynchronous_session_is_refused(sqlite_session: Session):
    class AsyncSession:
        """SQLAlchemy's needs a package that nothing else here needs."""

        sync_session = None

    with pytest.raises(BindError, match="asynchronous"):
        sqlite_session.bind(AsyncSession())


def test_a_wrong_driver(sqlite_session: Session):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(BindError, match=":memory:"):
        sqlite_session.bind(connection)
    engine.dispose()
