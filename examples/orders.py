"""Order processing on an embedded SQLite file: ``python examples/orders.py``.

One morning in a small furniture shop. Each function of the story shows one thing that the library
does. The file lives in a temporary directory, and the program ends by itself.
"""

import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Literal

from ontologia import (
    BatchSizeExceededError,
    Entity,
    Event,
    Field,
    OntologiaConfig,
    Relation,
    Session,
    count,
    left,
    right,
)


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    title: Field[str]
    price: Field[Decimal] = Field(index=True)


class Order(Entity):
    id: Field[str] = Field(primary_key=True)
    status: Field[Literal["open", "paid", "shipped"]] = Field(default="open")


class PlacedBy(Relation[Order, Customer]):
    """Who placed an order."""


class Line(Relation[Order, Product]):
    """How many of a product an order is for."""

    quantity: Field[int] = Field(default=1)


class OrderPlaced(Event):
    order_id: Field[str]
    items: Field[int]


class OrderPaid(Event):
    order_id: Field[str]


class PriceCorrected(Event):
    sku: Field[str]


def commit(session: Session, what: str, *events: Event) -> int:
    """Commit something that changes state, and say so."""
    commit_id = session.commit(event=events)
    assert commit_id is not None, "nothing had changed"
    names = ", ".join(event.__event_type__ for event in events) or "no event"
    print(f"  commit {commit_id}: {what} ({names})")
    return commit_id


def place(session: Session, order_id: str, customer: str, **lines: int) -> int:
    """An order, its customer, its lines and its event: all of them or none."""
    session.ensure(Order(id=order_id))
    session.ensure(PlacedBy(left_key=order_id, right_key=customer))
    session.ensure(Line(left_key=order_id, right_key=s, quantity=n) for s, n in lines.items())
    placed = OrderPlaced(order_id=order_id, items=sum(lines.values()))
    return commit(session, f"{customer} places order {order_id}", placed)


def worth(lines: Iterable[Line]) -> Decimal:
    """What these lines cost, at the prices of the moment they were queried for."""
    return sum((line.quantity * line.right.price for line in lines), Decimal())


def open_shop(session: Session) -> None:
    """The shop opens: state and events in one commit."""
    session.ensure([Customer(id="ada", name="Ada"), Customer(id="bo", name="Bo")])
    prices = {"lamp": "39.90", "chair": "149.00", "table": "480.00"}
    session.ensure(Product(sku=s, title=s.title(), price=Decimal(p)) for s, p in prices.items())
    commit(session, "two customers, three products")
    place(session, "o1", "ada", lamp=1, chair=2)
    place(session, "o2", "bo", chair=4, table=1)
    session.ensure(Order(id="o1", status="paid"))
    commit(session, "Ada pays", OrderPaid(order_id="o1"))


def correct_a_price(session: Session) -> None:
    """A correction, and the difference it made."""
    before = session.list_commits(limit=1)[0].commit_id
    session.ensure(Product(sku="chair", title="Chair", price=Decimal("194.00")))
    session.add_commit_meta("reason", "digits swapped in the price list")
    after = commit(session, "the chair was never 149.00", PriceCorrected(sku="chair"))
    for change in session.diff(before, after).changed:
        for field, (old, new) in change.fields.items():
            print(f"  diff: {change.type} {change.key}, {field}: {old} -> {new}")
    print(f"  why: {session.get_commit(after).metadata['reason']}")


def look_back(session: Session) -> None:
    """The past is a query."""
    chair = session.query().entities(Product).where(Product.sku == "chair")
    for version in chair.with_history():
        print(f"  a version of the chair: {version.price}")
    lines = session.query().relations(Line)
    print(f"  worth of all orders as of commit 3: {worth(lines.as_of(3))}")
    print(f"  worth of the same orders today: {worth(lines)}")


def ask_questions(session: Session) -> None:
    """Questions about today."""
    lines = session.query().relations(Line)
    for row in lines.group_by(right(Line).title).agg(n=Line.quantity.sum(), orders=count()):
        print(f"  {row['right.title']}: {row['n']} in {row['orders']} order(s)")
    unpaid = lines.where(left(Line).status == "open", right(Line).price > Decimal(100))
    print(f"  expensive lines not paid for: {unpaid.count()}")
    ada = session.query().entities(Customer).where(Customer.name == "Ada")
    bought = ada.via(PlacedBy).via(Line).without_relations().to_dicts()
    print(f"  Ada ordered: {', '.join(product['title'] for product in bought)}")


def repeat_ourselves(session: Session) -> None:
    """Saying again what is already true writes nothing."""
    session.ensure(session.query().entities(Product))
    session.ensure(session.query().entities(Order))
    print(f"  ensured {session.pending} objects again, commit() returned {session.commit()}")


def fail(session: Session) -> None:
    """A commit that fails leaves everything as it was."""
    before = session.list_commits(limit=1), session.list_events()
    session.ensure(Product(sku=f"x{i}", title="?", price=Decimal(1)) for i in range(5_000))
    try:
        session.commit(event=PriceCorrected(sku="everything"))
    except BatchSizeExceededError as error:
        print(f"  {error.what}")
    after = session.list_commits(limit=1), session.list_events()
    print(f"  commits and events untouched: {before == after}; still queued: {session.pending}")
    session.discard()


def check(session: Session) -> None:
    """History proves the current state."""
    report = session.verify()
    print(f"  rebuilt {sum(report.checked.values())} objects from history, equal: {report.ok}")


def main() -> None:
    story = (open_shop, correct_a_price, look_back, ask_questions, repeat_ourselves, fail, check)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "shop.db"
        with Session(str(file), config=OntologiaConfig(max_batch_size=1_000)) as session:
            for chapter in story:
                print(chapter.__doc__)
                chapter(session)
        print("The same file, read with plain SQL.")
        with closing(sqlite3.connect(file)) as db:
            for sku, price in db.execute('SELECT sku, price FROM "entity_Product" ORDER BY sku'):
                print(f"  {sku}: {price}")


if __name__ == "__main__":
    main()
