"""The event that tells of a dead letter."""

from __future__ import annotations

from ontologia.model import Event, Field
from ontologia.storage.events import DEAD_LETTER_TYPE


class EventDeadLetter(Event, type=DEAD_LETTER_TYPE):
    """A handler gave an event up; the lineage is that of the event."""

    event_id: Field[str]
    handler_id: Field[str]
    attempts: Field[int]
    last_error: Field[str]
