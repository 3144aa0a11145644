"""What is expected to happen: for display only, nothing is decided by it."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..scheduler import Scheduler
from ..state.model import Client, Grant

_EXTRAPOLATED_FRACTION = (
    0.5  # of what a turn has lasted; by simulation of notebooks (tests/simulation/test_wait_forecast.py)
)


class WaitForecast(NamedTuple):
    """Of a client that waits: its place in the queue, 1 for the next one, and the seconds until it is likely to run."""

    position: int
    wait: float


def expected_waits(scheduler: Scheduler, device: str, now: float) -> dict[str, float]:
    """Return the seconds until each client that waits for `device` is likely to run, in the order of its queue.

    The present turn ends after `_turn_left`. Each turn before the client's own lasts as long as the mean turn of its
    client, at most a quantum. Clients that may arrive and overtake are not known.
    """
    ahead = _running_turns_left(scheduler, device, now)
    waits = {}
    for client in scheduler.queue(device, now):
        waits[client.id] = ahead
        ahead += _expected_turn(scheduler, client)
    return waits


def forecast_wait(scheduler: Scheduler, client: Client, now: float) -> WaitForecast | None:
    """What `expected_waits` says of one client, on the device that it waits for longest; None: it does not wait.

    In time that grows with the queue, without sorting it.
    """
    if client.waiting_since is None:
        return None
    found = WaitForecast(1, 0.0)
    for device in client.device_bindings:
        ahead = device.queue.predecessors(client, now)
        wait = _running_turns_left(scheduler, device.info.uuid, now) + sum(
            _expected_turn(scheduler, other) for other in ahead
        )
        found = WaitForecast(max(found.position, len(ahead) + 1), max(found.wait, wait))
    return found


def seconds_left(grant: Grant, now: float) -> float | None:
    """Until the turn ends, as its client was told; None: nobody waits, or it has ended and drains."""
    permit = grant.client.permit
    deadline = permit.deadline if permit and not grant.is_draining else None
    return None if deadline is None else max(0.0, deadline - now)


def is_holding(grant: Grant, now: float) -> bool:
    """Whether its client keeps the devices by a hold and runs nothing there: no cell, or, in a program that has none,
    no work since it reported itself idle."""
    client = grant.client
    if client.hold_seconds_left(now) is None or client.cells:
        return False
    return grant.is_idle or client.cells_since > -math.inf


def _running_turns_left(scheduler: Scheduler, device: str, now: float) -> float:
    """Seconds until those who run there have probably had their turns."""
    return max((_turn_left(scheduler, grant, now) for grant in scheduler.devices[device].grants), default=0.0)


def _turn_left(scheduler: Scheduler, grant: Grant, now: float) -> float:
    """Seconds until the turn has probably ended.

    It lasts as long as its client's turns usually do. Work that has had more goes on for half as long again, as
    lengths with a long tail do: without that, whoever waits for a training cell is told "now" all the time. It ends at
    its deadline, and not before if the client holds its devices.
    """
    if grant.is_draining:
        return 0.0
    deadline = seconds_left(grant, now)
    if deadline is not None and grant.client.hold_seconds_left(now) is not None:
        return deadline
    lasted = now - grant.granted_at
    worked = lasted + scheduler.turns.policy.work_seconds(grant.client)
    left = max(_expected_turn(scheduler, grant.client) - lasted, worked * _EXTRAPOLATED_FRACTION)
    return left if deadline is None else min(left, deadline)


def _expected_turn(scheduler: Scheduler, client: Client) -> float:
    quantum = scheduler.quantum(client)
    return quantum if client.mean_turn is None else min(client.mean_turn, quantum)
