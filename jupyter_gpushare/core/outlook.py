"""What is expected to happen: for display only, nothing is decided by it."""

from __future__ import annotations

import math
from typing import NamedTuple

from .model import Client, Grant
from .scheduler import Scheduler

_TAIL = 0.5  # of what a turn has lasted; by simulation of notebooks (tests/simulation/test_wait_forecast.py)


class Outlook(NamedTuple):
    """Of a client that waits: its place in the queue, 1 for the next one, and the seconds until it is likely to run."""

    position: int
    wait: float


def expected_waits(scheduler: Scheduler, device: str, now: float) -> dict[str, float]:
    """Seconds until each client that waits for `device` is likely to run, in the order of its queue.

    The present turn ends as `_left` says, and each turn before its own lasts as long as that client's turns usually do,
    at most a quantum. Who will come and overtake is not known.
    """
    ahead = _present(scheduler, device, now)
    waits = {}
    for client in scheduler.queue(device, now):
        waits[client.id] = ahead
        ahead += _turn(scheduler, client)
    return waits


def outlook(scheduler: Scheduler, client: Client, now: float) -> Outlook | None:
    """What `expected_waits` says of one client, on the device that it waits for longest; None: it does not wait.

    In time that grows with the queue, without sorting it.
    """
    if client.waiting_since is None:
        return None
    found = Outlook(1, 0.0)
    for device in client.books:
        ahead = device.line.ahead_of(client, now)
        wait = _present(scheduler, device.info.uuid, now) + sum(_turn(scheduler, other) for other in ahead)
        found = Outlook(max(found.position, len(ahead) + 1), max(found.wait, wait))
    return found


def seconds_left(grant: Grant, now: float) -> float | None:
    """Until the turn ends, as its client was told; None: nobody waits, or it has ended and drains."""
    permit = grant.client.permit
    deadline = permit.deadline if permit and not grant.draining else None
    return None if deadline is None else max(0.0, deadline - now)


def held(grant: Grant, now: float) -> bool:
    """Whether its client keeps the devices by a hold and runs nothing there: no cell, or, in a program that has none,
    no work since it reported itself idle."""
    client = grant.client
    if client.held_for(now) is None or client.cells:
        return False
    return grant.idle or client.cells_since > -math.inf


def _present(scheduler: Scheduler, device: str, now: float) -> float:
    """Seconds until those who run there have probably had their turns."""
    return max((_left(scheduler, grant, now) for grant in scheduler.devices[device].grants), default=0.0)


def _left(scheduler: Scheduler, grant: Grant, now: float) -> float:
    """Seconds until the turn has probably ended.

    It lasts as long as its client's turns usually do. Work that has had more goes on for half as long again, as
    lengths with a long tail do: without that, whoever waits for a training cell is told "now" all the time. It ends at
    its deadline, and not before if the client holds its devices.
    """
    if grant.draining:
        return 0.0
    deadline = seconds_left(grant, now)
    if deadline is not None and grant.client.held_for(now) is not None:
        return deadline
    lasted = now - grant.began
    worked = lasted + scheduler.turns.policy.work(grant.client)
    left = max(_turn(scheduler, grant.client) - lasted, worked * _TAIL)
    return left if deadline is None else min(left, deadline)


def _turn(scheduler: Scheduler, client: Client) -> float:
    quantum = scheduler.quantum(client)
    return quantum if client.mean_turn is None else min(client.mean_turn, quantum)
