"""Bad input gets an error of ours that says what to do, the same on every backend, and nothing
is written."""

import pickle
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.models import Customer, OrderPlaced, Product, Seat, Subscription

import ontologia
from ontologia import (
    ConfigError,
    DatastoreURIError,
    Entity,
    Event,
    Field,
    FilterTruthError,
    ModelDefinitionError,
    OntologiaConfig,
    OntologiaError,
    QueryError,
    Relation,
    SchemaError,
    Session,
    ValidationError,
    count,
    left,
    load_upgraders,
    right,
)

MB10 = 10 * 1024 * 1024


class Document(Entity):
    id: Field[str] = Field(primary_key=True)
    body: Field[dict] = Field(default_factory=dict)
    lines: Field[list[dict[str, int]]] = Field(default_factory=list)


class Folder(Entity):
    id: Field[str] = Field(primary_key=True)


class Contains(Event):
    document: Field[dict]


@pytest.fixture
def stored(session: Session) -> Iterator[Session]:
    """A session with some state; afterwards that state must be all there is."""
    session.ensure([Customer(id="1", name="Ada"), Product(sku=1), Document(id="d", body={"a": 1})])
    session.ensure(
        [Subscription(left_key="1", right_key=1), Seat(left_key="1", right_key=1, number=1)]
    )
    session.commit()
    yield session
    session.commit()
    assert [c.commit_id for c in session.list_commits()] == [1]
    assert session.list_events() == []
    assert session.verify().ok


def refuse(kind: type[OntologiaError], act: Callable[[], Any]) -> OntologiaError:
    """The error, checked to be of one kind and to be helpful."""
    with pytest.raises(kind) as caught:
        act()
    error = caught.value
    assert error.code
    assert len(str(error)) < 2_000
    return error


# Where the store is


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://localhost/x?colour=red",
        "http://example.com/app.db",
        "sqlite5:///x.db",
        "sqlite://host/x.db",
        "sqlite:///x.db?mode=rwc",
        "sqlite:///x.db?cache=shared",
        "",
        "   ",
        "a\0b",
        None,
        5,
    ],
)
def test_unknown_datastore_uris(uri: Any):
    error = refuse(DatastoreURIError, lambda: Session(uri))
    assert "fix:" in str(error)


# Values


@pytest.mark.parametrize(
    "values",
    [
        {"name": 1},
        {"name": None},
        {"age": "old"},
        {"age": 2**63},
        {"age": -(2**63) - 1},
        {"age": float("nan")},
        {"age": float("inf")},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"tags": ["ok", "\0"]},
        {"tags": ["\udc00"]},
        {"tags": {"a": 1}},
        {"id": ""},
        {"id": None},
        {"id": "\0"},
        {"id": "\ud800"},
        {"surname": "L."},
    ],
    ids=repr,
)
def test_wrong_values_and_unknown_fields(stored: Session, values: dict[str, Any]):
    error = refuse(ValidationError, lambda: stored.ensure(Customer(**{"id": "2", **values})))
    (name,) = values
    assert (error.type_name, error.field.split(".")[0]) == ("Customer", name)


@pytest.mark.parametrize(
    "body",
    [
        {"a": float("nan")},
        {"a": [2**63]},
        {"a": {"b": "\0"}},
        {"\ud800": 1},
        {1: "a"},
        {"a": datetime(2026, 1, 1)},
        {"a": date(2026, 1, 1)},
        {"a": Decimal(1)},
        {"a": UUID(int=1)},
        {"a": b"x"},
        {"a": (1, 2)},
        {"a": {1, 2}},
    ],
    ids=repr,
)
def test_documents_that_json_cannot_hold_exactly(stored: Session, body: Any):
    refuse(ValidationError, lambda: stored.ensure(Document(id="x", body=body)))
    refuse(ValidationError, lambda: stored.commit(event=Contains(document=body)))

    document = Document(id="x")
    document.body.update(body)
    refuse(ValidationError, lambda: stored.ensure(document))

    event = Contains(document={})
    event.document.update(body)
    refuse(ValidationError, lambda: stored.commit(event=event))


def test_documents_that_contain_themselves(stored: Session):
    loop: dict[str, Any] = {}
    loop["self"] = loop
    refuse(ValidationError, lambda: stored.ensure(Document(id="x", body=loop)))


def nested(depth: int) -> Any:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


def test_documents_nested_beyond_all_depth(stored: Session):
    refuse(ValidationError, lambda: stored.ensure(Document(id="x", body={"a": nested(100_000)})))


