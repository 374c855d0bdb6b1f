"""Results as dicts, Arrow tables and data frames."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import AwareDatetime, NaiveDatetime

from ontologia import Entity, Field, MissingDependencyError, Relation, Session

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Geo:
    lat: float
    note: str | None = None


class Row(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    real: Field[float | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)
    raw: Field[bytes | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    ref: Field[UUID | None] = Field(default=None)
    aware: Field[AwareDatetime | None] = Field(default=None)
    naive: Field[NaiveDatetime | None] = Field(default=None)
    color: Field[Color | None] = Field(default=None)
    level: Field[Level | None] = Field(default=None)
    size: Field[Literal["s", "m"] | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    geo: Field[Geo | None] = Field(default=None)
    data: Field[dict[str, Any]] = Field(default_factory=dict)


class Link(Relation[Row, Row]):
    note: Field[str] = Field(default="")


FULL: dict[str, Any] = {
    "id": "full",
    "whole": 2**63 - 1,
    "real": 0.1,
    "flag": True,
    "raw": b"\x00\xff",
    "day": date(2024, 2, 29),
    "ref": UUID(int=7),
    "aware": datetime(2024, 1, 1, 12, 0, 0, 5, tzinfo=UTC),
    "naive": datetime(2024, 1, 1, 12),
    "color": Color.RED,
    "level": Level.LOW,
    "size": "s",
    "price": Decimal("1.50"),
    "tags": ["a", "é"],
    "geo": Geo(lat=1.5, note="n"),
    "data": {"x": 1},
}
TYPES = {
    "id": pa.string(),
    "whole": pa.int64(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "ref": pa.string(),
    "aware": pa.timestamp("us", tz="UTC"),
    "naive": pa.timestamp("us"),
    "color": pa.string(),
    "level": pa.int64(),
    "size": pa.string(),
}


@pytest.fixture
def rows(session: Session) -> Any:
    """A query over a row full of values and one with nulls."""
    session.ensure([Row(**FULL), Row(id="none")])
    session.commit()
    return session.query().entities(Row)


def test_dicts_hold_python_values_in_field_order(rows: Any) -> None:
    for query in (rows, rows.as_of(1)):
        first, second = query.to_dicts()
        assert first == FULL
        assert list(first) == list(Row(id="x").model_dump())
        assert second["tags"] == []
        assert second["whole"] is None
    assert rows.with_history().to_dicts()[0] == FULL | {"_commit_id": 1}
    assert rows.where(Row.id == "nothing").to_dicts() == []


def test_dicts_follow_order_and_limit(rows: Any) -> None:
    assert [d["id"] for d in rows.order_by(Row.id.desc()).limit(1).to_dicts()] == ["none"]


def test_dicts_of_relations_have_both_keys(session: Session) -> None:
    session.ensure(Link(left_key="a", right_key="b", note="n"))
    session.commit()
    expected = [{"left_key": "a", "right_key": "b", "note": "n"}]
    assert session.query().relations(Link).to_dicts() == expected


def test_arrow_columns_have_the_types_of_the_fields(rows: Any) -> None:
    for query in (rows, rows.as_of(1)):
        table = query.to_arrow()
        assert table.column_names == list(FULL)
        for name, type_ in TYPES.items():
            assert table.schema.field(name).type == type_, name
        assert pa.types.is_decimal(table.schema.field("price").type)
        assert table.schema.field("tags").type == pa.list_(pa.string())
        assert pa.types.is_struct(table.schema.field("geo").type)


def test_arrow_values_are_complete(rows: Any) -> None:
    first, second = rows.to_arrow().to_pylist()
    assert first["whole"] == 2**63 - 1
    assert first["aware"] == FULL["aware"]
    assert first["naive"] == FULL["naive"]
    assert first["ref"] == str(FULL["ref"])
    assert first["color"] == "red"
    assert first["price"] == Decimal("1.50")
    assert first["raw"] == b"\x00\xff"
    assert first["tags"] == ["a", "é"]
    assert first["geo"] == {"lat": 1.5, "note": "n"}
    assert second["price"] is None
    assert second["geo"] is None


@pytest.mark.parametrize("name", TYPES)
def test_arrow_types_do_not_depend_on_the_rows(rows: Any, name: str) -> None:
    only_nulls = rows.where(Row.id == "none").to_arrow()
    empty = rows.where(Row.id == "nothing").to_arrow()
    assert empty.num_rows == 0
    assert only_nulls.num_rows == 1
    assert only_nulls.schema.field(name).type == TYPES[name]
    assert empty.schema.field(name).type == TYPES[name]


def test_an_empty_arrow_table_has_all_columns(session: Session) -> None:
    table = session.query().entities(Row).to_arrow()
    assert table.num_rows == 0
    assert table.column_names == list(FULL)


def test_arrow_history_tells_the_commit(rows: Any) -> None:
    table = rows.with_history().to_arrow()
    assert table.column("_commit_id").to_pylist() == [1, 1]
    assert table.schema.field("_commit_id").type == pa.int64()


def test_arrow_keeps_values_without_a_common_type(session: Session) -> None:
    session.ensure([Row(id="a", data={"x": 1}), Row(id="b", data={"x": "text", "y": [1]})])
    session.commit()
    table = session.query().entities(Row).to_arrow()
    assert table.num_rows == 2
    assert all(value is not None for value in table.column("data").to_pylist())


def test_arrow_takes_naive_and_aware_times_in_one_column(session: Session) -> None:
    class Mixed(Entity):
        id: Field[int] = Field(primary_key=True)
        at: Field[datetime]

    session.ensure([Mixed(id=1, at=datetime(2024, 1, 1)), Mixed(id=2, at=datetime.now(UTC))])
    session.commit()
    assert session.query().entities(Mixed).to_arrow().num_rows == 2


def test_arrow_takes_decimals_of_any_scale(session: Session) -> None:
    prices = [Decimal("1.5"), Decimal("-1E+10"), Decimal("0.000000000001"), Decimal("1E+100")]
    session.ensure(Row(id=str(i), price=p) for i, p in enumerate(prices))
    session.commit()
    found = session.query().entities(Row).to_arrow().column("price").to_pylist()
    assert [Decimal(v) for v in found] == prices


def test_data_frames_have_a_column_per_field(rows: Any) -> None:
    for query in (rows, rows.as_of(1)):
        frame = query.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        assert list(frame.columns) == list(FULL)
        assert frame["id"].tolist() == ["full", "none"]
        assert str(frame["aware"].dtype).startswith("datetime64")
        assert frame["tags"][0].tolist() == ["a", "é"]
    assert rows.with_history().to_pandas()["_commit_id"].tolist() == [1, 1]


def test_empty_data_frames_keep_their_columns(session: Session) -> None:
    frame = session.query().relations(Link).to_pandas()
    assert frame.empty
    assert list(frame.columns) == ["left_key", "right_key", "note"]


@pytest.mark.parametrize("package", ["pyarrow", "pandas"])
def test_a_missing_package_is_named(
    session: Session, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    session.ensure(Row(id="a"))
    session.commit()
    query = session.query().entities(Row)
    assert query.to_arrow().num_rows == 1
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match="pip install") as caught:
        query.to_pandas()
    assert caught.value.package == package
