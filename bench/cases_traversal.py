"""The case that follows relations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from bench import raw
from bench.cases import Bench, Case
from bench.cases_read import contest, customers_of
from bench.data import Customer, Purchase, Supply, customer_key
from bench.measure import Result

_SOURCES = (
    f'SELECT {raw.COLUMNS} FROM "entity_Customer" AS t WHERE _namespace = ? AND id < ? ORDER BY id'
)
_BOUGHT = (
    "SELECT t.left_key, t.right_key, t.quantity, t.price, t.bought, t._commit_id "
    'FROM json_each(?) AS k CROSS JOIN "relation_Purchase" AS t '
    "ON t._namespace = ? AND t.left_key = k.value"
)
_PRODUCTS = (
    "SELECT t.sku, t.title, t.price, t.stock, t._commit_id "
    'FROM json_each(?) AS k CROSS JOIN "entity_Product" AS t '
    "ON t._namespace = ? AND t.sku = k.value"
)
_SUPPLIED = (
    "SELECT t.left_key, t.right_key, t.cost, t.days, t._commit_id "
    'FROM json_each(?) AS k CROSS JOIN "relation_Supply" AS t '
    "ON t._namespace = ? AND t.left_key = k.value"
)
_SUPPLIERS = (
    "SELECT t.id, t.name, t.country, t._commit_id "
    'FROM json_each(?) AS k CROSS JOIN "entity_Supplier" AS t '
    "ON t._namespace = ? AND t.id = k.value"
)

Found = dict[str, Any]


def _paths(connection: Any, below: str) -> list[tuple[Found, Found, Found, Found, Found]]:
    def among(statement: str, keys: Any) -> Any:
        return connection.execute(statement, (orjson.dumps(list(keys)).decode(), raw.NAMESPACE))

    sources = {
        c["id"]: c for c in customers_of(connection.execute(_SOURCES, (raw.NAMESPACE, below)))
    }
    bought = [
        {
            "left_key": left_key,
            "right_key": right_key,
            "quantity": quantity,
            "price": price,
            "bought": at,
            "_commit_id": commit_id,
        }
        for left_key, right_key, quantity, price, at, commit_id in among(_BOUGHT, sources)
    ]
    products = {
        sku: {"sku": sku, "title": title, "price": price, "stock": stock, "_commit_id": commit_id}
        for sku, title, price, stock, commit_id in among(
            _PRODUCTS, {b["right_key"] for b in bought}
        )
    }
    supplied: dict[str, list[Found]] = {}
    for left_key, right_key, cost, days, commit_id in among(_SUPPLIED, products):
        supplied.setdefault(left_key, []).append(
            {
                "left_key": left_key,
                "right_key": right_key,
                "cost": cost,
                "days": days,
                "_commit_id": commit_id,
            }
        )
    suppliers = {
        id_: {"id": id_, "name": name, "country": country, "_commit_id": commit_id}
        for id_, name, country, commit_id in among(
            _SUPPLIERS, {s["right_key"] for found in supplied.values() for s in found}
        )
    }
    return [
        (sources[b["left_key"]], b, products[b["right_key"]], s, suppliers[s["right_key"]])
        for b in bought
        for s in supplied.get(b["right_key"], ())
    ]


def two_hops(bench: Bench) -> Iterator[Result]:
    """``where(...).via(R).via(S).collect()``: paths with relations, endpoints and sources.

    Raw: one select for the sources, one per relation by the keys found before, one per endpoint
    type by its distinct keys (keys bound as one JSON array); a dict for each row; then one tuple
    per path of source, relation, product, relation and supplier. Faster than a join of all five
    tables, which would fetch the columns of an entity once per path.
    """
    n = bench.sizes.sources
    below = customer_key(n)
    yield contest(
        bench,
        f"two-hop traversal from {n:,}",
        4.0,
        bench.stores.shop,
        lambda s: (
            s.query().entities(Customer).where(Customer.id < below).via(Purchase).via(Supply)
        ).collect(),
        lambda c: _paths(c, below),
    )


CASES: dict[str, Case] = {
    "two-hop traversal": two_hops,
}
