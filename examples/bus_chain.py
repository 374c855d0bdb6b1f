"""Events that cause events: ``python examples/bus_chain.py``.

An order is placed, paid and fulfilled by three handlers that know nothing of each other. Each
event says what caused it, so the whole chain can be read back.
"""

import tempfile
from decimal import Decimal

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class OrderPlaced(Event):
    order_id: Field[str]
    user_id: Field[str]
    total: Field[Decimal]
    priority: int = 10


class PaymentCompleted(Event):
    order_id: Field[str]
    priority: int = 20


class OrderFulfilled(Event):
    order_id: Field[str]


class Payment(Entity):
    order_id: Field[str] = Field(primary_key=True)
    amount: Field[Decimal]
    status: Field[str]


class Parcel(Entity):
    order_id: Field[str] = Field(primary_key=True)
    worth: Field[Decimal]


@on_event(OrderPlaced, priority=10)
def process_payment(ctx: HandlerContext[OrderPlaced]) -> None:
    order_id = ctx.event.order_id
    print(f"  {order_id}: {ctx.event.user_id} pays {ctx.event.total}")
    ctx.ensure(Payment(order_id=order_id, amount=ctx.event.total, status="completed"))
    ctx.commit(event=PaymentCompleted(order_id=order_id))  # the payment and the event, or neither


@on_event(PaymentCompleted, priority=20)
def fulfill_order(ctx: HandlerContext[PaymentCompleted]) -> None:
    order_id = ctx.event.order_id
    payment = ctx.session.query().entities(Payment).get(order_id)
    assert payment is not None  # it was committed together with the event
    print(f"  {order_id}: packed")
    ctx.ensure(Parcel(order_id=order_id, worth=payment.amount))
    ctx.emit(OrderFulfilled(order_id=order_id))  # waits for the commit
    ctx.commit(final=True)  # the parcel, the event and the acknowledgement, or none of them


@on_event(OrderFulfilled)
def tell_the_customer(ctx: HandlerContext[OrderFulfilled]) -> None:
    print(f"  {ctx.event.order_id}: on its way, {ctx.event.chain_depth} hops from the order")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Session(f"sqlite:///{directory}/app.db") as session,
    ):
        print("Two orders come in.")
        first = OrderPlaced(order_id="o1", user_id="ada", total=Decimal("99.90"))
        second = OrderPlaced(order_id="o2", user_id="bo", total=Decimal("12.50"))
        session.commit(event=[first, second])
        session.run([process_payment, fulfill_order, tell_the_customer], until_idle=True)
        print("What followed from the first:")
        for event in session.events.chain(str(first.id)):
            print(f"  {event.chain_depth} {event.type}")


if __name__ == "__main__":
    main()
