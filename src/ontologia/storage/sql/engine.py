"""The query engine of SQL backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from ontologia.model.codec import Row
from ontologia.model.spec import TypeSpec
from ontologia.query.plan import Grouping, Measure, Operand, Selection, Window
from ontologia.storage.base import EngineDeclinedError, Explanation
from ontologia.storage.sql.compiler import Compiler, explain_text
from ontologia.storage.sql.dialect import Connection, Dialect, Fragment
from ontologia.storage.sql.layout import Layout

_FETCH = 5_000


class SQLEngine:
    """Runs plans as SQL statements."""

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        layouts: Callable[[TypeSpec], Layout],
        namespace: str,
    ) -> None:
        self._connection, self._dialect = connection, dialect
        self._layouts, self._namespace = layouts, namespace

    def _compiler(self, plan: Selection) -> Compiler:
        layout = self._layouts(plan.spec)
        return Compiler(self._dialect, self._namespace, layout, plan)

    def one(self, spec: TypeSpec, window: Window, key: Row) -> Any:
        layout, execute = self._layouts(spec), self._connection.execute
        if window.mode == "latest":
            found = spec.codec.load_rows(execute(layout.select_one, (self._namespace, *key)))
        else:
            at = window.commit_id
            rows = execute(layout.select_version, (self._namespace, *key, at, at))
            found = spec.codec.load_payloads(rows)
        return found[0] if found else None

    def objects(self, plan: Selection) -> Iterator[list[Any]]:
        statement = self._compiler(plan).selection()
        codec = plan.spec.codec
        load = codec.load_rows if plan.window.mode == "latest" else codec.load_payloads
        try:
            cursor = self._connection.execute(statement.sql, statement.parameters)
        except Exception as error:
            raise self._declined(error) from error
        return _loaded(cursor, load)

    def _declined(self, error: Exception) -> Exception:
        return EngineDeclinedError(str(error)) if self._dialect.declines(error) else error

    def groups(self, plan: Grouping) -> list[tuple[Any, ...]]:
        compiler = self._compiler(plan.selection)
        statement = compiler.grouping(plan)
        decoders = [_key_decoder(compiler.dialect, k) for k in plan.keys]
        decoders += [_measure_decoder(compiler.dialect, m) for m in plan.measures]
        try:
            rows = self._dialect.attempt(self._connection, statement).fetchall()
        except Exception as error:
            raise self._declined(error) from error
        if not any(decoders):
            result: list[tuple[Any, ...]] = rows
            return result
        return [
            tuple(v if d is None or v is None else d(v) for d, v in zip(decoders, row, strict=True))
            for row in rows
        ]

    def explain(self, plan: Selection | Grouping) -> Explanation:
        selection = plan.selection if isinstance(plan, Grouping) else plan
        compiler = self._compiler(selection)
        statement: Fragment = (
            compiler.grouping(plan) if isinstance(plan, Grouping) else compiler.selection()
        )
        try:
            steps = self._dialect.explain(self._connection, statement)
        except Exception as error:
            raise self._declined(error) from error
        return Explanation(explain_text(statement), statement.parameters, tuple(steps))


def _loaded(cursor: Any, load: Callable[[Any], list[Any]]) -> Iterator[list[Any]]:
    while rows := cursor.fetchmany(_FETCH):
        yield load(rows)


Decoder = Callable[[Any], Any] | None


def _key_decoder(dialect: Dialect, operand: Operand) -> Decoder:
    if operand.kind == "decimal":
        return dialect.decimal_result
    return None if operand.type.plain else operand.type.from_stored


def _measure_decoder(dialect: Dialect, measure: Measure) -> Decoder:
    operand = measure.operand
    if operand is None or measure.function == "avg_len":
        return None
    if measure.function in ("min", "max"):
        return _key_decoder(dialect, operand)
    return Decimal if operand.kind == "decimal" else None
