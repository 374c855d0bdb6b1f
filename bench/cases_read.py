"""Cases that read many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from bench import raw
from bench.cases import Bench, Case
from bench.data import Customer, Purchase
from bench.measure import Result, repeated
from bench.stores import session
from ontologia import Session, count, left

AGE = 42
CITY = "city-17"
# INDEXED BY and CROSS JOIN keep the raw statements on their best plan, whatever SQLite makes of the
# statistics it finds.
PRIMARY_KEY = '"sqlite_autoindex_entity_Customer_1"'
HISTORY_PRIMARY_KEY = '"sqlite_autoindex_entity_Customer_history_1"'


def contest(
    bench: Bench,
    label: str,
    limit: float,
    path: Path,
    ours: Callable[[Session], Any],
    floor: Callable[[Any], Any],
) -> Result:
    """Both sides read the same file; the number of results must agree."""
    with closing(session(path)) as target, closing(raw.connect(path)) as connection:
        n, m = len(ours(target)), len(floor(connection))
        assert n == m > 0, f"{label}: ours found {n}, raw {m}"
        return bench.clock.versus(
            label, limit, repeated(lambda: ours(target)), repeated(lambda: floor(connection))
        )


def customers_of(rows: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": id_,
            "name": name,
            "city": city,
            "age": age,
            "balance": balance,
            "active": active,
            "joined": joined,
            "note": note,
            "_commit_id": commit_id,
        }
        for id_, name, city, age, balance, active, joined, note, commit_id in rows
    ]


def indexed_filter(bench: Bench) -> Iterator[Result]:
    """``where(indexed == x).collect()`` that finds 1 % of the entities.

    Raw: a select by namespace and indexed column, told to use the index, in key order; each row
    made a dict; datetimes stay text, booleans stay integers.
    """
    n = bench.sizes.table
    statement = (
        f'SELECT {raw.COLUMNS} FROM "entity_Customer" AS t '
        f"INDEXED BY {raw.age_index(bench.stores.shop)} "
        "WHERE _namespace = ? AND age = ? ORDER BY id"
    )
    yield contest(
        bench,
        f"indexed filter, 1 % of {n:,}",
        3.0,
        bench.stores.shop,
        lambda s: s.query().entities(Customer).where(Customer.age == AGE).collect(),
        lambda c: customers_of(c.execute(statement, (raw.NAMESPACE, AGE))),
    )


def _purchases(rows: Any) -> list[tuple[Any, Any, Any]]:
    """Relations with their endpoints; an endpoint met again is not made again."""
    people: dict[str, Any] = {}
    things: dict[str, Any] = {}
    result = []
    for (
        left_key, right_key, quantity, price, bought, commit_id,
        name, city, age, balance, active, joined, note, left_commit,
        title, right_price, stock, right_commit,
    ) in rows:  # fmt: skip
        person = people.get(left_key)
        if person is None:
            person = people[left_key] = {
                "id": left_key,
                "name": name,
                "city": city,
                "age": age,
                "balance": balance,
                "active": active,
                "joined": joined,
                "note": note,
                "_commit_id": left_commit,
            }
        thing = things.get(right_key)
        if thing is None:
            thing = things[right_key] = {
                "sku": right_key,
                "title": title,
                "price": right_price,
                "stock": stock,
                "_commit_id": right_commit,
            }
        relation = {
            "left_key": left_key,
            "right_key": right_key,
            "quantity": quantity,
            "price": price,
            "bought": bought,
            "_commit_id": commit_id,
        }
        result.append((relation, person, thing))
    return result


_COLUMNS = (
    "t.left_key, t.right_key, t.quantity, t.price, t.bought, t._commit_id, "
    "l.name, l.city, l.age, l.balance, l.active, l.joined, l.note, l._commit_id, "
    "r.title, r.price, r.stock, r._commit_id"
)
_RIGHT = 'LEFT JOIN "entity_Product" AS r ON r._namespace = t._namespace AND r.sku = t.right_key'
_BY_INDEX = (
    f'SELECT {_COLUMNS} FROM "relation_Purchase" AS t '
    'CROSS JOIN "entity_Customer" AS l ON l._namespace = t._namespace AND l.id = t.left_key '
    f"{_RIGHT} WHERE t._namespace = :namespace AND t.left_key IN ("
    f'SELECT id FROM "entity_Customer" INDEXED BY {{index}} '
    "WHERE _namespace = :namespace AND age = :value) ORDER BY t.left_key, t.right_key"
)
_BY_SCAN = (
    f'SELECT {_COLUMNS} FROM "entity_Customer" AS l INDEXED BY {PRIMARY_KEY} '
    'CROSS JOIN "relation_Purchase" AS t ON t._namespace = l._namespace AND t.left_key = l.id '
    f"{_RIGHT} WHERE l._namespace = :namespace AND l.city = :value ORDER BY l.id, t.right_key"
)


def relation_filter(bench: Bench) -> Iterator[Result]:
    """``where(left(R).indexed == x).collect()``: 1 % of the relations, with both endpoints.

    Raw: one join of relation, left and right table, driven by the keys that the index gives, in
    the same order, fetching all columns of the three; a dict for each relation and for each
    distinct endpoint; datetimes stay text.
    """
    statement = _BY_INDEX.format(index=raw.age_index(bench.stores.shop))
    yield contest(
        bench,
        f"relation filter, indexed left field, {bench.sizes.relations:,} relations",
        3.0,
        bench.stores.shop,
        lambda s: s.query().relations(Purchase).where(left(Purchase).age == AGE).collect(),
        lambda c: _purchases(c.execute(statement, {"namespace": raw.NAMESPACE, "value": AGE})),
    )


def relation_scan(bench: Bench) -> Iterator[Result]:
    """``where(left(R).plain == x).collect()``: 2 % of the relations, found without an index.

    Raw: the same join, driven by a scan of the left table; results as for the indexed field.
    """
    yield contest(
        bench,
        f"relation filter, plain left field, {bench.sizes.relations:,} relations",
        3.0,
        bench.stores.shop,
        lambda s: s.query().relations(Purchase).where(left(Purchase).city == CITY).collect(),
        lambda c: _purchases(c.execute(_BY_SCAN, {"namespace": raw.NAMESPACE, "value": CITY})),
    )


def grouped(bench: Bench) -> Iterator[Result]:
    """``group_by(city).agg(count, sum, avg)`` over all entities.

    Raw: the same aggregate statement, each group made a dict.
    """
    statement = (
        'SELECT city, COUNT(*), SUM(balance), AVG(age) FROM "entity_Customer" '
        f"INDEXED BY {PRIMARY_KEY} "
        "WHERE _namespace = ? GROUP BY city ORDER BY city"
    )
    yield contest(
        bench,
        f"group_by().agg() over {bench.sizes.table:,}",
        1.5,
        bench.stores.shop,
        lambda s: (
            s.query()
            .entities(Customer)
            .group_by(Customer.city)
            .agg(n=count(), total=Customer.balance.sum(), mean=Customer.age.avg())
        ),
        lambda c: [
            {"city": city, "n": n, "total": total, "mean": mean}
            for city, n, total, mean in c.execute(statement, (raw.NAMESPACE,))
        ],
    )


def collected(bench: Bench) -> Iterator[Result]:
    """``collect()`` of all entities.

    Raw: select of all columns in key order, each row made a dict; datetimes stay text, booleans
    stay integers.
    """
    statement = (
        f'SELECT {raw.COLUMNS} FROM "entity_Customer" AS t '
        f"INDEXED BY {PRIMARY_KEY} "
        "WHERE _namespace = ? ORDER BY id"
    )
    yield contest(
        bench,
        f"collect() of {bench.sizes.table:,}",
        2.5,
        bench.stores.shop,
        lambda s: s.query().entities(Customer).collect(),
        lambda c: customers_of(c.execute(statement, (raw.NAMESPACE,))),
    )


def as_of(bench: Bench) -> Iterator[Result]:
    """``as_of(commit).collect()`` in the middle of many commits.

    Raw: select of the payloads whose commit interval holds the commit, in key order, each decoded
    with orjson into a dict; datetimes stay text.
    """
    sizes = bench.sizes
    at = 1 + sizes.commits // 2
    statement = (
        'SELECT fields_json, commit_id FROM "entity_Customer_history" '
        f"INDEXED BY {HISTORY_PRIMARY_KEY} "
        "WHERE namespace = ? AND commit_id <= ? "
        "AND (until_commit IS NULL OR until_commit > ?) ORDER BY key"
    )

    def floor(connection: Any) -> list[Any]:
        loads = orjson.loads
        result = []
        for text, commit_id in connection.execute(statement, (raw.NAMESPACE, at, at)):
            found = loads(text)
            found["_commit_id"] = commit_id
            result.append(found)
        return result

    yield contest(
        bench,
        f"as-of in the middle of {sizes.commits} commits of {sizes.changes:,}",
        2.5,
        bench.stores.versions,
        lambda s: s.query().entities(Customer).as_of(at).collect(),
        floor,
    )


def as_of_grouped(bench: Bench) -> Iterator[Result]:
    """``as_of(commit).group_by(city).agg(count, sum)`` in the middle of many commits.

    Raw: one aggregate statement over json_extract of the payloads of that moment.
    """
    sizes = bench.sizes
    at = 1 + sizes.commits // 2
    statement = (
        "SELECT json_extract(fields_json, '$.city') AS city, COUNT(*), "
        "SUM(json_extract(fields_json, '$.balance')) FROM \"entity_Customer_history\" "
        f"INDEXED BY {HISTORY_PRIMARY_KEY} "
        "WHERE namespace = ? AND commit_id <= ? "
        "AND (until_commit IS NULL OR until_commit > ?) GROUP BY 1 ORDER BY 1"
    )
    yield contest(
        bench,
        f"as-of group_by, {sizes.commits} commits of {sizes.changes:,}",
        2.5,
        bench.stores.versions,
        lambda s: (
            s.query()
            .entities(Customer)
            .as_of(at)
            .group_by(Customer.city)
            .agg(n=count(), total=Customer.balance.sum())
        ),
        lambda c: [
            {"city": city, "n": n, "total": total}
            for city, n, total in c.execute(statement, (raw.NAMESPACE, at, at))
        ],
    )


CASES: dict[str, Case] = {
    "indexed filter": indexed_filter,
    "relation filter on an indexed left field": relation_filter,
    "relation filter on a plain left field": relation_scan,
    "group_by": grouped,
    "collect": collected,
    "as-of collect": as_of,
    "as-of group_by": as_of_grouped,
}
