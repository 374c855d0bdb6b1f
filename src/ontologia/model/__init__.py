"""What a user declares: fields, entities, relations and events."""

from ontologia.model.entity import Entity, Relation, commit_of
from ontologia.model.event import Event
from ontologia.model.fields import Field
from ontologia.model.meta import fields_of

__all__ = ["Entity", "Event", "Field", "Relation", "commit_of", "fields_of"]
