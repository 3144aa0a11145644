"""Forecasts of waits and turns, for display."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..scheduler import Scheduler
from ..state.model import Client, Device, Grant

_EXTRAPOLATED_FRACTION = 0.5  # of a turn's time so far; from simulations (tests/simulation/test_wait_forecast.py)


class WaitForecast(NamedTuple):
    """The queue position of a waiting client, 1 for the next client, and its expected wait in seconds.

    The wait is infinite where no forecast is possible, because an online client goes first.
    """

    position: int
    wait: float


def expected_waits(scheduler: Scheduler, device: str, now: float) -> dict[str, float]:
    """Return the seconds until each client that waits for `device` is likely to run, in the order of its queue.

    The present turn ends after `_turn_left`. Each turn before the client's own lasts as long as the mean turn of its
    client, at most a quantum. The forecast does not cover clients that arrive later and overtake. The wait of an
    offline client behind a running online client is infinite, because its end is unknown.
    """
    ahead = _running_turns_left(scheduler, device, now)
    waits = {}
    for client in scheduler.queue(device, now):
        waits[client.id] = math.inf if is_behind_online(client, scheduler.devices[device]) else ahead
        ahead += _expected_turn(scheduler, client)
    return waits


def forecast_wait(scheduler: Scheduler, client: Client, now: float) -> WaitForecast | None:
    """Return the result of `expected_waits` for the device with the client's longest wait; None: it does not wait.

    The cost is linear in the length of the queue, without sorting.
    """
    if client.waiting_since is None:
        return None
    found = WaitForecast(1, 0.0)
    for device in client.turn_bindings:
        ahead = device.queue.predecessors(client, now)
        wait = _running_turns_left(scheduler, device.info.uuid, now) + sum(
            _expected_turn(scheduler, other) for other in ahead
        )
        if is_behind_online(client, device):
            wait = math.inf
        found = WaitForecast(max(found.position, len(ahead) + 1), max(found.wait, wait))
    return found


def is_behind_online(client: Client, device: Device) -> bool:
    """Return whether a client of a better class has a turn on the device, which goes on while that client has work."""
    return any(grant.client.service_rank < client.service_rank for grant in device.grants)


def seconds_left(grant: Grant, now: float) -> float | None:
    """Return the seconds until the deadline of the client's permit; None: it has none, or the turn is draining."""
    permit = grant.client.permit
    deadline = permit.deadline if permit and not grant.is_draining else None
    return None if deadline is None else max(0.0, deadline - now)


def is_holding(grant: Grant, now: float) -> bool:
    """Return whether the client keeps the devices by a hold and runs nothing there.

    A client runs nothing without an open cell, or, in a program without cells, without work since it reported itself
    idle.
    """
    client = grant.client
    if client.hold_seconds_left(now) is None or client.cells:
        return False
    return grant.is_idle or client.cells_since > -math.inf


def _running_turns_left(scheduler: Scheduler, device: str, now: float) -> float:
    """Return the seconds until the running clients have probably had their turns."""
    return max((_turn_left(scheduler, grant, now) for grant in scheduler.devices[device].grants), default=0.0)


def _turn_left(scheduler: Scheduler, grant: Grant, now: float) -> float:
    """Return the seconds until the turn has probably ended.

    A cell that ran before takes as long as it did then. Without such a cell, a turn lasts as long as the client's turns
    usually do. Work that has lasted longer goes on for half as long again, as lengths with a long tail do. Otherwise
    the forecast for a client behind a training cell would be "now" all the time. A turn ends at its deadline, and not
    before if the client holds its devices.
    """
    if grant.is_draining:
        return 0.0
    deadline = seconds_left(grant, now)
    if deadline is not None and grant.client.hold_seconds_left(now) is not None:
        return deadline
    duration = now - grant.granted_at
    policy = scheduler.turns.table.policies.policy_of(grant.client)
    left = (policy.expected_seconds_left(grant.client) or 0.0) - (duration - grant.earlier_work)
    if left <= 0.0:
        worked = duration + policy.work_seconds(grant.client)
        left = max(_expected_turn(scheduler, grant.client) - duration, worked * _EXTRAPOLATED_FRACTION)
    return left if deadline is None else min(left, deadline)


def _expected_turn(scheduler: Scheduler, client: Client) -> float:
    quantum = scheduler.quantum(client)
    if expected := scheduler.turns.table.policies.policy_of(client).expected_seconds_left(client):
        return min(expected, quantum)
    return quantum if client.mean_turn is None else min(client.mean_turn, quantum)
