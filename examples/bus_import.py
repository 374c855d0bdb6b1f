"""Several commits in one handler: ``python examples/bus_import.py``.

A price list of 2,500 rows is imported in batches of 1,000. The first attempt breaks down in the
middle. The second starts over; what is stored already is not written again.
"""

import csv
import logging
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from ontologia import (
    Entity,
    Event,
    EventHooks,
    Field,
    HandlerContext,
    Session,
    StoredEvent,
    on_event,
)
from ontologia.testing import FakeClock

BATCH = 1_000


class BulkImport(Event):
    file_path: Field[str]


class Price(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[Decimal]


class Share:
    """Stands for a network share that goes away once, at row 1,500."""

    there = True

    def rows(self, path: str) -> Iterator[dict[str, str]]:
        with open(path, newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 1):
                if number == 1_500 and self.there:
                    self.there = False
                    raise ConnectionError(f"the share went away at row {number}")
                yield row


share = Share()


@on_event(BulkImport, renew_lease=True)  # may take longer than a lease
def import_large_dataset(ctx: HandlerContext[BulkImport]) -> None:
    batch: list[Price] = []
    for row in share.rows(ctx.event.file_path):
        batch.append(Price(sku=row["sku"], price=Decimal(row["price"])))
        if len(batch) == BATCH:
            ctx.ensure(batch)
            print(f"  up to {row['sku']}: commit {ctx.commit()}")
            batch = []
    ctx.ensure(batch)
    print(f"  the rest: commit {ctx.commit()}")


def tell(handler_id: str, event: StoredEvent, error: Exception) -> None:
    print(f"  {event.type} failed: {error}")


def main() -> None:
    logging.getLogger("ontologia").addHandler(logging.NullHandler())  # the hook tells it
    clock = FakeClock()
    hooks = EventHooks(on_event_failed=tell)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "prices.csv"
        rows = "".join(f"A{i:04},{i / 100:.2f}\n" for i in range(1, 2_501))
        file.write_text("sku,price\n" + rows, encoding="utf-8")
        with Session(f"sqlite:///{directory}/app.db", clock=clock) as session:
            session.commit(event=BulkImport(file_path=str(file)))
            print("The first attempt:")
            session.run([import_large_dataset], until_idle=True, hooks=hooks)
            print(f"  stored: {session.query().entities(Price).count()}")
            clock.advance(seconds=60)  # the pause before the next attempt is over
            print("The second attempt:")
            session.run([import_large_dataset], until_idle=True, hooks=hooks)
            print(f"  stored: {session.query().entities(Price).count()}")


if __name__ == "__main__":
    main()
