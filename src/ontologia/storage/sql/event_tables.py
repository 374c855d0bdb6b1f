"""The tables of the event store, and the conditions that its statements share."""

from __future__ import annotations

from ontologia.storage.events import ClaimRecord, DeadLetter, EventRecord

EVENT_TABLES = (
    "CREATE TABLE events (position {position}, id {text} NOT NULL UNIQUE, "
    "namespace {text} NOT NULL, type {text} NOT NULL, payload {json} NOT NULL, "
    "created_at {text} NOT NULL, priority {int} NOT NULL DEFAULT 100, "
    "root_event_id {text} NOT NULL, chain_depth {int} NOT NULL DEFAULT 0, causation_id {text}, "
    "commit_id {int}, dedupe_key {text}){table}",
    "CREATE INDEX events_type ON events (namespace, type, position)",
    "CREATE INDEX events_root ON events (root_event_id)",
    "CREATE UNIQUE INDEX events_dedupe ON events (namespace, dedupe_key) "
    "WHERE dedupe_key IS NOT NULL",
    "CREATE TABLE event_handlers (namespace {text} NOT NULL, handler_id {text} NOT NULL, "
    "type {text} NOT NULL, position {int} NOT NULL, registered_at {text} NOT NULL, "
    "rewound {int} NOT NULL DEFAULT 0, PRIMARY KEY (namespace, handler_id, type)){table}",
    "CREATE TABLE event_claims (event_id {text} NOT NULL, handler_id {text} NOT NULL, "
    "namespace {text} NOT NULL, type {text} NOT NULL, position {int} NOT NULL, "
    "priority {int} NOT NULL, session_id {text} NOT NULL, token {text} NOT NULL, "
    "claimed_at {text} NOT NULL, lease_until {text} NOT NULL, ack_at {text}, "
    "attempts {int} NOT NULL DEFAULT 0, "
    "available_at {text} NOT NULL, last_error {text}, dead_lettered_at {text}, "
    "generation {int} NOT NULL DEFAULT 0, started {int} NOT NULL DEFAULT 0, "
    "order_key {text}, blocked {int} NOT NULL DEFAULT 0, "
    "PRIMARY KEY (event_id, handler_id)){table}",
    # Only what is not finished: claims never meet what was acknowledged, or waits for another.
    "CREATE INDEX event_claims_open ON event_claims (namespace, handler_id, priority DESC, "
    "position) WHERE ack_at IS NULL AND dead_lettered_at IS NULL AND blocked = 0",
    "CREATE INDEX event_claims_order ON event_claims (namespace, handler_id, order_key, position) "
    "WHERE ack_at IS NULL AND dead_lettered_at IS NULL AND order_key IS NOT NULL",
    "CREATE INDEX event_claims_leases ON event_claims (namespace, handler_id, order_key, "
    "lease_until) WHERE ack_at IS NULL AND dead_lettered_at IS NULL AND order_key IS NOT NULL",
    "CREATE INDEX event_claims_dead ON event_claims (namespace, handler_id, type) "
    "WHERE dead_lettered_at IS NOT NULL",
    "CREATE TABLE dead_letters (id {serial}, event_id {text} NOT NULL, "
    "handler_id {text} NOT NULL, namespace {text} NOT NULL, failed_at {text} NOT NULL, "
    "attempts {int} NOT NULL, last_error {text} NOT NULL, event_type {text} NOT NULL, "
    "event_payload {json} NOT NULL, root_event_id {text} NOT NULL, chain_depth {int} NOT NULL, "
    "session_id {text} NOT NULL){table}",
    "CREATE INDEX dead_letters_namespace ON dead_letters (namespace, id)",
    "CREATE TABLE schedules (namespace {text} NOT NULL, name {text} NOT NULL, "
    "last_tick {text} NOT NULL, cleaned_tick {text} NOT NULL DEFAULT '', "
    "PRIMARY KEY (namespace, name)){table}",
    "CREATE TABLE sessions (session_id {text} NOT NULL PRIMARY KEY, namespace {text} NOT NULL, "
    "started_at {text} NOT NULL, last_heartbeat {text} NOT NULL, metadata {json} NOT NULL, "
    "stopped_at {text}){table}",
    "CREATE INDEX sessions_namespace ON sessions (namespace, started_at)",
    "CREATE INDEX sessions_heartbeat ON sessions (last_heartbeat)",
)

EVENT_COLUMNS = ", ".join(EventRecord._fields)
CLAIM_COLUMNS = ", ".join(ClaimRecord._fields)
DEAD_COLUMNS = ", ".join(DeadLetter._fields)
OPEN = "ack_at IS NULL AND dead_lettered_at IS NULL"
DUE = (
    f"{OPEN} AND blocked = 0 AND lease_until <= ? AND available_at <= ? "
    # Nobody works on another event of the same key: a replayed one may come before it.
    "AND (order_key IS NULL OR NOT EXISTS (SELECT 1 FROM event_claims AS b "
    "WHERE b.namespace = event_claims.namespace AND b.handler_id = event_claims.handler_id "
    "AND b.order_key = event_claims.order_key AND b.lease_until > ? "
    "AND b.ack_at IS NULL AND b.dead_lettered_at IS NULL))"
)
HELD = (
    "event_id = ? AND handler_id = ? AND namespace = ? AND token = ? AND lease_until > ? "
    f"AND {OPEN}"
)
# An earlier event of the same handler and key that is not finished.
EARLIER = (
    "EXISTS (SELECT 1 FROM event_claims AS b WHERE b.namespace = event_claims.namespace "
    "AND b.handler_id = event_claims.handler_id AND b.order_key = event_claims.order_key "
    "AND b.ack_at IS NULL AND b.dead_lettered_at IS NULL "
    "AND b.position < event_claims.position)"
)

# Where a handler was registered: the row without a type.
START = (
    "COALESCE((SELECT position FROM event_handlers "
    "WHERE namespace = ? AND handler_id = ? AND type = ''), 0)"
)
