"""Handlers: functions that react to events."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from ontologia.config import LONGEST_MS
from ontologia.errors import HandlerError
from ontologia.model.canonical import dumps, text
from ontologia.model.event import Event
from ontologia.model.meta import spec_of

if TYPE_CHECKING:
    from ontologia.bus.context import HandlerContext

EventT = TypeVar("EventT", bound=Event)

Start = Literal["retained", "now"]

_MARK = "__ontologia_handler__"


@dataclass(frozen=True)
class Handler:
    """A function bound to an event class, and how its deliveries are treated."""

    function: Callable[..., Any]
    event_class: type[Event]
    handler_id: str
    priority: int = 100
    start: Start = "retained"
    lease_ms: int | None = None
    renew_lease: bool = False
    max_attempts: int | None = None
    ordered_by: Callable[[Any], object] | None = None

    @property
    def event_type(self) -> str:
        """The type string of the events it handles."""
        return spec_of(self.event_class).name


def on_event(
    event_class: type[EventT],
    priority: int = 100,
    *,
    start: Start = "retained",
    lease_ms: int | None = None,
    renew_lease: bool = False,
    max_attempts: int | None = None,
    handler_id: str | None = None,
    ordered_by: Callable[[EventT], object] | None = None,
) -> Callable[[Callable[[HandlerContext[EventT]], Any]], Callable[..., Any]]:
    """Make a function, ``def`` or ``async def``, the handler of an event class.

    A new handler starts with the retained events, or with those after its first run
    (``start="now"``). ``handler_id`` pins its identity, so that renaming the function replays
    nothing. Handlers with a higher priority go first. Events with the same ``ordered_by`` key are
    handled one at a time and in the order they were committed, over all sessions and retries.
    """
    if not isinstance(event_class, type) or not issubclass(event_class, Event):
        raise HandlerError(
            f"on_event({event_class!r}) needs an Event class.", fix="write @on_event(OrderPlaced)."
        )
    if start not in ("retained", "now"):
        raise HandlerError(f"start is {start!r}.", fix='use "retained" or "now".')
    for name, value in (("lease_ms", lease_ms), ("max_attempts", max_attempts)):
        if value is not None and (type(value) is not int or not 0 < value <= LONGEST_MS):
            raise HandlerError(f"{name} is {value!r}.", fix="pass a whole number above 0.")
    if type(priority) is not int:
        raise HandlerError(f"priority is {priority!r}.", fix="pass a whole number.")
    if type(renew_lease) is not bool:
        raise HandlerError(f"renew_lease is {renew_lease!r}.", fix="pass True or False.")
    if ordered_by is not None and not callable(ordered_by):
        raise HandlerError(
            f"ordered_by is {ordered_by!r}.", fix="pass a function: lambda e: e.order_id."
        )

    def mark(function: Callable[[HandlerContext[EventT]], Any]) -> Callable[..., Any]:
        handler = Handler(
            function,
            event_class,
            _identity(function, handler_id),
            priority,
            start,
            lease_ms,
            renew_lease,
            max_attempts,
            ordered_by,
        )
        setattr(function, _MARK, handler)
        return function

    return mark


def _identity(function: object, pinned: object) -> str:
    """The id of a handler: ``module.path:function_name``, or what was pinned."""
    if not inspect.isfunction(function):
        raise HandlerError(
            f"{function!r} cannot be a handler.",
            fix="decorate a function, def or async def, that takes the context.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(
            f"{function.__qualname__} is a generator.", fix="write a handler without yield."
        )
    if hasattr(function, _MARK):
        raise HandlerError(
            f"{function.__qualname__} is a handler already.", fix="write a function for each event."
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise HandlerError(
            f"{function.__qualname__}{inspect.signature(function)} cannot be a handler.",
            why="a handler takes one argument, the context; a method would take another.",
            fix="write a function: def handler(ctx: HandlerContext[OrderPlaced]) -> None.",
        ) from None
    name = f"{function.__module__}:{function.__qualname__.replace('<locals>.', '')}"
    try:
        if pinned is None:
            return text(name)
        if isinstance(pinned, str) and pinned:
            return text(pinned)
    except ValueError:
        pass
    raise HandlerError(f"handler_id is {pinned!r}.", fix="pass text that is not empty.")


def order_text(key: object) -> str | None:
    """An ``ordered_by`` key as stored; None keeps no order. Raises HandlerError."""
    if key is None:
        return None
    if isinstance(key, tuple):
        return dumps([order_text(part) for part in key])
    if isinstance(key, Enum):
        return f"{type(key).__name__}:{key.name}"
    if isinstance(key, str | int | float | Decimal | UUID | date | bytes):
        try:
            return text(f"{type(key).__name__}:{key!s}")
        except ValueError as error:
            raise HandlerError(f"ordered_by returned {key!r}.", why=f"{error}.") from None
    raise HandlerError(
        f"ordered_by returned {key!r}.",
        fix="return text, a number, a UUID, a date, an Enum member, or a tuple of these.",
    )


def collect(functions: Iterable[Callable[..., Any]]) -> list[Handler]:
    """The handlers among functions, in the order in which they run; raises HandlerError."""
    if callable(functions) or not isinstance(functions, Iterable):
        raise HandlerError(f"handlers is {functions!r}.", fix="pass a list of handlers.")
    found: dict[str, Handler] = {}
    for function in functions:
        handler = getattr(function, _MARK, None)
        if not isinstance(handler, Handler):
            raise HandlerError(
                f"{function!r} is not a handler.", fix="decorate it: @on_event(OrderPlaced)."
            )
        if found.setdefault(handler.handler_id, handler) is not handler:
            raise HandlerError(
                f"there are two handlers called {handler.handler_id!r}.",
                fix="rename one of the functions, or pin another handler_id.",
            )
    for handler in found.values():
        if inspect.iscoroutinefunction(handler.function) and in_event_loop():
            raise HandlerError(
                f"{handler.handler_id!r} is async, and an event loop runs in this thread already.",
                why="a run blocks its thread, and brings its own event loop.",
                fix="run it in a thread: await asyncio.to_thread(session.run, handlers).",
            )
    return sorted(found.values(), key=lambda h: (-h.priority, h.handler_id))


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
