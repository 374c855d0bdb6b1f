"""Run the project's checks side by side: ``python tools/check.py [name ...]``.

Prints one line per check as it ends, the whole output of those that fail, and
exits with 1 if any did.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDE_BY_SIDE = 2

# In the order they start: the quick ones first, then the tests beside the type checkers.
CHECKS: dict[str, Sequence[str]] = {
    "format": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "--output-format", "concise", "."),
    "tests": ("pytest", "-q", "-n", "auto", "--dist", "worksteal"),
    "mypy": ("mypy",),
    "pyright": ("pyright", "--pythonpath", sys.executable),
    "imports": ("lint-imports",),
}


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: bool
    seconds: float
    output: str

    def report(self) -> str:
        lines = self.output.splitlines()
        verdict = "ok" if self.passed else "FAILED"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        head = f"{verdict:<6}  {self.name:<8} {self.seconds:6.1f} s  {last}".rstrip()
        if self.passed:
            told = [line for line in lines if line.startswith(("SKIPPED", "XFAIL"))]
        else:
            told = lines
        return "\n".join([head, *(f"    {line}" for line in told)])


def run(name: str) -> Outcome:
    program, *arguments = CHECKS[name]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=ROOT,
            # pyright would look on the network for a newer release of itself.
            env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Outcome(name, False, time.perf_counter() - started, str(error))
    return Outcome(name, done.returncode == 0, time.perf_counter() - started, done.stdout)


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"no check called {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
        return 2
    failed: list[str] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for future in as_completed([pool.submit(run, name) for name in names or CHECKS]):
            outcome = future.result()
            print(outcome.report(), flush=True)
            if not outcome.passed:
                failed.append(outcome.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
