"""What is particular to memory: who shares a store, and for how long."""

from uuid import uuid4

from support.models import Customer

from ontologia import Session


def test_sessions_without_a_name_have_stores_of_their_own():
    with Session("memory://") as one, Session("memory://") as two:
        one.ensure(Customer(id="1"))
        one.commit()
        assert two.query().entities(Customer).count() == 0
        assert not one.capabilities.durable


def test_a_named_store_is_shared_while_someone_has_it_open():
    uri = f"memory://{uuid4()}"
    with Session(uri) as keeper:
        with Session(uri) as session:
            session.ensure(Customer(id="1"))
        assert keeper.query().entities(Customer).count() == 1
    with Session(uri) as later:
        assert later.query().entities(Customer).count() == 0
