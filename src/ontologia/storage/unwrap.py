"""Connections of callers: the driver's own, behind what Django and SQLAlchemy wrap around it."""

from __future__ import annotations

from typing import Any

from ontologia.errors import BindError

ACCEPTED = (
    "pass a connection of psycopg 3 or sqlite3, a Connection or Session of SQLAlchemy, or "
    "django.db.connection."
)


def unwrapped(connection: Any) -> Any:
    """The connection of the driver; raises BindError if the framework does not hand it out.

    The packages are told by what their objects have: none of them is imported here. Where a
    framework begins a transaction with its first statement, it is begun, as this is one.
    """
    try:
        if hasattr(connection, "ensure_connection"):
            return _django(connection)
        inner = getattr(connection, "connection", None)
        if hasattr(connection, "sync_session"):
            raise BindError("an asynchronous session cannot be bound.", fix=ACCEPTED)
        if callable(inner) and hasattr(connection, "get_bind"):  # an ORM session
            connection = connection.connection()
        if hasattr(connection, "exec_driver_sql"):
            return _sqlalchemy(connection)
    except BindError:
        raise
    except Exception as error:
        raise BindError(
            f"the connection cannot be used now: {error}",
            fix="bind a connection that is open and whose transaction has not failed.",
        ) from error
    return connection


def _django(wrapper: Any) -> Any:
    if wrapper.needs_rollback:
        raise BindError(
            "the transaction has failed, and Django will roll it back.",
            fix="leave the atomic() block in which the error was raised, and begin another one.",
        )
    wrapper.ensure_connection()
    return wrapper.connection


def _sqlalchemy(connection: Any) -> Any:
    # Otherwise its commit() would find nothing to commit.
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def kind_of(connection: object) -> str:
    """The class of a connection, as error texts name it."""
    cls = type(connection)
    return f"{cls.__module__}.{cls.__qualname__}"
