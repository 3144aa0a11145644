"""The state of everything as JSON, for `status`, the REST interface and the front ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ..core import Scheduler
from ..core.model import Client, Device
from ..core.outlook import expected_waits, held, seconds_left
from . import idle, launch_limits, locks, overruns, shares, states, where
from .devices import Nvml
from .measures import Measures
from .members import Member
from .outside import Outside
from .ports import MAX_BYTES
from .residency import Residency, residencies
from .slices import each
from .users import tenant_name, user_of
from .utilisation import Utilisation


def take(
    scheduler: Scheduler,
    members: Mapping[str, Member],
    nvml: Nvml,
    utilisation: Utilisation,
    outside: Outside,
    touched: set[str],
    clock: Callable[[], float],
) -> Generator[None, None, tuple[list[dict[str, Any]], list[dict[str, Any]], list[Measures]]]:
    """Make `devices` and `clients` of the snapshot (docs/reference/wire.md) in slices, and each client's measures.

    Times in seconds, sizes in bytes. `touched`: the clients that events were about since the first slice. The last
    slice looks at these again, so that all is as the scheduler has it then.
    """
    capacities = {uuid: device.info.memory for uuid, device in scheduler.devices.items()}
    here = [client for client in scheduler.clients.values() if client.id in members]
    latest = sorted(here, key=lambda client: (client.grant is not None, client.last_ran), reverse=True)
    resident = residencies([members[client.id] for client in latest], capacities)
    clients: dict[str, dict[str, Any]] = {}
    measures: dict[str, Measures] = {}

    def look(identity: str) -> None:
        if member := members.get(identity):
            here = resident.get(identity) or Residency()
            measured = measures[identity] = member.measures
            clients[identity] = _client(scheduler, scheduler.clients[identity], member, measured, here, clock())

    yield from each(members, look)
    for identity in touched.union(members.keys() - clients.keys()):
        look(identity)
    now = clock()
    ours = {os.getpid(), *(port.peer.pid for member in members.values() for port in member.processes.values())}
    devices = []
    for uuid, device in scheduler.devices.items():
        queue = expected_waits(scheduler, uuid, now)
        for position, (identity, wait) in enumerate(queue.items(), start=1):
            if client := clients.get(identity):
                client["queue_position"] = max(position, client["queue_position"] or 0)
                client["expected_wait"] = max(round(wait, 3), client["expected_wait"] or 0.0)
        devices.append(
            {
                **_device(device, list(queue), resident, nvml, now),
                **utilisation.of(uuid).as_json(),
                **where.of_device(scheduler, uuid),
                "outside": outside.of(uuid),
                "locked_by": _locked_by(device, ours),
            }
        )
    present = [identity for identity in scheduler.clients if identity in members]
    for identity in present:
        known, found = scheduler.clients[identity], clients[identity]
        prospect = scheduler.idleness.prospect(known, now)
        found |= states.of_client(known, found["queue_position"], prospect, now)
    return devices, [clients[identity] for identity in present], [measures[identity] for identity in present]


def _device(device: Device, queue: list[str], resident: dict[str, Residency], nvml: Nvml, now: float) -> dict[str, Any]:
    info = device.info
    measured = None if info.simulated else nvml.memory_used(info.uuid)
    here = [one for one in resident.values() if info.uuid in one.by_device]
    grants = []
    for grant in device.grants:
        left = seconds_left(grant, now)
        grants.append(
            {
                "client": grant.client.id,
                "held_seconds": round(now - grant.began, 3),
                "seconds_left": None if left is None else round(left, 3),
                "held": held(grant, now),
            }
        )
    return {
        "uuid": info.uuid,
        "name": info.name,
        "simulated": info.simulated,
        "memory_total": info.memory,
        "memory_used": sum(one.by_device[info.uuid] for one in here) if measured is None else measured,
        "memory_used_is_estimate": measured is None and any(one.by_device_is_estimate for one in here),
        "grants": grants,
        "queue": queue,
    }


def _locked_by(device: Device, ours: set[int]) -> list[dict[str, Any]]:
    """Who keeps it from the clients here, as another coordinator does in its turns, and anybody can."""
    if device.taken_since is None:
        return []
    return [{"pid": pid, "user": user_of(pid)} for pid in locks.holders(device.info.uuid) if pid not in ours]


def _client(
    scheduler: Scheduler, client: Client, member: Member, measures: Measures, resident: Residency, now: float
) -> dict[str, Any]:
    """All but the place in the queue."""
    quota, hold = client.quota, client.held_for(now)
    prospect = scheduler.idleness.prospect(client, now)
    processes = []
    for port in member.processes.values():
        report = port.page.report
        processes.append(
            {
                "pid": port.peer.pid,
                "memory_mode": port.memory_mode or None,
                "allocated": port.allocated,
                "resident": port.held.resident,
                "resident_is_estimate": not port.knows_resident,
                "host_pinned": port.host_pinned,
                "host_pageable": port.host_pageable,
                "launches": min(report.launches, MAX_BYTES),
                "refused": min(report.refused, MAX_BYTES),
                "evicted": _moved(report.evicted_bytes, report.evicted_ns),
                "restored": _moved(report.restored_bytes, report.restored_ns),
            }
        )
    return {
        "id": client.id,
        "label": client.label,
        "tenant": tenant_name(client.tenant),
        "phase": client.phase,
        "suspended": client.suspended,
        "hold_seconds_left": None if hold is None else round(hold, 3),
        "devices": list(client.devices),
        "quota": {
            "share": quota.share,
            "limit": quota.limit,
            "memory": quota.memory,
            "resident": quota.resident,
            "service": quota.service,
        },
        "limits": launch_limits.of_client(client, member),
        "allocated": member.allocated,
        **resident.as_json(),
        "gpu_seconds": round(client.gpu_seconds_at(now), 3),
        **measures.of_client(),
        "wait_seconds": round(client.wait_seconds_at(now), 3),
        "quanta": client.quanta,
        "queue_position": None,
        "expected_wait": None,
        "cells": len(client.cells),
        "cell_ids": [cell for requests in member.kernels.values() for cell in requests.values() if cell],
        "processes": processes,
        "kernel_pids": [peer.pid for peer in member.kernels],
        **idle.of_client(client, prospect),
        **where.of_client(scheduler, client),
        **overruns.of_client(client),
        "notes": [
            *where.notes(scheduler, client),
            *shares.notes(scheduler, client),
            *overruns.notes(scheduler, client, now),
            *idle.notes(client, prospect),
        ],
    }


def _moved(size: int, nanoseconds: int) -> dict[str, Any]:
    return {"bytes": min(size, MAX_BYTES), "seconds": round(min(nanoseconds, MAX_BYTES) / 1e9, 6)}


def about(socket: str, version: str, uptime: float, measures: Measures) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "socket": socket,
        "version": version,
        "uptime_seconds": round(uptime, 1),
        "drains": measures.of_all(),
    }
