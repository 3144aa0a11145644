"""What is expected to happen: for display only, nothing is decided by it."""

from __future__ import annotations

from .model import Client
from .scheduler import Scheduler


def expected_waits(scheduler: Scheduler, device: str, now: float) -> dict[str, float]:
    """Seconds until each client that waits for `device` is likely to run, in the order of its queue.

    The present turn lasts to its deadline and each turn before it as long as that client's turns usually do, at most a
    quantum.
    """
    ahead = 0.0
    for grant in scheduler.devices[device].grants:
        ahead = max(ahead, grant.began + _turn(scheduler, grant.client) - now, 0.0)
    waits = {}
    for client in scheduler.queue(device, now):
        waits[client.id] = ahead
        ahead += _turn(scheduler, client)
    return waits


def _turn(scheduler: Scheduler, client: Client) -> float:
    quantum = scheduler.quantum(client)
    return quantum if client.mean_turn is None else min(client.mean_turn, quantum)