@pytest.mark.parametrize("depth", [100, 300, 900])
def test_deep_documents_are_stored_exactly_or_refused(session: Session, depth: int):
    body = {"a": nested(depth)}
    try:
        session.ensure(Document(id="x", body=body))
    except ValidationError:
        assert depth > 100
        return
    session.commit()
    query = session.query().entities(Document)
    for found in (query.get("x"), query.as_of(1).get("x"), query.where(D.body == body).first()):
        assert found.body == body


@pytest.mark.parametrize(
    "keys",
    [
        {"left_key": "", "right_key": 1},
        {"left_key": "1", "right_key": "x"},
        {"left_key": "1", "right_key": 2**63},
        {"left_key": "\0", "right_key": 1},
        {"left_key": None, "right_key": 1},
        {"left_key": "1"},
    ],
    ids=repr,
)
def test_wrong_ends_of_a_relation(stored: Session, keys: dict[str, Any]):
    refuse(ValidationError, lambda: stored.ensure(Subscription(**keys)))


def test_a_string_of_10_mb_is_an_ordinary_value(session: Session):
    long = "é" * (MB10 // 2)
    session.ensure(Customer(id="1", name=long, tags=[long]))
    session.commit()
    found = session.query().entities(Customer).where(Customer.name == long).first()
    assert (found.name == long, found.tags == [long]) == (True, True)
    session.ensure(found)
    assert session.commit() is None


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
def test_errors_about_10_mb_stay_short(stored: Session, bad: str):
    long = "x" * MB10 + bad
    refuse(ValidationError, lambda: Customer(id="2", name=long))
    refuse(ValidationError, lambda: Customer(id="2", tags=[long]))
    refuse(ValidationError, lambda: Document(id="2", body={"a": long}))
    refuse(ValidationError, lambda: stored.query().entities(Customer).get(long))
    refuse(QueryError, lambda: stored.query().entities(Customer).where(Customer.age == long))
    document = Document(id="2")
    document.lines.append(long)
    refuse(ValidationError, lambda: stored.ensure(document))


# Queries

C, P, S, D = Customer, Product, Subscription, Document
BAD_FILTERS: dict[str, tuple[type[Entity], Callable[[], Any]]] = {
    "== None": (C, lambda: C.name == None),  # noqa: E711
    "!= None": (C, lambda: C.name != None),  # noqa: E711
    "== True": (C, lambda: C.age == True),  # noqa: E712
    "== False": (C, lambda: C.age == False),  # noqa: E712
    "unknown field": (C, lambda: C.nmae == "x"),
    "unknown operator": (C, lambda: C.name.like("x%")),
    "unsupported operator": (C, lambda: C.age + 1 > 2),
    "field against field": (C, lambda: C.age == C.name),
    "wrong type": (C, lambda: C.age > "x"),
    "wrong type in list": (C, lambda: C.age.in_([1, "x"])),
    "text for a list": (C, lambda: C.name.in_("abc")),
    "none in a list": (C, lambda: C.name.in_(["a", None])),
    "no list": (C, lambda: C.age.in_(5)),
    "operator of another type": (C, lambda: C.age.startswith("1")),
    "operator without text": (C, lambda: C.name.contains(5)),
    "truth of a text": (C, lambda: C.name.is_true()),
    "beyond 64 bit": (C, lambda: C.age == 2**63),
    "beyond 64 bit in list": (C, lambda: C.age.in_([2**63])),
    "not a number": (P, lambda: P.price > float("nan")),
    "infinity": (P, lambda: P.price < float("inf")),
    "NUL": (C, lambda: C.name == "a\0"),
    "NUL in list": (C, lambda: C.name.in_(["a\0"])),
    "surrogate": (C, lambda: C.name.startswith("\ud800")),
    "empty path": (D, lambda: D.body.path("") == 1),
    "path with an empty part": (D, lambda: D.body.path("a..b") == 1),
    "path with a quote": (D, lambda: D.body.path('a"b') == 1),
    "path with NUL": (D, lambda: D.body["\0"] == 1),
    "path with a surrogate": (D, lambda: D.body["\ud800"] == 1),
    "path that is no text": (D, lambda: D.body[0] == 1),
    "path into a text": (C, lambda: C.name.path("a") == 1),
    "path into a list": (D, lambda: D.lines.path("a") == 1),
    "any_path into a text": (C, lambda: C.name.any_path("a") == 1),
    "any_path twice": (D, lambda: D.lines.any_path("a").any_path("b") == 1),
    "NaN at a path": (D, lambda: D.body["a"] == float("nan")),
    "no JSON value at a path": (D, lambda: D.body["a"] == object()),
    "another entity": (C, lambda: P.price > 1.0),
    "an aggregate": (C, lambda: count() > 1),
    "an endpoint of an entity": (C, lambda: left(S).name == "x"),
    "no filter": (C, lambda: "name = 'x'"),
    "python's verdict": (C, lambda: True),
}


@pytest.mark.parametrize(("owner", "build"), BAD_FILTERS.values(), ids=BAD_FILTERS)
def test_filters_that_make_no_sense(stored: Session, owner: Any, build: Callable[[], Any]):
    refuse(QueryError, lambda: stored.query().entities(owner).where(build()).collect())


@pytest.mark.parametrize(
    "judge",
    [
        lambda: bool(C.age > 1),
        lambda: (C.age > 1) and (C.age < 3),
        lambda: not (C.age > 1),
        lambda: 1 < C.age < 3,
        lambda: [1] if C.name == "x" else [2],
        lambda: bool(C.age),
        lambda: C.name in ["x", "y"],
    ],
)
def test_filters_are_no_truth_values(judge: Callable[[], Any]):
    error = refuse(FilterTruthError, judge)
    assert isinstance(error, TypeError)


def test_filters_combine_with_filters_only():
    refuse(QueryError, lambda: (C.age > 1) & True)
    refuse(QueryError, lambda: (C.age > 1) | (C.age))
    refuse(QueryError, lambda: (C.age > 1) & "age < 3")


ENDPOINTS: dict[str, Callable[[Any], Any]] = {
    "unknown field": lambda q: q.where(left(S).nothing == 1),
    "field of the other end": lambda q: q.where(right(S).name == "x"),
    "ends of another relation": lambda q: q.where(left(Seat).name == "x"),
    "entity in place of a relation": lambda q: q.where(left(C).name == "x"),
    "field of the entity itself": lambda q: q.where(C.name == "x"),
}


@pytest.mark.parametrize("build", ENDPOINTS.values(), ids=ENDPOINTS)
def test_endpoints_that_make_no_sense(stored: Session, build: Callable[[Any], Any]):
    refuse(OntologiaError, lambda: build(stored.query().relations(S)).collect())


BUILDERS: dict[str, Callable[[Any], Any]] = {
    "negative limit": lambda q: q.limit(-1),
    "negative offset": lambda q: q.offset(-1),
    "limit of a text": lambda q: q.limit("5"),
    "limit of a float": lambda q: q.limit(1.0),
    "limit of True": lambda q: q.limit(True),
    "no limit": lambda q: q.limit(None),
    "huge offset": lambda q: q.offset(2**64),
    "as_of a negative commit": lambda q: q.as_of(-1),
    "as_of a text": lambda q: q.as_of("yesterday"),
    "as_of a naive time": lambda q: q.as_of(datetime(2026, 1, 1)),
    "history since a negative commit": lambda q: q.history_since(-1),
    "order by a text": lambda q: q.order_by("age"),
    "order by another entity": lambda q: q.order_by(P.price),
    "order by a list": lambda q: q.order_by(C.tags),
    "group by nothing": lambda q: q.group_by(),
    "group by a list": lambda q: q.group_by(C.tags),
    "group by another entity": lambda q: q.group_by(P.price),
    "sum of a text": lambda q: q.sum(C.name),
    "avg of another entity": lambda q: q.avg(P.price),
    "avg_len of a number": lambda q: q.avg_len(C.age),
    "sum of no field": lambda q: q.sum("age"),
    "having a plain filter": lambda q: q.group_by(C.age).having(C.age > 1),
    "two columns of one name": lambda q: q.group_by(C.age).agg(age=count()),
    "a number as an aggregate": lambda q: q.group_by(C.age).agg(n=1),
    "an aggregate of a page": lambda q: q.limit(1).count(),
    "via an entity": lambda q: q.via(P),
    "via a foreign relation": lambda q: q.via(Contained),
    "get with a wrong type": lambda q: q.get(5),
    "get with an empty key": lambda q: q.get(""),
    "get with None": lambda q: q.get(None),
    "get with NUL": lambda q: q.get("\0"),
}


class Contained(Relation[Document, Folder]):
    """A relation that has nothing to do with customers."""


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_builders_refuse_what_makes_no_sense(stored: Session, build: Callable[[Any], Any]):
    def act() -> Any:
        result = build(stored.query().entities(Customer))
        return result.collect() if hasattr(result, "collect") else result

    with pytest.raises(OntologiaError) as caught:
        act()
    assert isinstance(caught.value, QueryError | ValidationError | ModelDefinitionError)
    assert len(str(caught.value)) < 2_000


def test_only_classes_of_the_right_kind_are_queried(stored: Session):
    for wrong in (Subscription, OrderPlaced, str, "Customer", None, Customer(id="1")):
        refuse(OntologiaError, lambda wrong=wrong: stored.query().entities(wrong))
    for wrong in (Customer, OrderPlaced, dict, None):
        refuse(OntologiaError, lambda wrong=wrong: stored.query().relations(wrong))


# What a session is told


@pytest.mark.parametrize(
    "options",
    [
        {"entity_types": [str]},
        {"entity_types": ["Customer"]},
        {"entity_types": [Subscription]},
        {"entity_types": [OrderPlaced]},
        {"relation_types": [Customer]},
        {"config": {"max_batch_size": 5}},
        {"upgraders": [len]},
        {"upgraders": "no.such.module"},
    ],
    ids=lambda options: f"{next(iter(options))}",
)
def test_sessions_refuse_options_that_make_no_sense(uri: str, options: dict[str, Any]):
    refuse(OntologiaError, lambda: Session(uri, **options))


@pytest.mark.parametrize(
    "option",
    [
        {"max_batch_size": 0},
        {"max_batch_size": -1},
        {"max_batch_size": "10"},
        {"max_batch_size": True},
        {"lock_timeout_ms": 1.5},
        {"lock_timeout_ms": 2**60},
        {"sqlite_synchronous": "OFF"},
        {"default_namespace": ""},
        {"event_backoff_base_ms": 100, "event_backoff_max_ms": 50},
    ],
    ids=repr,
)
def test_configuration_out_of_range(option: dict[str, Any]):
    refuse(ConfigError, lambda: OntologiaConfig(**option))


def test_configuration_from_the_environment_is_checked_too():
    environment = {"ONTOLOGIA_MAX_BATCH_SIZE": "5", "UNRELATED": "x"}
    assert OntologiaConfig.from_env(environment).max_batch_size == 5
    assert OntologiaConfig.from_env(environment, max_batch_size=7).max_batch_size == 7
    error = refuse(ConfigError, lambda: OntologiaConfig.from_env({"ONTOLOGIA_MAX_BATCH_SIZE": "x"}))
    assert "ONTOLOGIA_MAX_BATCH_SIZE" in str(error)


def test_every_error_is_public_and_has_a_code_of_its_own():
    found = [
        value
        for value in vars(ontologia.errors).values()
        if isinstance(value, type) and issubclass(value, OntologiaError)
    ]
    assert all(getattr(ontologia, kind.__name__) is kind for kind in found)
    assert len({kind.code for kind in found}) == len(found)


def test_errors_travel_between_processes():
    error = refuse(ValidationError, lambda: Customer(id="", age="x"))
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert (twin.type_name, twin.field, len(twin.errors)) == ("Customer", error.field, 2)


def test_text_never_becomes_sql(session: Session):
    evil = "'; DROP TABLE commits; --\"`)"
    session.ensure(Customer(id=evil, name=evil, tags=[evil]))
    session.add_commit_meta(evil, evil)
    session.commit()
    query = session.query().entities(Customer)
    assert query.where(C.name == evil, C.name.contains(evil), C.name.in_([evil])).count() == 1
    assert query.where(C.tags.any_path() == evil).get(evil).name == evil
    assert query.as_of(1).where(C.name.startswith(evil)).count() == 1
    assert session.get_commit(1).metadata[evil] == evil


@pytest.mark.parametrize(
    "uri",
    [
        "memory:",
        "redis:foo",
        "sqlite:x.db",
        "file:x.db",
        "sqlite:///x.db?mode=ro&mode=rw",
        "sqlite:///a%00b.db",
        "\ud800.db",
        "a\0b.db",
    ],
)
def test_uris_that_only_look_right_create_nothing(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatastoreURIError, match="fix:"):
        Session(uri)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["", ".rel", "no.such.module", 5, None])
def test_modules_of_upgraders_that_cannot_be(module: Any):
    with pytest.raises(SchemaError):
        load_upgraders(module)


def test_waiting_has_an_end():
    with pytest.raises(ConfigError, match="24 days"):
        OntologiaConfig(lock_timeout_ms=2**31)
