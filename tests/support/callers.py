"""Applications that own a connection and a transaction: one class per driver and framework."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import orm

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()


class Caller:
    """Owns ``connection``, which is what is bound; the rest is what an application does with it."""

    connection: Any

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.postgres = uri.startswith("postgres")
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        """Nothing, where the first statement does it."""

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def execute(self, sql: str) -> list[Any]:
        cursor = self.connection.execute(sql)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    @contextmanager
    def nested(self, *, undo: bool) -> Iterator[None]:
        """A savepoint around a block."""
        self.execute("SAVEPOINT mine")
        yield
        if undo:
            self.execute("ROLLBACK TO SAVEPOINT mine")
        self.execute("RELEASE SAVEPOINT mine")

    def close(self) -> None:
        self.connection.close()


class Psycopg(Caller):
    def open(self) -> None:
        self.connection = psycopg.connect(self.uri)


class SQLite3(Caller):
    def open(self) -> None:
        self.connection = sqlite3.connect(self.uri.removeprefix("sqlite:///"))


class SQLAlchemyConnection(Caller):
    def open(self) -> None:
        uri = self.uri.replace("postgresql://", "postgresql+psycopg://")
        self.engine = sqlalchemy.create_engine(uri)
        self.connection = self.engine.connect()

    def execute(self, sql: str) -> list[Any]:
        result = self.connection.execute(sqlalchemy.text(sql))
        return [tuple(row) for row in result] if result.returns_rows else []

    @contextmanager
    def nested(self, *, undo: bool) -> Iterator[None]:
        inner = self.connection.begin_nested()
        yield
        inner.rollback() if undo else inner.commit()

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class SQLAlchemySession(SQLAlchemyConnection):
    def open(self) -> None:
        super().open()
        self.connection.close()
        self.connection = orm.Session(self.engine)


class Django(Caller):
    def open(self) -> None:
        if self.postgres:
            parts = conninfo_to_dict(self.uri)
            found = {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "HOST": parts["host"],
                "PORT": parts["port"],
                "PASSWORD": parts.get("password", ""),
            }
        else:
            name = self.uri.removeprefix("sqlite:///")
            found = {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
        self.alias = uuid4().hex
        handler = ConnectionHandler({"default": {}, self.alias: found})
        connections.settings[self.alias] = handler.settings[self.alias]
        self.connection = connections[self.alias]

    def begin(self) -> None:
        self.atomic = transaction.atomic(using=self.alias)
        self.atomic.__enter__()

    def commit(self) -> None:
        self.atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        transaction.set_rollback(True, using=self.alias)
        self.atomic.__exit__(None, None, None)

    def execute(self, sql: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def nested(self, *, undo: bool) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            yield
            if undo:
                transaction.set_rollback(True, using=self.alias)

    def close(self) -> None:
        self.connection.close()
        del connections[self.alias]


CALLERS: list[tuple[str, type[Caller]]] = [
    ("postgres", Psycopg),
    ("postgres", SQLAlchemyConnection),
    ("postgres", SQLAlchemySession),
    ("postgres", Django),
    ("sqlite", SQLite3),
    ("sqlite", SQLAlchemyConnection),
    ("sqlite", SQLAlchemySession),
    ("sqlite", Django),
]
