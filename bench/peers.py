"""Ontologia and others as job queues on PostgreSQL, each through its public API.

``python -m bench.peers SYSTEM ACTION URI [N]`` runs in a process of its own:

``prepare N``
    creates the tables, and enqueues N trivial jobs.
``work N``
    starts one worker and prints the seconds until the N-th job was handled.
``wait``
    starts one worker, and prints the time at which each job starts.
``send``
    enqueues a job for each line of stdin, and prints the time when that has returned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from datetime import timedelta
from time import monotonic_ns, perf_counter, sleep
from typing import Any, Protocol

BATCH = 100
"""Jobs that a worker takes at once, where a system lets one say so."""
_COROUTINES = 50  # with fewer, procrastinate was slower here


class Meter:
    """Called by the jobs of a worker."""

    def begin(self) -> None:
        """Everything is imported, and the worker connects and starts now."""

    def __call__(self) -> None:
        """A job runs."""
        _stamp()


class Counter(Meter):
    """Prints the seconds until the n-th job, and ends the process."""

    def __init__(self, n: int) -> None:
        self._left, self._begin = n, 0.0

    def begin(self) -> None:
        self._begin = perf_counter()

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            print(perf_counter() - self._begin, flush=True)
            os._exit(0)  # nobody's way of shutting down is measured


class System(Protocol):
    """What the benchmark asks of a system."""

    def prepare(self, uri: str, n: int) -> None: ...
    def work(self, uri: str, meter: Meter) -> None: ...
    def send(self, uri: str) -> None: ...


def _stamp() -> None:
    print(monotonic_ns(), flush=True)


async def _lines() -> Any:
    """Lines of stdin, while the loop of the driver goes on."""
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        yield


class Ontologia:
    """Events with one handler."""

    def prepare(self, uri: str, n: int) -> None:
        from bench.data import OrderPlaced
        from ontologia import Session

        with Session(uri) as session:
            session.commit(event=[OrderPlaced(order_id=f"o{i}", total=1.5) for i in range(n)])

    def work(self, uri: str, meter: Meter) -> None:
        from bench.data import OrderPlaced
        from ontologia import HandlerContext, Session, on_event

        @on_event(OrderPlaced, handler_id="trivial")
        def trivial(ctx: HandlerContext[OrderPlaced]) -> None:
            meter()

        meter.begin()
        Session(uri).run([trivial])

    def send(self, uri: str) -> None:
        from bench.data import OrderPlaced
        from ontologia import Session

        with Session(uri) as session:
            for _ in sys.stdin:
                session.commit(event=OrderPlaced(order_id="o1", total=1.5))
                _stamp()


class Procrastinate:
    """Deferred tasks, coroutines; its worker handles several at once."""

    def _app(self, uri: str, meter: Meter | None = None) -> tuple[Any, Any]:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=uri))

        @app.task(name="trivial")
        async def trivial(order_id: str, total: float) -> None:
            if meter is not None:
                meter()

        return app, trivial

    def prepare(self, uri: str, n: int) -> None:
        async def fill() -> None:
            app, trivial = self._app(uri)
            async with app.open_async():
                await app.schema_manager.apply_schema_async()
                jobs = [{"order_id": f"o{i}", "total": 1.5} for i in range(n)]
                if jobs:
                    await trivial.batch_defer_async(*jobs)

        asyncio.run(fill())

    def work(self, uri: str, meter: Meter) -> None:
        async def run() -> None:
            app, _ = self._app(uri, meter)
            meter.begin()
            async with app.open_async():
                await app.run_worker_async(concurrency=_COROUTINES)

        asyncio.run(run())

    def send(self, uri: str) -> None:
        async def run() -> None:
            app, trivial = self._app(uri)
            async with app.open_async():
                async for _ in _lines():
                    await trivial.defer_async(order_id="o1", total=1.5)
                    _stamp()

        asyncio.run(run())


class PgQueuer:
    """Jobs on the asyncpg driver that its documentation starts with."""

    def __init__(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver

        self._connect, self._wrap = asyncpg.connect, AsyncpgDriver

    async def _driver(self, uri: str) -> Any:
        return self._wrap(await self._connect(uri))

    def prepare(self, uri: str, n: int) -> None:
        from pgqueuer.queries import Queries

        async def fill() -> None:
            queries = Queries(await self._driver(uri))
            await queries.install()
            if n:
                payloads: list[bytes | None] = [
                    b'{"order_id":"o%d","total":1.5}' % i for i in range(n)
                ]
                await queries.enqueue(["trivial"] * n, payloads, [0] * n)

        asyncio.run(fill())

    def work(self, uri: str, meter: Meter) -> None:
        from pgqueuer import PgQueuer as Worker

        async def run() -> None:
            meter.begin()
            worker = Worker(await self._driver(uri))

            @worker.entrypoint("trivial")
            async def trivial(job: Any) -> None:
                meter()

            await worker.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))

        asyncio.run(run())

    def send(self, uri: str) -> None:
        from pgqueuer.queries import Queries

        async def run() -> None:
            queries = Queries(await self._driver(uri))
            async for _ in _lines():
                await queries.enqueue("trivial", b'{"order_id":"o1","total":1.5}')
                _stamp()

        asyncio.run(run())


class Dbos:
    """Queued workflows without steps; its queues poll, here every 10 ms instead of every second."""

    _POLL = 0.01

    def _options(self) -> Any:
        return {"queue_name": "jobs", "workflow_name": "trivial"}

    def _launch(self, uri: str, meter: Meter | None) -> Any:
        from dbos import DBOS

        DBOS(
            config={
                "name": "bench",
                "system_database_url": uri,
                "console_log_level": "ERROR",
                "application_version": "1",
            }
        )

        @DBOS.workflow(name="trivial")
        def trivial(order_id: str, total: float) -> None:
            if meter is not None:
                meter()

        if meter is not None:
            meter.begin()
        DBOS.launch()
        DBOS.register_queue("jobs", polling_interval_sec=self._POLL)
        return DBOS

    def prepare(self, uri: str, n: int) -> None:
        from dbos import DBOSClient

        self._launch(uri, None).destroy()
        client = DBOSClient(system_database_url=uri)
        for i in range(n):
            client.enqueue(self._options(), order_id=f"o{i}", total=1.5)
        client.destroy()

    def work(self, uri: str, meter: Meter) -> None:
        self._launch(uri, meter)
        sleep(3600)

    def send(self, uri: str) -> None:
        from dbos import DBOSClient

        client = DBOSClient(system_database_url=uri)
        for _ in sys.stdin:
            client.enqueue(self._options(), order_id="o1", total=1.5)
            _stamp()


SYSTEMS: dict[str, type[System]] = {
    "ontologia": Ontologia,
    "procrastinate": Procrastinate,
    "pgqueuer": PgQueuer,
    "dbos": Dbos,
}
"""By the name of the package."""


def main(name: str, action: str, uri: str, n: str = "0") -> None:
    logging.basicConfig(level=logging.ERROR)
    system = SYSTEMS[name]()
    if action == "prepare":
        system.prepare(uri, int(n))
    elif action == "work":
        system.work(uri, Counter(int(n)))
    elif action == "wait":
        system.work(uri, Meter())
    else:
        with suppress(KeyboardInterrupt):
            system.send(uri)


if __name__ == "__main__":
    main(*sys.argv[1:])
