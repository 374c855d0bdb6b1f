"""Several namespaces in one process: ``python examples/bus_namespaces.py``.

Orders and payments share a file. Each session sees the events of its own namespace only, even
where the types are the same.
"""

import asyncio
import tempfile

from ontologia import Event, Field, HandlerContext, Session, on_event


class Requested(Event):
    number: Field[int]


orders: list[int] = []
payments: list[int] = []


@on_event(Requested)
def handle_order(ctx: HandlerContext[Requested]) -> None:
    orders.append(ctx.event.number)


@on_event(Requested)
async def handle_payment(ctx: HandlerContext[Requested]) -> None:
    await asyncio.sleep(0)  # handlers may be coroutine functions
    payments.append(ctx.event.number)


async def work(uri: str) -> None:
    with Session(uri, "orders") as order_session, Session(uri, "payments") as payment_session:
        order_session.commit(event=[Requested(number=n) for n in (1, 2, 3)])
        payment_session.commit(event=[Requested(number=n) for n in (10, 20)])
        # run() blocks, so each session gets a thread; without until_idle, until stop().
        await asyncio.gather(
            asyncio.to_thread(order_session.run, [handle_order], until_idle=True),
            asyncio.to_thread(payment_session.run, [handle_payment], until_idle=True),
        )
        for session in (order_session, payment_session):
            print(f"{session.namespace}: {len(session.list_events())} events stored")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(work(f"sqlite:///{directory}/app.db"))
    print(f"handled as orders: {orders}")
    print(f"handled as payments: {payments}")


if __name__ == "__main__":
    main()
