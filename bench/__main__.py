"""``python -m bench``: measure, print a table, and optionally write JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import (
    cases_events,
    cases_lookup,
    cases_postgres,
    cases_read,
    cases_traversal,
    cases_write,
)
from bench.cases import Bench, Case
from bench.data import FULL, QUICK
from bench.measure import Clock, Result
from bench.stores import Stores

CASES: dict[str, Case] = {
    **cases_write.CASES,
    **cases_lookup.CASES,
    **cases_read.CASES,
    **cases_traversal.CASES,
    **cases_events.CASES,
    **cases_postgres.CASES,
}

HEADER = ("case", "ours", "raw", "ratio", "limit", "verdict", "growth")


def as_json(result: Result) -> dict[str, Any]:
    """One line as JSON: times in seconds per operation, None where there is no limit."""
    return {
        "case": result.case,
        "ours": result.ours,
        "raw": result.raw,
        "ratio": None if result.ratio is None else round(result.ratio, 3),
        "limit": result.limit,
        "at_most": result.at_most,
        "growth": None if result.growth is None else round(result.growth, 3),
        "raw_growth": None if result.raw_growth is None else round(result.raw_growth, 3),
        "growth_limit": result.growth_limit,
        "ok": result.ok,
    }


def duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.1f} µs"
    return f"{seconds * 1_000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def cells(result: Result) -> tuple[str, ...]:
    growth = ""
    if result.growth is not None:
        growth = f"{result.growth:.2f} (raw {result.raw_growth:.2f}, at most {result.growth_limit})"
    limit = "" if result.limit is None else f"{result.limit:g}"
    if result.at_most is not None:
        limit = duration(result.at_most)
    return (
        result.case,
        duration(result.ours),
        "" if result.raw is None else duration(result.raw),
        "" if result.ratio is None else f"{result.ratio:.2f}",
        limit,
        "ok" if result.ok else "over",
        growth,
    )


def table(results: Sequence[Result]) -> str:
    """Aligned plain text."""
    rows = [HEADER, *map(cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, 5, 6)
    return "\n".join(
        "  ".join(
            c.ljust(w) if i in left else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the output to FILE as well")
    parser.add_argument("--rounds", type=int, metavar="N", help="least rounds per case")
    parser.add_argument(
        "--profile", action="store_true", help="profile our side of each case, to stderr"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = {title: run for title, run in CASES.items() if options.only in title}
    if not chosen:
        print(f"no case contains {options.only!r}; there are: {', '.join(CASES)}", file=sys.stderr)
        return 2
    # Servers and programs that cases have started are to end with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = QUICK if options.quick else FULL
    clock = Clock(options.rounds or sizes.rounds, options.profile)
    results: list[Result] = []
    with closing(Stores(sizes)) as stores:
        for title, run in chosen.items():
            print(f"{title} ...", file=sys.stderr, end="", flush=True)
            started = perf_counter()
            results += run(Bench(sizes, stores, clock))
            print(f" {perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    text = json.dumps([as_json(r) for r in results], indent=2) if options.json else table(results)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
