"""Hooks: callbacks that tell of every delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields

from ontologia.errors import ConfigError
from ontologia.state.events import StoredEvent
from ontologia.storage.events import EventRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EventHooks:
    """Callbacks for observability: each gets the handler's id and the event.

    They run in whatever thread a delivery is handled; what they raise is logged and forgotten.
    """

    on_event_claimed: Callable[[str, StoredEvent], None] | None = None
    on_event_succeeded: Callable[[str, StoredEvent], None] | None = None
    on_event_failed: Callable[[str, StoredEvent, Exception], None] | None = None
    on_event_dead_lettered: Callable[[str, StoredEvent, Exception], None] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            hook = getattr(self, field.name)
            if hook is not None and not callable(hook):
                raise ConfigError(f"{field.name} is {hook!r}.", fix="pass a function.")

    def claimed(self, handler_id: str, event: EventRecord) -> None:
        """Tell that an event was claimed."""
        _tell(self.on_event_claimed, handler_id, event)

    def succeeded(self, handler_id: str, event: EventRecord) -> None:
        """Tell that an event was acknowledged."""
        _tell(self.on_event_succeeded, handler_id, event)

    def failed(self, handler_id: str, event: EventRecord, error: Exception) -> None:
        """Tell that a handler failed and will be tried again."""
        _tell(self.on_event_failed, handler_id, event, error)

    def dead_lettered(self, handler_id: str, event: EventRecord, error: Exception) -> None:
        """Tell that an event was given up."""
        _tell(self.on_event_dead_lettered, handler_id, event, error)


def _tell(
    hook: Callable[..., None] | None, handler_id: str, event: EventRecord, *more: Exception
) -> None:
    if hook is not None:
        try:
            hook(handler_id, StoredEvent.from_record(event), *more)
        except Exception:
            log.exception("a hook failed", extra={"handler_id": handler_id, "event_id": event.id})
