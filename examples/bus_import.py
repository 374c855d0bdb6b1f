"""Several commits in one handler: ``python examples/bus_import.py``.

A file of 2,500 rows is imported in batches of 1,000. The first attempt breaks down in the middle.
The second starts over; what is stored already is not written again.
"""

import csv
import logging
import tempfile
from pathlib import Path

from ontologia import Entity, Event, EventHooks, Field, HandlerContext, Session, on_event
from ontologia.testing import FakeClock

BATCH = 1_000


class BulkImport(Event):
    file_path: Field[str]


class Record(Entity):
    id: Field[int] = Field(primary_key=True)
    name: Field[str]


class Unplugged(Exception):
    """Somebody stumbled over a cable."""


class Cable:
    """Comes off once, at row 1,500."""

    plugged_in = True

    def check(self, row: int) -> None:
        if row == 1_500 and self.plugged_in:
            self.plugged_in = False
            raise Unplugged(f"at row {row}")


cable = Cable()


@on_event(BulkImport, renew_lease=True)  # may take longer than a lease
def import_large_dataset(ctx: HandlerContext[BulkImport]) -> None:
    batch: list[Record] = []
    with open(ctx.event.file_path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cable.check(int(row["id"]))
            batch.append(Record(id=int(row["id"]), name=row["name"]))
            if len(batch) == BATCH:
                ctx.ensure(batch)
                print(f"  up to row {row['id']}: commit {ctx.commit()}")
                batch = []
    ctx.ensure(batch)
    print(f"  the rest: commit {ctx.commit()}")


def tell(handler_id: str, event: object, error: Exception) -> None:
    print(f"  failed: {type(error).__name__} {error}")


def main() -> None:
    logging.getLogger("ontologia").addHandler(logging.NullHandler())  # the hook tells it
    clock = FakeClock()
    hooks = EventHooks(on_event_failed=tell)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "names.csv"
        rows = "".join(f"{i},name {i}\n" for i in range(1, 2_501))
        file.write_text("id,name\n" + rows, encoding="utf-8")
        with Session(f"sqlite:///{directory}/app.db", clock=clock) as session:
            session.commit(event=BulkImport(file_path=str(file)))
            print("The first attempt:")
            session.run([import_large_dataset], until_idle=True, hooks=hooks)
            print(f"  stored: {session.query().entities(Record).count()}")
            clock.advance(seconds=60)  # the pause before the next attempt is over
            print("The second attempt:")
            session.run([import_large_dataset], until_idle=True, hooks=hooks)
            print(f"  stored: {session.query().entities(Record).count()}")


if __name__ == "__main__":
    main()
