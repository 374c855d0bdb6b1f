"""What is particular to SQLite: the file, its tables, and what can go wrong with it."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.models import Customer, OrderPlaced, Product, Seat, Subscription
from support.sqlite import Driver, driver, rows, tamper, write_lock
from support.versions import CustomerV1, CustomerV2, migrate

from ontologia import (
    DatastoreFullError,
    DatastoreReadOnlyError,
    Entity,
    Field,
    InvalidDatastoreError,
    LockContentionError,
    OntologiaConfig,
    Session,
    StorageError,
)

__all__ = ["driver"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def session(path: Path) -> Iterator[Session]:
    with Session(str(path)) as session:
        yield session


@pytest.fixture
def stored(session: Session) -> Session:
    session.ensure([Customer(id="1", name="Ada", age=36, tags=["a"]), Customer(id="2", age=2)])
    session.ensure([Product(sku=1, price=2.5), Seat(left_key="1", right_key=1, number=3)])
    session.commit(event=OrderPlaced(order_id="o", total=5))
    session.ensure(Customer(id="1", name="Ada", age=37, tags=["a"]))
    session.commit()
    return session


# Where the file is


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:///app.db", "app.db"),
        ("sqlite:///sub/app.db", "sub/app.db"),
        ("sqlite:///{tmp}/abs.db", "abs.db"),
        ("plain.db", "plain.db"),
        ("{tmp}/plain.db", "plain.db"),
        ("sqlite:///with%20space.db", "with space.db"),
        ("what's?#&.db", "what's?#&.db"),
    ],
)
def test_uris_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, expected: str):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with Session(uri.format(tmp=tmp_path)) as session:
        session.ensure(Customer(id="1"))
    assert rows(tmp_path / expected, "SELECT id FROM entity_Customer") == [("1",)]


@pytest.mark.parametrize("uri", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str):
    monkeypatch.chdir(tmp_path)
    with Session(uri) as session:
        session.ensure(Customer(id="1"))
        session.commit()
        assert not session.capabilities.durable
    assert list(tmp_path.iterdir()) == []


# What is in it


def test_current_state_is_a_table_with_typed_columns(stored: Session, path: Path):
    assert rows(path, "SELECT id, name, age, tags, nick FROM entity_Customer ORDER BY id") == [
        ("1", "Ada", 37, '["a"]', None),
        ("2", "", 2, "[]", None),
    ]
    types = {name: kind for _, name, kind, *_ in rows(path, "PRAGMA table_info(entity_Customer)")}
    assert types["id"] == "TEXT"
    assert types["age"] == "INTEGER"
    assert rows(path, "SELECT typeof(price) FROM entity_Product") == [("real",)]
    assert rows(path, "SELECT left_key, right_key, number, note FROM relation_Seat") == [
        ("1", 1, 3, "")
    ]
    strict = rows(path, "SELECT strict FROM pragma_table_list WHERE name = 'entity_Customer'")
    assert strict == [(1,)]


def test_history_holds_canonical_json_the_version_and_the_interval(stored: Session, path: Path):
    found = rows(
        path,
        "SELECT key, commit_id, until_commit, schema_version, fields_json "
        "FROM entity_Customer_history ORDER BY key, commit_id",
    )
    assert [row[:4] for row in found] == [("1", 1, 2, 1), ("1", 2, None, 1), ("2", 1, None, 1)]
    for row in found:
        document = json.loads(row[4])
        assert row[4] == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert rows(
        path, "SELECT left_key, right_key, instance_key, commit_id FROM relation_Seat_history"
    ) == [("1", 1, 3, 1)]


def test_the_registry_and_the_log_are_tables_too(stored: Session, path: Path):
    assert rows(path, "SELECT kind, name, version FROM schema_types ORDER BY kind, name") == [
        ("entity", "Customer", 1),
        ("entity", "Product", 1),
        ("relation", "Seat", 1),
    ]
    assert rows(path, "SELECT commit_id, namespace FROM commits") == [
        (1, "default"),
        (2, "default"),
    ]
    assert rows(path, "SELECT type, payload, priority FROM events") == [
        ("order.placed", '{"order_id":"o","total":5}', 100)
    ]


def test_history_after_a_migration_keeps_the_version_it_was_written_in(
    session: Session, path: Path
):
    session.ensure(CustomerV1(id="1", name="Ada"))
    session.commit()
    before = rows(path, "SELECT * FROM entity_Customer_history")
    migrate(session, CustomerV2)
    assert rows(path, "SELECT * FROM entity_Customer_history") == before
    assert rows(path, "SELECT tier FROM entity_Customer") == [("free",)]
    session.ensure(CustomerV2(id="2", name="Bob"))
    session.commit()
    assert rows(path, "SELECT key, schema_version FROM entity_Customer_history ORDER BY key") == [
        ("1", 1),
        ("2", 2),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entity_Customer_history",
        "UPDATE entity_Customer_history SET fields_json = '{}'",
        "UPDATE entity_Customer_history SET commit_id = 9",
        "UPDATE entity_Customer_history SET schema_version = 9",
        "UPDATE entity_Customer_history SET namespace = 'x'",
        "DELETE FROM relation_Seat_history",
    ],
)
def test_history_is_append_only(stored: Session, path: Path, statement: str):
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        tamper(path, statement)
    assert stored.verify().ok


# Indexes


class Plain(Entity, name="Part"):
    id: Field[str] = Field(primary_key=True)
    color: Field[str] = ""
    price: Field[Decimal] = Decimal(0)


class Indexed(Entity, name="Part"):
    id: Field[str] = Field(primary_key=True)
    color: Field[str] = Field(default="", index=True)
    price: Field[Decimal] = Field(default=Decimal(0), index=True)


def plan(session: Session, cls: Any, *filters: Any) -> str:
    return "\n".join(session.query().entities(cls).where(*filters).explain().plan)


def test_index_true_is_a_real_index(session: Session, path: Path):
    session.ensure(Indexed(id="1"))
    session.commit()
    found = rows(
        path, "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'entity_Part'"
    )
    assert any('"color"' in (sql or "") for (sql,) in found)
    assert "USING INDEX" in plan(session, Indexed, Indexed.color == "red")
    assert "USING INDEX" in plan(session, Indexed, Indexed.price > Decimal(1))


def test_an_index_that_is_asked_for_later_is_made_by_the_next_commit(session: Session):
    session.ensure(Plain(id="1", color="red"))
    session.commit()
    session.ensure(Indexed(id="2", color="red"))
    assert session.commit() == 2
    assert "USING INDEX" in plan(session, Indexed, Indexed.color == "red")
    assert session.query().entities(Indexed).where(Indexed.color == "red").count() == 2


def test_an_index_survives_a_migration(session: Session):
    session.ensure(CustomerV1(id="1", name="Ada"))
    session.commit()
    migrate(session, CustomerV2)
    assert "USING INDEX" in plan(session, CustomerV2, CustomerV2.tier == "free")


# Durability


def test_the_journal_is_a_write_ahead_log(session: Session, path: Path):
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize(("option", "expected"), [({}, 2), ({"sqlite_synchronous": "NORMAL"}, 1)])
def test_commits_are_synchronous_unless_told_otherwise(
    path: Path, driver: Driver, option: Any, expected: int
):
    with Session(str(path), config=OntologiaConfig(**option)) as session:
        session.ensure(Customer(id="1"))
        session.commit()
        session.query().entities(Customer).collect()
        assert set(driver.pragma("synchronous")) == {expected}


# Costs


def selects(statements: list[str], table: str) -> list[str]:
    return [s for s in statements if s.startswith("SELECT") and f'"{table}"' in s]


@pytest.fixture
def traced(path: Path, driver: Driver) -> Iterator[Session]:
    with Session(str(path)) as session:
        yield session


@pytest.mark.parametrize("n", [2, 50, 3000])
def test_one_read_per_type_and_commit(traced: Session, driver: Driver, n: int):
    def objects(age: int) -> list[Any]:
        people = [Customer(id=str(i), age=age) for i in range(n)]
        seats = [Seat(left_key=str(i), right_key=1, number=age) for i in range(n)]
        return [x for pair in zip(people, seats, strict=True) for x in pair]

    traced.ensure(objects(0))
    traced.commit()
    for wanted in (objects(0), objects(1)):
        traced.ensure(wanted)
        with driver.recorded() as statements:
            traced.commit()
        assert len(selects(statements, "entity_Customer")) == 1
        assert len(selects(statements, "relation_Seat")) == 1


def test_a_small_commit_costs_the_same_in_a_large_store(
    traced: Session, driver: Driver, path: Path
):
    def commit_one(age: int) -> list[str]:
        traced.ensure([Customer(id="1", age=age), Subscription(left_key="1", right_key=1)])
        with driver.recorded() as statements:
            traced.commit(event=OrderPlaced(order_id="1"))
        return statements

    commit_one(0)
    commit_one(1)
    few = commit_one(2)
    traced.ensure([Customer(id=f"c{i}") for i in range(2000)])
    traced.ensure([Subscription(left_key=f"c{i}", right_key=i) for i in range(2000)])
    traced.commit()
    many = commit_one(3)
    assert len(many) == len(few)
    with closing(sqlite3.connect(path)) as connection:
        for statement in many:
            if statement.split()[0] in ("SELECT", "UPDATE", "INSERT"):
                steps = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
                scans = [s[3] for s in steps if s[3].startswith("SCAN") and "json_each" not in s[3]]
                assert all("LIMIT" in statement for _ in scans), (statement, scans)


def test_current_state_is_read_without_touching_history(traced: Session, driver: Driver):
    traced.ensure([Customer(id=str(i)) for i in range(10)])
    traced.commit()
    query = traced.query().entities(Customer)
    query.collect()
    with driver.recorded() as statements:
        query.where(Customer.age == 0).collect()
        query.get("1")
        query.count()
    assert statements
    assert not [s for s in statements if "_history" in s]


# Other writers


def test_a_lock_held_elsewhere_is_an_error_after_the_timeout(path: Path):
    with Session(str(path), config=OntologiaConfig(lock_timeout_ms=20)) as session:
        session.ensure(Customer(id="1"))
        with write_lock(path):
            with pytest.raises(LockContentionError) as caught:
                session.commit()
            assert session.query().entities(Customer).count() == 0
        assert caught.value.timeout_ms == 20
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert session.pending == 1
        assert session.commit() == 1


def test_a_store_can_be_opened_and_read_while_someone_writes(stored: Session, path: Path):
    with write_lock(path), Session(str(path)) as other:
        assert other.query().entities(Customer).count() == 2


# Verification


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE entity_Customer SET age = 99 WHERE id = '1'", "differs"),
        ("UPDATE entity_Customer SET _commit_id = 1 WHERE id = '1'", "differs"),
        ("DELETE FROM entity_Customer WHERE id = '1'", "not in the current state"),
        ("UPDATE entity_Customer SET id = '9' WHERE id = '1'", "no history"),
        ("UPDATE entity_Customer_history SET until_commit = 2", "ended"),
        ("UPDATE entity_Customer_history SET until_commit = NULL", "follow"),
    ],
)
def test_verify_finds_what_was_changed_behind_its_back(
    stored: Session, path: Path, statement: str, says: str
):
    assert stored.verify().ok
    tamper(path, statement)
    report = stored.verify()
    assert not report.ok
    assert says in "\n".join(map(str, report.problems))
    assert {p.type for p in report.problems} == {"Customer"}


def test_verify_finds_lost_history(stored: Session, path: Path):
    triggers = rows(
        path,
        "SELECT name FROM sqlite_master WHERE type = 'trigger' "
        "AND tbl_name = 'entity_Customer_history'",
    )
    tamper(
        path,
        *(f'DROP TRIGGER "{name}"' for (name,) in triggers),
        "DELETE FROM entity_Customer_history WHERE key = '2'",
        "UPDATE entity_Customer_history SET fields_json = replace(fields_json, '37', '38')",
    )
    assert {p.key for p in stored.verify().problems} == {"1", "2"}


# Files that cannot be used


@pytest.mark.parametrize("content", [b"not a database, but quite long\n" * 50, b"x" * 10])
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(InvalidDatastoreError, match="not a database"):
        Session(str(path))
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_datastore(path: Path):
    path.touch()
    with Session(str(path)) as session:
        session.ensure(Customer(id="1"))
        assert session.commit() == 1


def test_a_damaged_file_is_called_damaged(path: Path):
    with Session(str(path)) as session:
        session.ensure(Customer(id=str(i), name="x" * 500) for i in range(200))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(InvalidDatastoreError), Session(str(path)) as session:
        session.query().entities(Customer).collect()


def test_the_database_of_another_application_is_refused(path: Path):
    tamper(path, "CREATE TABLE commits (id INTEGER)")
    with pytest.raises(InvalidDatastoreError, match="another application"):
        Session(str(path))
    assert rows(path, "SELECT name FROM sqlite_master") == [("commits",)]


@pytest.mark.parametrize("value", ["999", "new", None])
def test_a_format_that_is_not_known_is_refused(session: Session, path: Path, value: str | None):
    tamper(
        path,
        "DELETE FROM ontologia_meta WHERE key = 'format'"
        if value is None
        else f"UPDATE ontologia_meta SET value = '{value}' WHERE key = 'format'",
    )
    with pytest.raises(InvalidDatastoreError):
        Session(str(path))


def test_directories_cannot_be_opened(tmp_path: Path):
    for wrong in (tmp_path, tmp_path / "missing" / "app.db"):
        with pytest.raises(StorageError):
            Session(str(wrong))
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_session_reads_and_does_not_write(stored: Session, path: Path):
    with Session(f"sqlite:///{path}?mode=ro") as reader:
        assert reader.query().entities(Customer).count() == 2
        reader.ensure(Customer(id="3"))
        with pytest.raises(DatastoreReadOnlyError, match="fix:"):
            reader.commit(event=OrderPlaced(order_id="1"))
        assert reader.pending == 1
        reader.discard()
    assert len(stored.list_commits()) == 2


def test_reading_what_is_not_there_creates_nothing(path: Path):
    with pytest.raises(StorageError):
        Session(f"sqlite:///{path}?mode=ro")
    assert not path.exists()


def test_a_connection_that_turned_read_only_says_so(path: Path, driver: Driver):
    with Session(str(path)) as session:
        session.ensure(Customer(id="1"))
        driver.pragma("query_only = ON")
        with pytest.raises(DatastoreReadOnlyError):
            session.commit()
        driver.pragma("query_only = OFF")
        assert session.commit() == 1


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom permissions apply to: root may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_without_write_permission_says_so():
    # Not below tmp_path, which is closed to other users.
    with TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        with Session(str(path)) as session:
            session.ensure(Customer(id="1"))
        path.chmod(0o444)
        path.parent.chmod(0o555)
        try:
            with (
                unprivileged(),
                pytest.raises(DatastoreReadOnlyError),
                Session(str(path)) as session,
            ):
                session.ensure(Customer(id="9"))
        finally:
            path.parent.chmod(0o755)
        with Session(str(path)) as session:
            assert session.query().entities(Customer).collect() == [Customer(id="1")]


def test_a_full_disk_fails_the_commit_and_nothing_is_written(path: Path, driver: Driver):
    with Session(str(path)) as session:
        session.ensure(Customer(id="1"))
        session.commit()
        (pages,) = rows(path, "PRAGMA page_count")[0]
        driver.pragma(f"max_page_count = {pages + 10}")
        session.ensure([Customer(id="1", age=2), Customer(id="big", name="x" * 1_000_000)])
        with pytest.raises(DatastoreFullError, match="fix:"):
            session.commit(event=OrderPlaced(order_id="1"))
        assert session.query().entities(Customer).collect() == [Customer(id="1")]
        assert len(session.list_commits()) == 1
        assert session.list_events() == []
        assert session.pending == 2
        driver.pragma("max_page_count = 1000000")
        assert session.commit() == 2
        assert session.verify().ok
