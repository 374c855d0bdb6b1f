"""One of several writers at the same time: ``python -m bench.writers KIND URI NUMBER N``.

It says ``ready``, waits for a line, commits N new customers one by one, and prints when it began
and when it had ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from bench import postgres, raw_postgres
from bench.data import Customer, Plain, customer
from ontologia import Session


def _ours(uri: str, plain: list[Plain]) -> Callable[[], None]:
    session = Session(uri, entity_types=[Customer])
    session.query().entities(Customer).get("nobody")  # connected, types known
    objects = [Customer(**p) for p in plain]

    def run() -> None:
        for item in objects:
            session.ensure(item)
            session.commit()

    return run


def _raw(uri: str, plain: list[Plain]) -> Callable[[], None]:
    connection = postgres.connect(uri)

    def run() -> None:
        for item in plain:
            raw_postgres.add_one(connection, item)

    return run


KINDS: dict[str, Callable[..., Any]] = {"ours": _ours, "raw": _raw}


def main(kind: str, uri: str, number: str, n: str) -> None:
    plain = [{**customer(i), "id": f"writer-{number}-{i}"} for i in range(int(n))]
    run = KINDS[kind](uri, plain)
    print("ready", flush=True)
    sys.stdin.readline()
    began = monotonic_ns()
    run()
    print(began, monotonic_ns(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
