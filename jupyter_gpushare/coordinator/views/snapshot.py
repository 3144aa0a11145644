"""The state of everything as JSON, for `status`, the REST interface and the front ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ...core import Scheduler
from ...core.state.model import Client, Device
from ...core.views.wait_forecast import expected_waits, is_holding, seconds_left
from ..clients.client_runtime import ClientRuntime
from ..clients.process_counters import ProcessCounters
from ..clients.process_handle import MAX_BYTES
from ..gpu.nvml import Nvml
from ..host import device_locks
from ..host.chunked_work import in_chunks
from ..host.user_names import process_user, user_name
from ..monitoring.device_utilisation import UtilisationSampler
from ..monitoring.foreign_processes import ForeignProcesses
from ..monitoring.residency_estimate import Residency, estimate_residency
from . import client_state, idle_fields, launch_limits, overrun_fields, placement_fields, share_notes


def build_snapshot(
    scheduler: Scheduler,
    runtimes: Mapping[str, ClientRuntime],
    nvml: Nvml,
    utilisation: UtilisationSampler,
    foreign_processes: ForeignProcesses,
    changed_clients: set[str],
    clock: Callable[[], float],
) -> Generator[None, None, tuple[list[dict[str, Any]], list[dict[str, Any]], list[ProcessCounters]]]:
    """Make `devices` and `clients` of the snapshot (docs/reference/wire.md) in slices, and each client's measures.

    Times in seconds, sizes in bytes. `touched`: the clients that events were about since the first slice. The last
    slice looks at these again, so that all is as the scheduler has it then.
    """
    capacities = {uuid: device.info.memory for uuid, device in scheduler.devices.items()}
    here = [client for client in scheduler.clients.values() if client.id in runtimes]
    latest = sorted(here, key=lambda client: (client.grant is not None, client.last_turn_ended_at), reverse=True)
    resident = estimate_residency([runtimes[client.id] for client in latest], capacities)
    clients: dict[str, dict[str, Any]] = {}
    measures: dict[str, ProcessCounters] = {}

    def look(identity: str) -> None:
        if runtime := runtimes.get(identity):
            here = resident.get(identity) or Residency()
            measured = measures[identity] = runtime.counters
            clients[identity] = _client(scheduler, scheduler.clients[identity], runtime, measured, here, clock())

    yield from in_chunks(runtimes, look)
    for identity in changed_clients.union(runtimes.keys() - clients.keys()):
        look(identity)
    now = clock()
    ours = {
        os.getpid(),
        *(handle.connection.pid for runtime in runtimes.values() for handle in runtime.processes.values()),
    }
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
                **utilisation.of_device(uuid).as_json(),
                **placement_fields.device_placement_fields(scheduler, uuid),
                "foreign_processes": foreign_processes.on_device(uuid),
                "locked_by": _foreign_lock_holders(device, ours),
            }
        )
    present = [identity for identity in scheduler.clients if identity in runtimes]
    for identity in present:
        known, found = scheduler.clients[identity], clients[identity]
        prospect = scheduler.idle_policy.forecast(known, now)
        found |= client_state.state_fields(known, found["queue_position"], prospect, now)
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
                "granted_seconds": round(now - grant.granted_at, 3),
                "seconds_left": None if left is None else round(left, 3),
                "held": is_holding(grant, now),
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


def _foreign_lock_holders(device: Device, ours: set[int]) -> list[dict[str, Any]]:
    """Who keeps it from the clients here, as another coordinator does in its turns, and anybody can."""
    if device.taken_by_other_since is None:
        return []
    return [
        {"pid": pid, "user": process_user(pid)}
        for pid in device_locks.lock_holders(device.info.uuid)
        if pid not in ours
    ]


def _client(
    scheduler: Scheduler,
    client: Client,
    runtime: ClientRuntime,
    measures: ProcessCounters,
    resident: Residency,
    now: float,
) -> dict[str, Any]:
    """All but the place in the queue."""
    quota, hold = client.quota, client.hold_seconds_left(now)
    prospect = scheduler.idle_policy.forecast(client, now)
    processes = []
    for handle in runtime.processes.values():
        report = handle.page.report
        processes.append(
            {
                "pid": handle.connection.pid,
                "memory_mode": handle.memory_mode or None,
                "allocated": handle.allocated,
                "resident": handle.memory_use.resident,
                "resident_is_estimate": not handle.is_resident_exact,
                "host_pinned": handle.host_pinned,
                "host_pageable": handle.host_pageable,
                "launches": min(report.launches, MAX_BYTES),
                "refused_allocations": min(report.refused_allocations, MAX_BYTES),
                "evicted": _transfer_fields(report.evicted_bytes, report.evicted_ns),
                "restored": _transfer_fields(report.restored_bytes, report.restored_ns),
            }
        )
    return {
        "id": client.id,
        "label": client.label,
        "user": user_name(client.user),
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
        "limits": launch_limits.limits_field(client, runtime),
        "allocated": runtime.allocated,
        **resident.as_json(),
        "gpu_seconds": round(client.gpu_seconds_at(now), 3),
        **measures.client_fields(),
        "wait_seconds": round(client.wait_seconds_at(now), 3),
        "turn_count": client.turn_count,
        "queue_position": None,
        "expected_wait": None,
        "cells": len(client.cells),
        "cell_ids": [cell for requests in runtime.kernels.values() for cell in requests.values() if cell],
        "processes": processes,
        "kernel_pids": [connection.pid for connection in runtime.kernels],
        **idle_fields.idle_fields(client, prospect),
        **placement_fields.placement_fields(scheduler, client),
        **overrun_fields.overrun_fields(client),
        "notes": [
            *placement_fields.placement_notes(scheduler, client),
            *share_notes.share_notes(scheduler, client),
            *overrun_fields.overrun_notes(scheduler, client, now),
            *idle_fields.idle_notes(client, prospect),
        ],
    }


def _transfer_fields(size: int, nanoseconds: int) -> dict[str, Any]:
    return {"bytes": min(size, MAX_BYTES), "seconds": round(min(nanoseconds, MAX_BYTES) / 1e9, 6)}


def coordinator_fields(socket: str, version: str, uptime: float, measures: ProcessCounters) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "socket": socket,
        "version": version,
        "uptime_seconds": round(uptime, 1),
        "drains": measures.drain_totals(),
    }
