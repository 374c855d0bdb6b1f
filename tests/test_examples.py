"""The programs under examples/ run, end, and tell the story that they should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SECONDS = 120

ORDERS = """\
  commit 2: ada places order o1 (order.placed)
  commit 4: Ada pays (order.paid)
  diff: Product chair, price: 149.00 -> 194.00
  why: digits swapped in the price list
  worth of all orders as of commit 3: 1413.90
  worth of the same orders today: 1683.90
  Chair: 6 in 2 order(s)
  expensive lines not paid for: 2
  Ada ordered: Chair, Lamp
  ensured 5 objects again, commit() returned None
  5000 objects are queued, one commit takes at most 1000.
  commits and events untouched: True; still queued: 5000
  rebuilt 13 objects from history, equal: True
  chair: 194.00
"""

BUS_SIGNUP = """\
  mail to ada@example.com: welcome!
  mail to bo@example.com: welcome!
  ada has had a mail
mails sent: 2
"""

BUS_CHAIN = """\
  o1: 99.90 charged
  o1: packed
  o1: on its way, 2 hops from the order
  0 order.placed
  1 payment.completed
  2 order.fulfilled
"""

BUS_SCHEDULE = """\
  11 Feb 09:00: 2 archived
  12 Feb 02:00: 0 archived
  13 Feb 02:00: 1 archived
  14 Feb 02:00: 1 archived
events: 4, one by hand and one for each night
"""

BUS_IMPORT = """\
The first attempt:
  failed: Unplugged at row 1500
  stored: 1000
The second attempt:
  up to row 1000: commit None
  up to row 2000: commit 2
  the rest: commit 3
  stored: 2500
"""

BUS_WORKSPACE = """\
commit 1: a user and an event
the handler ran: True
Workspace(user_id='u1', title='Workspace of ada@example.com')
the worker has stopped
"""

BUS_NAMESPACES = """\
orders: 3 events stored
payments: 2 events stored
handled as orders: [1, 2, 3]
handled as payments: [10, 20]
"""

TOLD = {
    "orders.py": ORDERS,
    "bus_signup.py": BUS_SIGNUP,
    "bus_chain.py": BUS_CHAIN,
    "bus_schedule.py": BUS_SCHEDULE,
    "bus_import.py": BUS_IMPORT,
    "bus_workspace.py": BUS_WORKSPACE,
    "bus_namespaces.py": BUS_NAMESPACES,
}


def run(name: str, directory: Path) -> list[str]:
    """What an example prints, line by line."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TOLD.keys()


@pytest.mark.parametrize("name", TOLD)
def test_example(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    places = [printed.index(line) for line in TOLD[name].splitlines()]
    assert places == sorted(places)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
