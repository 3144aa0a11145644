"""The state of everything as JSON, for `status`, the REST interface and the front ends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..core import Scheduler
from ..core.model import Client, Device
from ..core.outlook import expected_waits, held, seconds_left
from . import idle, locks, overruns, shares, where
from .devices import Nvml
from .measures import Measures
from .members import Member
from .outside import Outside
from .ports import MAX_BYTES
from .residency import Residency, residencies
from .users import tenant_name, user_of
from .utilisation import Utilisation

_MODES = ("coordinated", "lock_file")


def take(
    scheduler: Scheduler,
    members: dict[str, Member],
    measures: Mapping[str, Measures],
    nvml: Nvml,
    utilisation: Utilisation,
    outside: Outside,
    config: dict[str, Any],
    about: dict[str, Any],
    now: float,
) -> dict[str, Any]:
    """The snapshot described in docs/design.md. Times in seconds, sizes in bytes; `measures` are each member's."""
    waits: dict[str, float | None] = {}
    positions: dict[str, int] = {}
    capacities = {uuid: device.info.memory for uuid, device in scheduler.devices.items()}
    running = frozenset(client.id for client in scheduler.clients.values() if client.grant)
    resident = residencies(members.values(), capacities, running)
    ours = {os.getpid(), *(port.peer.pid for member in members.values() for port in member.processes.values())}
    devices = []
    for device in scheduler.devices.values():
        queue = expected_waits(scheduler, device.info.uuid, now)
        for position, (client, wait) in enumerate(queue.items(), start=1):
            positions[client] = max(position, positions.get(client, 0))
            waits[client] = max(wait, waits.get(client) or 0.0)
        placed = where.of_device(scheduler, device.info.uuid)
        utilised = utilisation.of(device.info.uuid).as_json()
        devices.append(
            {
                **_device(device, list(queue), resident, nvml, now),
                **utilised,
                **placed,
                "outside": outside.of(device.info.uuid),
                "locked_by": _locked_by(device, ours),
            }
        )
    here = [
        (client, scheduler.idleness.prospect(client, now))
        for client in scheduler.clients.values()
        if client.id in members
    ]
    clients = [
        {
            **_client(
                client,
                members[client.id],
                measures[client.id],
                resident[client.id],
                positions.get(client.id),
                waits.get(client.id),
                now,
            ),
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
        for client, prospect in here
    ]
    return {"devices": devices, "clients": clients, "config": config, "coordinator": about}


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
                "epoch": grant.epoch,
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
    if device.refused_until is None:
        return []
    return [{"pid": pid, "user": user_of(pid)} for pid in locks.holders(device.info.uuid) if pid not in ours]


def _client(
    client: Client,
    member: Member,
    measures: Measures,
    resident: Residency,
    position: int | None,
    wait: float | None,
    now: float,
) -> dict[str, Any]:
    quota, hold = client.quota, client.held_for(now)
    processes = []
    for port in member.processes.values():
        report = port.page.report
        mode = int(report.mode)  # looked at once: its process may change it at any time
        processes.append(
            {
                "pid": port.peer.pid,
                "mode": _MODES[mode] if mode < len(_MODES) else "unknown",
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
        "allocated": member.allocated,
        **resident.as_json(),
        "gpu_seconds": round(client.gpu_seconds_at(now), 3),
        **measures.of_client(),
        "wait_seconds": round(client.wait_seconds_at(now), 3),
        "quanta": client.quanta,
        "queue_position": position,
        "expected_wait": None if wait is None else round(wait, 3),
        "cells": len(client.cells),
        "cell_ids": [cell for requests in member.kernels.values() for cell in requests.values() if cell],
        "processes": processes,
        "kernel_pids": [peer.pid for peer in member.kernels],
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
