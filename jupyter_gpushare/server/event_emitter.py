"""Events of `jupyter_events` when a client gets its turn, begins to wait, or has another quota.

Told from two snapshots that follow each other, so that they cost the coordinator nothing. No labels: events are kept,
and labels name notebooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_events.logger import EventLogger

SCHEMA = Path(__file__).with_name("event_schemas") / "transitions_v1.yaml"
SCHEMA_ID = "https://schema.jupyter.org/jupyter_gpushare/transitions/v1"


class EventEmitter:
    """Emits events through the server's logger; whoever listens there hears them."""

    def __init__(self, events: EventLogger) -> None:
        self._events = events
        self._waited: dict[str, float] = {}  # by client: in all, when it began to wait for its next turn
        events.register_event_schema(SCHEMA)

    def on_snapshot(self, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
        """Two snapshots of one coordinator. None: it has just been found, so nothing is known to have changed."""
        for event in state_changes(before, after, self._waited) if before else ():
            self._events.emit(schema_id=SCHEMA_ID, data=event)
        earlier = {client["id"]: client["turn_count"] for client in before["clients"]} if before else {}
        self._waited = {
            client["id"]: client["wait_seconds"]
            if client["queue_position"] is None or client["turn_count"] != earlier.get(client["id"], 0)
            else self._waited.get(client["id"], 0.0)
            for client in after["clients"]
        }


def state_changes(
    before: dict[str, Any], after: dict[str, Any], waited: dict[str, float] | None = None
) -> Iterator[dict[str, Any]]:
    """The events, client by client, in the order in which they happened to each."""
    earlier = {client["id"]: client for client in before["clients"]}
    for client in after["clients"]:
        known = earlier.get(client["id"], {})
        about = {"client": client["id"], "user": client["user"], "devices": client["devices"]}
        if known and client["quota"] != known["quota"]:
            yield {"transition": "quota_changed", **about, "quota": client["quota"]}
        turns = client["turn_count"] - known.get("turn_count", 0)
        if turns > 0:
            since = (waited or {}).get(client["id"], 0.0)
            yield {
                "transition": "granted",
                **about,
                "turns": turns,
                "waited_seconds": round(max(0.0, client["wait_seconds"] - since), 3),
            }
        position = client["queue_position"]
        if position is not None and (turns > 0 or known.get("queue_position") is None):
            yield {"transition": "queued", **about, "queue_position": position}
