"""Several namespaces in one process: ``python examples/bus_namespaces.py``.

Orders and payments share a file and a process. Each session sees the state and the events of its
own namespace only, even where the types are the same: both record what they audit.
"""

import asyncio
import tempfile

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class OrderPlaced(Event):
    order_id: Field[str]


class PaymentReceived(Event):
    payment_id: Field[str]
    cents: Field[int]


class Audited(Event):
    what: Field[str]


class AuditEntry(Entity):
    what: Field[str] = Field(primary_key=True)


@on_event(OrderPlaced)
def confirm_order(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.commit(event=Audited(what=f"order {ctx.event.order_id}"), final=True)


@on_event(PaymentReceived)
async def book_payment(ctx: HandlerContext[PaymentReceived]) -> None:
    await asyncio.sleep(0)  # handlers may be coroutine functions
    ctx.commit(event=Audited(what=f"payment of {ctx.event.cents / 100:.2f}"), final=True)


@on_event(Audited)
def write_audit(ctx: HandlerContext[Audited]) -> None:
    ctx.ensure(AuditEntry(what=ctx.event.what))
    ctx.commit(final=True)


order_handlers = [confirm_order, write_audit]
payment_handlers = [book_payment, write_audit]


def show(session: Session) -> None:
    entries = sorted(entry.what for entry in session.query().entities(AuditEntry))
    print(f"{session.namespace}: {', '.join(entries)}")
    print(f"  {len(session.list_events())} events, {session.stats().pending} left to handle")


async def work(uri: str) -> None:
    with Session(uri, "orders") as orders, Session(uri, "payments") as payments:
        orders.commit(event=[OrderPlaced(order_id=name) for name in ("o1", "o2")])
        payments.commit(event=PaymentReceived(payment_id="p1", cents=9_990))
        # run() blocks, so each session gets a thread; without until_idle, until stop().
        await asyncio.gather(
            asyncio.to_thread(orders.run, order_handlers, until_idle=True),
            asyncio.to_thread(payments.run, payment_handlers, until_idle=True),
        )
        show(orders)
        show(payments)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(work(f"sqlite:///{directory}/app.db"))


if __name__ == "__main__":
    main()
