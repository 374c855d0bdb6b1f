"""All options of a session, validated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from ontologia.errors import ConfigError

Synchronous = Literal["FULL", "NORMAL"]


LONGEST_MS = 100 * 365 * 86_400_000
"""No duration is longer than 100 years: sums of times must stay times."""


@dataclass(frozen=True, kw_only=True)
class OntologiaConfig:
    """Options of a session; durations are in milliseconds."""

    default_namespace: str = "default"
    """Namespace of sessions that name none."""

    max_batch_size: int = 10_000
    """Most objects that one commit takes."""

    lock_timeout_ms: int = 5_000
    """How long a commit waits for other writers before ``LockContentionError``."""

    sqlite_synchronous: Synchronous = "FULL"
    """``FULL``: a commit that returned survives power loss. ``NORMAL``: it survives a crash of the
    process, and the last commits before a power loss may be missing."""

    postgres_schema: str = "ontologia"
    """Schema of the PostgreSQL database that holds the datastore."""

    postgres_pool_size: int = 10
    """Most connections of a session to PostgreSQL, besides the one that listens."""

    postgres_listen: bool = True
    """``False``: nothing outlives a transaction on a connection, as a pooler in transaction mode
    needs it; idle event loops then poll instead of being woken."""

    event_poll_interval_ms: int = 1_000
    """Longest wait of an idle event loop."""

    event_claim_limit: int = 100
    """Most events claimed per handler and poll."""

    max_events_per_iteration: int = 1_000
    """Most events handled in one iteration of the loop, over all handlers."""

    event_claim_lease_ms: int = 30_000
    """How long a claimed event is reserved for its handler."""

    event_retention_ms: int = 604_800_000
    """How long handled events are kept."""

    dead_letter_retention_ms: int = 2_592_000_000
    """How long the records of dead letters are kept."""

    session_retention_ms: int = 604_800_000
    """How long sessions that ended or fell silent are listed."""

    session_heartbeat_interval_ms: int = 5_000
    """How often a running session reports that it is alive."""

    session_ttl_ms: int = 60_000
    """A session silent for this long counts as dead."""

    event_max_attempts: int = 10
    """Failures of one handler before an event becomes its dead letter."""

    event_backoff_base_ms: int = 250
    """First delay of the exponential backoff."""

    event_backoff_max_ms: int = 30_000
    """Longest delay of the exponential backoff."""

    max_event_chain_depth: int = 20
    """Most hops from a root event; a guard against endless chains."""

    def __post_init__(self) -> None:
        for name, hint in _HINTS.items():
            _check(name, hint, getattr(self, name))
        if self.lock_timeout_ms >= 2**31:
            raise ConfigError(
                f"lock_timeout_ms is {self.lock_timeout_ms}.",
                why="operating systems wait for at most 2**31 milliseconds, about 24 days.",
                fix="pass a smaller number.",
            )
        if self.event_backoff_max_ms < self.event_backoff_base_ms:
            raise ConfigError(
                f"event_backoff_max_ms is {self.event_backoff_max_ms}, "
                f"less than event_backoff_base_ms ({self.event_backoff_base_ms}).",
                fix="raise the maximum or lower the base.",
            )

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> OntologiaConfig:
        """Read options from ``ONTOLOGIA_*`` variables, e.g. ``ONTOLOGIA_MAX_BATCH_SIZE``."""
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name, hint in _HINTS.items():
            raw = source.get(f"ONTOLOGIA_{name.upper()}")
            if raw is not None:
                values[name] = _parse(name, hint, raw)
        return cls(**(values | overrides))


_HINTS: dict[str, Any] = {
    f.name: get_type_hints(OntologiaConfig)[f.name] for f in fields(OntologiaConfig)
}


_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _parse(name: str, hint: Any, raw: str) -> Any:
    if hint is bool:
        found = _TRUTH.get(raw.strip().lower())
        if found is None:
            raise ConfigError(
                f"ONTOLOGIA_{name.upper()} is {raw!r}.", fix="set it to true or false."
            )
        return found
    if hint is not int:
        return raw
    try:
        return int(raw)
    except ValueError:
        raise ConfigError(
            f"ONTOLOGIA_{name.upper()} is {raw!r}, not a whole number.",
            fix="set it to digits only, for example 5000.",
        ) from None


def _check(name: str, hint: Any, value: object) -> None:
    if hint is int:
        most = LONGEST_MS if name.endswith("_ms") else 2**53
        if type(value) is not int or not 0 < value <= most:
            raise ConfigError(
                f"{name} is {value!r}.",
                why=f"it must be a whole number above 0, and at most {most}.",
                fix="pass such a number.",
            )
    elif hint is bool:
        if type(value) is not bool:
            raise ConfigError(f"{name} is {value!r}.", why="it must be True or False.")
    elif hint is str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ConfigError(f"{name} is {value!r}.", why="it must be text, and not empty.")
    elif value not in get_args(hint):
        choices = ", ".join(map(repr, get_args(hint)))
        raise ConfigError(f"{name} is {value!r}.", why=f"it must be one of {choices}.")
