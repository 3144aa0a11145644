"""Wait status of a client, which must be cheap because kernels query it once a second while a cell runs."""

from __future__ import annotations

import math
from typing import Any

from ...core import Scheduler
from ...core.state.model import Client, Grant
from ...core.views.wait_forecast import forecast_wait, is_holding, seconds_left
from ..host.user_database import user_name
from .memory_fields import wait_reason


def describe_wait(scheduler: Scheduler, client_id: str, user: str, now: float) -> dict[str, Any]:
    """Return the result of a WaitStatus by `user`, without the labels of other users' clients; see `wire.messages`."""
    client = scheduler.clients[client_id]
    expected, reason = forecast_wait(scheduler, client, now), wait_reason(client)
    waits_since = client.waiting_since if client.waiting_since is not None else client.blocked_since
    running = {
        grant.client.id: _running_client(grant, user, now)
        for device in client.device_bindings
        for grant in device.grants
        if grant.client is not client
    }
    return {
        "waiting": waits_since is not None,
        "waited_seconds": 0.0 if waits_since is None else round(now - waits_since, 3),
        "wait_seconds": round(client.wait_seconds_at(now), 3),
        "queue_position": expected.position if expected else None,
        "expected_wait": round(expected.wait, 3) if expected and expected.wait < math.inf and not reason else None,
        "reason": reason,
        "suspended": client.suspended,
        "has_turn": client.grant is not None,
        "turn_count": client.turn_count,
        "running": list(running.values()),
    }


def _running_client(grant: Grant, user: str, now: float) -> dict[str, Any]:
    client: Client = grant.client
    left = seconds_left(grant, now)
    return {
        "client": client.id,
        "label": client.label if client.user == user else "",
        "user": user_name(client.user),
        "seconds_left": None if left is None else round(left, 3),
        "held": is_holding(grant, now),
    }
