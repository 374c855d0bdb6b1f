"""The compiler: plans become one SQL statement each, with every value bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ontologia.model.composites import SequenceType, TupleType
from ontologia.query.plan import (
    Among,
    AnyItem,
    Both,
    Compare,
    Either,
    Grouping,
    Having,
    HavingCompare,
    HavingGroup,
    IsNull,
    Measure,
    Operand,
    Predicate,
    Selection,
    TextMatch,
    conjuncts,
    sides_of,
)
from ontologia.storage.sql.dialect import (
    Dialect,
    Fragment,
    column_kind,
    join,
    join_balanced,
    quote,
)
from ontologia.storage.sql.layout import (
    HISTORY_KEYS,
    NAMESPACE,
    Layout,
    current_name,
    history_name,
    sort_column,
    stored_column,
)

_OPERATORS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ALIASES = {"own": "t", "left": "l", "right": "r"}
_JSON_TYPES = {str: ("text",), int: ("integer", "real"), float: ("integer", "real")}
# Longer lists are bound as one value, so that no database's limit on parameters is met.
_MANY = 200


class Compiler:
    """Compiles plans for one namespace."""

    def __init__(self, dialect: Dialect, namespace: str, layout: Layout, plan: Selection) -> None:
        self.dialect, self.namespace, self.layout = dialect, namespace, layout
        self.spec, self.window, self.plan = plan.spec, plan.window, plan
        self.history = plan.window.mode != "latest"

    def selection(self) -> Fragment:
        """A statement that gives stored rows or payloads, each followed by its commit."""
        columns = "t.fields_json, t.commit_id" if self.history else self.layout.selected
        parts = [Fragment(f"SELECT {columns}"), *self._source(sides_of(self.plan)), self._order()]
        if self.plan.limit is not None or self.plan.offset:
            limit = self.dialect.unlimited if self.plan.limit is None else self.plan.limit
            parts.append(Fragment("LIMIT ? OFFSET ?", limit, self.plan.offset))
        return join(parts, " ")

    def grouping(self, plan: Grouping) -> Fragment:
        """A statement that gives the keys in comparable form, then the measures."""
        values = [self.comparable(k) for k in plan.keys] + [self.measure(m) for m in plan.measures]
        parts = [join(values, ", ").format("SELECT {}"), *self._source(sides_of(plan))]
        ordinals = ", ".join(str(i + 1) for i in range(len(plan.keys)))
        if ordinals:
            parts.append(Fragment(f"GROUP BY {ordinals}"))
        if plan.having:
            parts.append(join([self.having(h) for h in plan.having], " AND ").format("HAVING {}"))
        if ordinals:
            order = [self.dialect.order(Fragment(o), False) for o in ordinals.split(", ")]
            parts.append(join(order, ", ").format("ORDER BY {}"))
        return join(parts, " ")

    def _source(self, sides: frozenset[str]) -> list[Fragment]:
        table = self.layout.history if self.history else self.layout.current
        parts = [Fragment(f"FROM {table} AS t")]
        parts += [self._endpoint(side) for side in sorted(sides)]
        conditions = [*self._visible(), *(self.predicate(p) for p in self.plan.where)]
        parts.append(join(conditions, " AND ").format("WHERE {}"))
        return parts

    def _visible(self) -> list[Fragment]:
        window = self.window
        if window.mode == "latest":
            return [Fragment(f"t.{NAMESPACE} = ?", self.namespace)]
        own = Fragment("t.namespace = ?", self.namespace)
        if window.mode == "history":
            span = [own, Fragment("t.commit_id > ?", window.commit_id)]
            if window.until is not None:
                span.append(Fragment("t.commit_id <= ?", window.until))
            return span
        return [own, _interval("t", "?", window.commit_id)]

    def _endpoint(self, side: str) -> Fragment:
        spec, alias = self.spec.endpoint(side), _ALIASES[side]
        if not self.history:
            table = current_name(spec.kind, spec.name)
            key = stored_column(spec.key_fields[0], self.dialect)
            own = self.layout.keys[0 if side == "left" else 1]
            return Fragment(
                f"LEFT JOIN {table} AS {alias} ON {alias}.{NAMESPACE} = t.{NAMESPACE} "
                f"AND {alias}.{key} = t.{own}"
            )
        joined = Fragment(
            f"LEFT JOIN {history_name(spec.kind, spec.name)} AS {alias} "
            f"ON {alias}.namespace = t.namespace AND {alias}.key = t.{side}_key AND"
        )
        if self.window.mode == "history":
            return join([joined, _interval(alias, "t.commit_id")], " ")
        return join([joined, _interval(alias, "?", self.window.commit_id)], " ")

    def _order(self) -> Fragment:
        keys = [
            self.dialect.order(self.comparable(k.operand), k.descending) for k in self.plan.order
        ]
        if self.history:
            natural = [f"t.{c}" for c in HISTORY_KEYS[self.spec.kind][: self.spec.key_size]]
            if self.window.mode == "history":
                natural.insert(0, "t.commit_id")
        else:
            natural = [f"t.{c}" for c in self.layout.keys]
            if self._has_range():
                natural = [self.dialect.sort_only(c) for c in natural]
        return join([*keys, *map(Fragment, natural)], ", ").format("ORDER BY {}")

    def _has_range(self) -> bool:
        """Whether some condition that must hold is a range of an indexed field."""
        return any(
            (
                (isinstance(part, Compare) and part.op not in ("==", "!="))
                or (isinstance(part, TextMatch) and part.how == "startswith")
            )
            and part.operand.field is not None
            and part.operand.field.index
            for part in conjuncts(self.plan.where)
        )

    def _document(self, operand: Operand) -> tuple[str, tuple[str, ...]]:
        """The JSON document that holds an operand, and the path to it."""
        assert operand.field is not None
        alias = _ALIASES[operand.base]
        if self.history:
            return f"{alias}.fields_json", (operand.field.name, *operand.segments)
        return f"{alias}.{quote(operand.field.name)}", operand.segments

    def _in_json(self, operand: Operand) -> bool:
        return (
            self.history
            or bool(operand.segments)
            or operand.base == "item"
            or operand.type.kind == "any"
        )

    def raw(self, operand: Operand, kind: str | None = None) -> Fragment:
        """The stored value of an operand; of any JSON, as the kind that is asked for."""
        kind = kind or _json_kind(operand)
        if operand.base == "item":
            return self._item("value", operand, kind)
        assert operand.field is not None
        alias = _ALIASES[operand.base]
        if self.history and operand.field.is_key:
            return Fragment(f"{alias}.{self._history_key(operand)}")
        if not self._in_json(operand):
            column = f"{alias}.{stored_column(operand.field, self.dialect)}"
            composite = operand.kind == "json"
            return Fragment(self.dialect.json_text(column) if composite else column)
        return self.dialect.json_value(*self._document(operand), kind)

    def _history_key(self, operand: Operand) -> str:
        assert operand.field is not None
        if operand.base != "own":
            return "key"
        return HISTORY_KEYS[self.spec.kind][self.spec.position[operand.field.name]]

    def _item(self, what: str, operand: Operand, kind: str) -> Fragment:
        if not operand.segments:
            return Fragment("item.type") if what == "type" else self.dialect.json_item(kind)
        if what == "value":
            found = self.dialect.json_value("item.value", operand.segments, kind)
        else:
            found = self.dialect.json_type("item.value", operand.segments)
        return found.format("CASE WHEN item.type = 'object' THEN {} END")

    def _type(self, operand: Operand) -> Fragment:
        if operand.base == "item":
            return self._item("type", operand, "text")
        return self.dialect.json_type(*self._document(operand))

    def comparable(self, operand: Operand) -> Fragment:
        """The operand in the form in which it compares and sorts."""
        if operand.kind == "decimal":
            if self._in_json(operand):
                return self.dialect.decimal_order(self.raw(operand))
            assert operand.field is not None
            column = sort_column(operand.field, self.dialect)
            return Fragment(f"{_ALIASES[operand.base]}.{column}")
        if operand.kind == "bytes" and self._in_json(operand):
            return self.dialect.bytes_value(self.raw(operand))
        return self.raw(operand)

    def _constant(self, operand: Operand, value: Any) -> Any:
        if operand.kind == "decimal":
            return self.dialect.decimal_constant(value)
        if operand.kind == "number":
            return self.dialect.number(value, _json_kind(operand))
        return value

    def predicate(self, predicate: Predicate) -> Fragment:
        """A condition that is true exactly where the predicate is."""
        if isinstance(predicate, Both | Either):
            word = "AND" if isinstance(predicate, Both) else "OR"
            return join_balanced([self.predicate(p) for p in predicate.parts], word)
        if isinstance(predicate, Compare):
            return self._compare(predicate)
        if isinstance(predicate, Among):
            return self._among(predicate)
        if isinstance(predicate, TextMatch):
            return self._text(predicate)
        if isinstance(predicate, IsNull):
            word = "IS NOT NULL" if predicate.negated else "IS NULL"
            return self.raw(predicate.operand).format(f"{{}} {word}")
        return self._any_item(predicate)

    def _compare(self, predicate: Compare) -> Fragment:
        operand, value, op = predicate.operand, predicate.value, _OPERATORS[predicate.op]
        if operand.kind == "any":
            if isinstance(value, bool):
                wanted = value if predicate.op == "==" else not value
                return self._type(operand).format("{} = ?", "true" if wanted else "false")
            guard = self._has_type(operand, _JSON_TYPES[type(value)])
            kind = "text" if isinstance(value, str) else "numeric"
            value = value if kind == "text" else self.dialect.number(value, kind)
            test = self.raw(operand, kind).format(f"{{}} {op} ?", value)
            return join([guard, test], " AND ").format("({})")
        test = self.comparable(operand).format(f"{{}} {op} ?", self._constant(operand, value))
        if operand.kind == "datetime" and predicate.op != "==":
            # Stored times have two lengths, with and without an offset; they do not compare.
            guard = self.raw(operand).format("length({}) = ?", len(value))
            return join([test, guard], " AND ").format("({})")
        return test

    def _has_type(self, operand: Operand, types: tuple[str, ...]) -> Fragment:
        return self._type(operand).format(f"{{}} IN ({', '.join('?' * len(types))})", *types)

    def _among(self, predicate: Among) -> Fragment:
        operand, values = predicate.operand, predicate.values
        if not values:
            return Fragment("1 = 1" if predicate.negated else "1 = 0")
        if operand.kind in ("any", "datetime"):
            return self._among_kinds(predicate)
        constants = [self._constant(operand, v) for v in values]
        return self._one_of(self.comparable(operand), constants, predicate.negated)

    def _one_of(self, subject: Fragment, constants: Sequence[Any], negated: bool) -> Fragment:
        if len(constants) > _MANY:
            return self.dialect.among_values(subject, constants, negated)
        word = "NOT IN" if negated else "IN"
        return subject.format(f"{{}} {word} ({', '.join('?' * len(constants))})", *constants)

    def _among_kinds(self, predicate: Among) -> Fragment:
        """Values that compare only with their own kind: each kind with its guard."""
        operand, negated = predicate.operand, predicate.negated
        groups: dict[Any, list[Any]] = {}
        for value in predicate.values:
            kind = len(value) if operand.kind == "datetime" else _JSON_TYPES[type(value)]
            groups.setdefault(kind, []).append(value)
        if negated and len(groups) > 1:
            # Whatever the row holds, it does not compare with one of the kinds.
            return Fragment("1 = 0")
        parts = []
        for kind, values in groups.items():
            subject = self.raw(operand)
            if operand.kind == "datetime":
                guard = subject.format("length({}) = ?", kind)
            else:
                guard = self._has_type(operand, kind)
                if kind != ("text",):
                    subject = self.raw(operand, "numeric")
                    values = [self.dialect.number(v, "numeric") for v in values]
            parts.append(join([guard, self._one_of(subject, values, negated)], " AND "))
        return join([p.format("({})") for p in parts], " OR ").format("({})")

    def _text(self, predicate: TextMatch) -> Fragment:
        operand, text = predicate.operand, predicate.text
        subject = self.raw(operand)
        if not text:
            test = Fragment("1 = 1")
        elif predicate.how == "contains":
            test = self.dialect.text_contains(subject, text)
        elif predicate.how == "endswith":
            test = self.dialect.text_ends(subject, text)
        else:
            test = self._starts(subject, text)
        if predicate.negated:
            test = test.format("NOT ({})")
        if operand.kind == "any":
            present = self._has_type(operand, ("text",))
        else:
            present = subject.format("{} IS NOT NULL")
        return join([present, test], " AND ").format("({})")

    def _starts(self, subject: Fragment, prefix: str) -> Fragment:
        # A range instead of a pattern: nothing to escape, and an index can serve it.
        test = subject.format("{} >= ?", prefix)
        end = _after(prefix)
        if end is None:
            return test
        return join([test, subject.format("{} < ?", end)], " AND ").format("({})")

    def _any_item(self, predicate: AnyItem) -> Fragment:
        document, path = self._document(predicate.operand)
        items = self.dialect.json_items(document, path, "item")
        test = self.predicate(predicate.predicate)
        found = join([items.format("SELECT 1 FROM {} WHERE"), test], " ").format("EXISTS ({})")
        always_list = isinstance(predicate.operand.type, SequenceType | TupleType)
        if self.history or predicate.operand.segments or not always_list:
            # A null inside a document is one item to SQLite, not none; so are members of objects.
            is_list = self.dialect.json_type(document, path).format("{} = 'array'")
            found = join([is_list, found], " AND ").format("(({}) IS TRUE)")
        return found.format("NOT {}") if predicate.negated else found

    def measure(self, measure: Measure) -> Fragment:
        """An aggregate; the least and greatest in comparable form."""
        if measure.function == "count":
            return Fragment("COUNT(*)")
        if measure.predicate is not None:
            return self.predicate(measure.predicate).format("COUNT(CASE WHEN {} THEN 1 END)")
        operand = measure.operand
        assert operand is not None
        if measure.function == "avg_len":
            document, path = self._document(operand)
            length = self.dialect.json_length(document, path)
            is_list = self.dialect.json_type(document, path)
            return join([is_list, length], " = 'array' THEN ").format(
                "AVG(CAST(CASE WHEN {} END AS DOUBLE PRECISION))"
            )
        if measure.function in ("min", "max"):
            subject = self.dialect.extreme(self.comparable(operand), column_kind(operand.type))
            return subject.format(f"{measure.function.upper()}({{}})")
        if operand.kind == "decimal":
            aggregate = "decimal_sum" if measure.function == "sum" else "decimal_avg"
            result: Fragment = getattr(self.dialect, aggregate)(self.raw(operand))
            return result
        if measure.function == "avg" and not operand.has_fractions:
            # Adding integers first is exact; AVG() would add them as floats.
            subject = self.raw(operand)
            total = subject.format("CAST(SUM({}) AS DOUBLE PRECISION)")
            return join([total, subject.format("COUNT({})")], " / ").format("({})")
        return self.raw(operand).format(f"{measure.function.upper()}({{}})")

    def having(self, condition: Having) -> Fragment:
        """A condition on groups."""
        if isinstance(condition, HavingGroup):
            if not condition.parts:
                return Fragment("1 = 1" if condition.every else "1 = 0")
            word = "AND" if condition.every else "OR"
            return join_balanced([self.having(p) for p in condition.parts], word)
        assert isinstance(condition, HavingCompare)
        measure = condition.measure
        subject = self.measure(measure)
        if condition.op == "is_null":
            return subject.format("{} IS NOT NULL" if condition.negated else "{} IS NULL")
        value = condition.value
        if measure.operand is not None and measure.operand.kind == "decimal":
            if measure.function in ("sum", "avg"):
                subject = self.dialect.decimal_total(subject)
                value = self.dialect.decimal_total_constant(value)
            elif measure.function != "avg_len":
                value = self.dialect.decimal_constant(value)
        return subject.format(f"{{}} {_OPERATORS[condition.op]} ?", value)


def _json_kind(operand: Operand) -> str:
    """As what the operand is read from JSON."""
    if operand.kind == "number":
        return "number" if operand.has_fractions else "integer"
    return "bool" if operand.kind == "bool" else "text"


def _interval(alias: str, at: str, *parameters: Any) -> Fragment:
    """A condition that a version was current at a commit."""
    return Fragment(
        f"({alias}.commit_id <= {at} AND "
        f"({alias}.until_commit IS NULL OR {alias}.until_commit > {at}))",
        *parameters,
        *parameters,
    )


def _after(prefix: str) -> str | None:
    """The least text above every text with this prefix, in code point order."""
    for i in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[i])
        if code < 0x10FFFF:
            # Surrogates are not characters; what follows them does.
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:i] + chr(following)
    return None


def explain_text(fragment: Fragment) -> str:
    """The statement, one clause per line."""
    text = fragment.sql
    for word in ("FROM", "LEFT JOIN", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT"):
        text = text.replace(f" {word} ", f"\n{word} ")
    return text
