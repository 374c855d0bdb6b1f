"""Row codecs: functions between objects, stored rows and payloads, generated once per type.

A generic loop over the fields of every object would cost more than the database does. The
generated source holds only positions and field names that are Python identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from ontologia.model.canonical import loads
from ontologia.model.types import Scalar

if TYPE_CHECKING:
    from ontologia.model.spec import FieldSpec

Row = tuple[Any, ...]


class RowCodec:
    """The generated functions of one type."""

    row: Callable[[Any], Row]
    """Object to stored row."""

    payload: Callable[[Row], str]
    """Stored row to canonical JSON, as history keeps it."""

    load_rows: Callable[[Iterable[Row]], list[Any]]
    """Stored rows, each followed by its commit id, to objects."""

    load_payloads: Callable[[Iterable[tuple[str, int]]], list[Any]]
    """Payloads with their commit ids to objects."""

    row_from_json: Callable[[dict[str, Any]], Row]
    """A decoded payload to a stored row."""

    def __init__(self, cls: type[Any], fields: Sequence[FieldSpec], key_size: int) -> None:
        names: dict[str, Any] = {
            "new": object.__new__,
            "put": object.__setattr__,
            "cls": cls,
            "dumps": orjson.dumps,
            "loads": loads,
            "Fragment": orjson.Fragment,
        }
        for i, f in enumerate(fields):
            names[f"encode{i}"] = f.type.to_stored
            names[f"decode{i}"] = f.type.from_stored
            names[f"to_json{i}"] = f.type.to_json
            names[f"from_json{i}"] = f.type.from_json
        source = "\n".join(
            [
                _row_source(fields),
                _payload_source(fields),
                _load_rows_source(fields),
                _load_payloads_source(fields),
                _row_from_json_source(fields),
            ]
        )
        exec(compile(source, f"<codec of {cls.__name__}>", "exec"), names)  # noqa: S102 (our own source)
        for name in ("row", "payload", "load_rows", "load_payloads", "row_from_json"):
            setattr(self, name, names[name])
        self.key: Callable[[Row], Row] = lambda row: row[:key_size]


def _guarded(spec: FieldSpec, call: str, value: str) -> str:
    return (
        f"(None if {value} is None else {call}({value}))" if spec.nullable else f"{call}({value})"
    )


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)},)" if parts else "()"


def _row_source(fields: Sequence[FieldSpec]) -> str:
    parts = []
    for i, f in enumerate(fields):
        value = f"d[{f.name!r}]"
        parts.append(value if f.type.plain else _guarded(f, f"encode{i}", value))
    return f"def row(o):\n d = o.__dict__\n return {_tuple(parts)}"


def _json_form(i: int, f: FieldSpec, value: str) -> str:
    """The expression that turns a stored value into what orjson writes for it."""
    if isinstance(f.type, Scalar):
        return value if f.type.json_is_stored else _guarded(f, f"to_json{i}", value)
    return _guarded(f, "Fragment", value)


def _payload_source(fields: Sequence[FieldSpec]) -> str:
    parts = [
        f"{f.name!r}: {_json_form(i, f, f'r[{i}]')}"
        for i, f in sorted(enumerate(fields), key=lambda pair: pair[1].name)
    ]
    return f"def payload(r):\n return dumps({{{', '.join(parts)}}}).decode()"


def _load_rows_source(fields: Sequence[FieldSpec]) -> str:
    variables = [f"v{i}" for i in range(len(fields))]
    parts = [
        f"{f.name!r}: {v if f.type.plain else _guarded(f, f'decode{i}', v)}"
        for i, (f, v) in enumerate(zip(fields, variables, strict=True))
    ]
    return f"""
def load_rows(rows):
 objects = []
 add = objects.append
 for {", ".join([*variables, "commit_id"])} in rows:
  o = new(cls)
  put(o, "__dict__", {{{", ".join([*parts, '"_commit_id": commit_id'])}}})
  add(o)
 return objects"""


def _load_payloads_source(fields: Sequence[FieldSpec]) -> str:
    parts = [
        f"  d[{f.name!r}] = {_guarded(f, f'from_json{i}', f'd[{f.name!r}]')}"
        for i, f in enumerate(fields)
        if not (f.type.plain and isinstance(f.type, Scalar) and f.type.json_is_stored)
        and f.type.kind not in ("any", "bool")
    ]
    body = "\n".join(parts)
    return f"""
def load_payloads(rows):
 objects = []
 add = objects.append
 for text, commit_id in rows:
  d = loads(text)
{body}
  d["_commit_id"] = commit_id
  o = new(cls)
  put(o, "__dict__", d)
  add(o)
 return objects"""


def _row_from_json_source(fields: Sequence[FieldSpec]) -> str:
    parts = []
    for i, f in enumerate(fields):
        value = f"d[{f.name!r}]"
        if isinstance(f.type, Scalar) and f.type.json_is_stored:
            parts.append(value)
        elif isinstance(f.type, Scalar):
            parts.append(_guarded(f, f"from_json{i}", value))
        else:
            parts.append(_guarded(f, "canonical", value))
    return f"""
def canonical(value):
 return dumps(value, option={orjson.OPT_SORT_KEYS}).decode()
def row_from_json(d):
 return {_tuple(parts)}"""
