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
Two people sign up, one of them twice.
  mail to ada@example.com: Welcome!
  mail to bo@example.com: Welcome!
  ada has had a mail
mails sent: 2
A second run had nothing to do: every event is acknowledged.
"""

BUS_CHAIN = """\
Two orders come in.
  o1: ada pays 99.90
  o2: bo pays 12.50
  o1: packed
  o2: packed
  o1: on its way, 2 hops from the order
  o2: on its way, 2 hops from the order
What followed from the first:
  0 order.placed
  1 payment.completed
  2 order.fulfilled
"""

BUS_SCHEDULE = """\
Four logins, one for each of the last days. First by hand, then three nights:
  11 Feb 09:00: 2 closed
  12 Feb 02:00: 0 closed
  13 Feb 02:00: 1 closed
  14 Feb 02:00: 1 closed
events: 4, one by hand and one for each night
"""

BUS_IMPORT = """\
The first attempt:
  up to A1000: commit 1
  bulk.import failed: the share went away at row 1500
  stored: 1000
The second attempt:
  up to A1000: commit None
  up to A2000: commit 2
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
orders: order o1, order o2
  4 events, 0 left to handle
payments: payment of 99.90
  2 events, 0 left to handle
"""

# Parts of what the story tells, in their order.
PARTS = {"orders.py": ORDERS}

# All that the others print.
WHOLE = {
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
    assert {path.name for path in EXAMPLES.glob("*.py")} == PARTS.keys() | WHOLE.keys()


@pytest.mark.parametrize("name", [*PARTS, *WHOLE])
def test_example(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    if name in WHOLE:
        assert printed == WHOLE[name].splitlines()
    else:
        places = [printed.index(line) for line in PARTS[name].splitlines()]
        assert places == sorted(places)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
