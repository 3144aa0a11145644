"""Events of `jupyter_events` for clients that get a turn, begin to wait or get another quota.

The events are the differences of two successive snapshots, so the coordinator has no work with events.
Events have no labels, because listeners store events and a label is the path of a notebook.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_events.logger import EventLogger

SCHEMA = Path(__file__).with_name("event_schemas") / "transitions_v1.yaml"
SCHEMA_ID = "https://schema.jupyter.org/jupyter_gpushare/transitions/v1"


class EventEmitter:
    """Emitter of events through the server's event logger."""

    def __init__(self, events: EventLogger) -> None:
        self._events = events
        # By client: the sum of its waits in seconds before the present wait.
        self._waited: dict[str, float] = {}
        events.register_event_schema(SCHEMA)

    def on_snapshot(self, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
        """Emit the events between two snapshots; `before` is None for the first snapshot of a coordinator."""
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
    """Yield the events by client, each client's events in their order."""
    clients_before = {client["id"]: client for client in before["clients"]}
    for client in after["clients"]:
        earlier = clients_before.get(client["id"], {})
        common = {"client": client["id"], "user": client["user"], "devices": client["devices"]}
        if earlier and client["quota"] != earlier["quota"]:
            yield {"transition": "quota_changed", **common, "quota": client["quota"]}
        turns = client["turn_count"] - earlier.get("turn_count", 0)
        if turns > 0:
            earlier_waits = (waited or {}).get(client["id"], 0.0)
            yield {
                "transition": "granted",
                **common,
                "turns": turns,
                "waited_seconds": round(max(0.0, client["wait_seconds"] - earlier_waits), 3),
            }
        position = client["queue_position"]
        if position is not None and (turns > 0 or earlier.get("queue_position") is None):
            yield {"transition": "queued", **common, "queue_position": position}
