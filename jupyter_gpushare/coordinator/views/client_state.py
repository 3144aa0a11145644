"""State of a client as a word for programs and as a text for users."""

from __future__ import annotations

from ...core.handlers.idle_policy import IdleForecast
from ...core.state.model import IDLE, RUNNING, SUSPENDED, WAITING, Client
from ...core.views.wait_forecast import is_holding

# The part up to " · " fits into a status bar. Times are fields of their own, because they pass without a new snapshot.
_STATE_TEXTS = {
    "idle": "idle",
    "unused": "idle · has not used the GPU yet",
    "idle_warned": "idle for long",
    "idle_evicted": "idle, moved off · memory comes back with the next turn",
    "waiting": "waiting",
    "running": "running",
    "held": "held",
    "draining": "turn ending",
    "overrun": "turn overrun · work or memory has not left the GPU",
    "suspended": "suspended · GPU calls wait until it is resumed",
    "idle_suspended": "suspended, idle · the next cell or GPU call resumes it",
}


def state_fields(client: Client, position: int | None, prospect: IdleForecast | None, now: float) -> dict[str, str]:
    """Return the fields `state` and `state_text` of a client in the snapshot."""
    state = _state(client, prospect, now)
    text = f"#{position} in queue" if state == WAITING and position else _STATE_TEXTS[state]
    return {"state": state, "state_text": text}


def _state(client: Client, prospect: IdleForecast | None, now: float) -> str:
    if client.phase == SUSPENDED:
        return "idle_suspended" if client.suspended_by_policy else SUSPENDED
    if client.phase == RUNNING and client.grant and is_holding(client.grant, now):
        return "held"
    if client.phase != IDLE:
        return client.phase
    if not client.devices:
        return "unused"
    warned = prospect is not None and prospect.is_warning_due
    if warned and prospect and (prospect.evict_in_seconds is not None or prospect.suspend_in_seconds is not None):
        return "idle_warned"
    if client.evicted_by_policy:
        return "idle_evicted"
    return "idle_warned" if warned and client.memory_use.resident else IDLE
