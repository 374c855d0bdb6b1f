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

TOLD = {"orders.py": ORDERS}


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
