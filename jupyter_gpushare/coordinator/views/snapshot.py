"""Snapshot of the state as JSON, for `status`, the REST interface and the front ends."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ...core import Scheduler
from ...core.state.model import Client, Device
from ...core.views.wait_forecast import expected_waits, is_holding, seconds_left
from ...settings.table import PER_DEVICE
from ..clients.client_runtime import ClientRuntime
from ..clients.process_counters import ProcessCounters
from ..clients.process_handle import MAX_BYTES
from ..gpu.nvml import Nvml
from ..host import device_locks
from ..host.chunked_work import in_chunks
from ..host.user_database import process_user, user_name
from ..monitoring.device_utilisation import UtilisationSampler
from ..monitoring.foreign_processes import ForeignProcesses
from ..monitoring.host_backing import HostBacking, HostBackingSampler
from ..monitoring.residency_estimate import Residency, estimate_residency
from . import client_fields, launch_limits, memory_fields
from .progress_fields import StepCounts, progress_fields


def build_snapshot(
    scheduler: Scheduler,
    runtimes: Mapping[str, ClientRuntime],
    nvml: Nvml,
    utilisation: UtilisationSampler,
    foreign_processes: ForeignProcesses,
    host_backing: HostBackingSampler,
    step_counts: StepCounts,
    changed_clients: set[str],
    clock: Callable[[], float],
) -> Generator[None, None, tuple[list[dict[str, Any]], list[dict[str, Any]], list[ProcessCounters]]]:
    """Build `devices` and `clients` of the snapshot (docs/reference/wire.md) in chunks, and each client's counters.

    Times are in seconds, sizes in bytes. `changed_clients` has the clients that events were about since the first
    chunk. The last chunk builds these again, so that the snapshot is consistent with the scheduler at its end.
    """
    capacities = {uuid: device.info.memory for uuid, device in scheduler.devices.items()}
    connected = [client for client in scheduler.clients.values() if client.id in runtimes]
    latest = sorted(connected, key=lambda client: (client.grant is not None, client.last_turn_ended_at), reverse=True)
    residencies = estimate_residency([runtimes[client.id] for client in latest], capacities)
    clients: dict[str, dict[str, Any]] = {}
    counters: dict[str, ProcessCounters] = {}

    def build_client(identity: str) -> None:
        if runtime := runtimes.get(identity):
            residency = residencies.get(identity) or Residency()
            counters[identity] = runtime.counters
            backing = host_backing.of_client(identity)
            client = scheduler.clients[identity]
            clients[identity] = {
                **_client(scheduler, client, runtime, counters[identity], residency, backing, clock()),
                **progress_fields(client, runtime, step_counts),
            }

    yield from in_chunks(runtimes, build_client)
    for identity in changed_clients.union(runtimes.keys() - clients.keys()):
        build_client(identity)
    now = clock()
    own_pids = {
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
                **_device(device, list(queue), residencies, nvml, now),
                "settings": _own_settings(scheduler, device),
                **utilisation.of_device(uuid).as_json(),
                **_device_placement_fields(scheduler, uuid),
                "foreign_processes": foreign_processes.on_device(uuid),
                "locked_by": _foreign_lock_holders(device, own_pids),
            }
        )
    present = [identity for identity in scheduler.clients if identity in runtimes]
    for identity in present:
        fields, state = clients[identity], scheduler.clients[identity]
        forecast = scheduler.idle_policy.forecast(state, now)
        moving_to = client_fields.name_of_new_device(scheduler, state)
        fields |= client_fields.state_fields(state, fields["queue_position"], forecast, now, moving_to)
        if fields["wait_reason"] or fields["expected_wait"] == math.inf:
            fields["expected_wait"] = None

    return devices, [clients[identity] for identity in present], [counters[identity] for identity in present]


def _device(
    device: Device, queue: list[str], residencies: dict[str, Residency], nvml: Nvml, now: float
) -> dict[str, Any]:
    info = device.info
    measured = None if info.simulated else nvml.memory_used(info.uuid)
    on_device = [one for one in residencies.values() if info.uuid in one.by_device]
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
        "parent": info.parent or None,
        "simulated": info.simulated,
        "memory_total": info.memory,
        "memory_used": sum(one.by_device[info.uuid] for one in on_device) if measured is None else measured,
        "memory_used_is_estimate": measured is None and any(one.by_device_is_estimate for one in on_device),
        "context_memory": device.context,
        "grants": grants,
        "queue": queue,
    }


def _own_settings(scheduler: Scheduler, device: Device) -> dict[str, Any]:
    """Return the settings of the device that differ from those of the host."""
    pairs = ((name, getattr(device.settings, name)) for name in PER_DEVICE)
    return {name: value for name, value in pairs if value != getattr(scheduler.settings, name)}


def _device_placement_fields(scheduler: Scheduler, uuid: str) -> dict[str, Any]:
    """Return fields of a device in the snapshot.

    `failed` is the reason why no new client is placed on the device. `guaranteed_to` is the tenant whose topology cells
    contain the device now.
    """
    placement = scheduler.placement_adapter.placement
    return {"failed": placement.allocations[uuid].failure or None, "guaranteed_to": placement.owner(uuid) or None}


def _foreign_lock_holders(device: Device, own_pids: set[int]) -> list[dict[str, Any]]:
    """Return the processes that have the device's turn lock and belong to no client here.

    Such processes are clients of another coordinator in their turns, or any process that has taken the lock.
    """
    if device.taken_by_other_since is None:
        return []
    return [
        {"pid": pid, "user": process_user(pid)}
        for pid in device_locks.lock_holders(device.info.uuid)
        if pid not in own_pids
    ]


def _client(
    scheduler: Scheduler,
    client: Client,
    runtime: ClientRuntime,
    counters: ProcessCounters,
    residency: Residency,
    backing: HostBacking,
    now: float,
) -> dict[str, Any]:
    """Return a client of the snapshot, without its position in the queue and its state."""
    quota, hold = client.quota, client.hold_seconds_left(now)
    forecast = scheduler.idle_policy.forecast(client, now)
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
                "bypassing_libraries": handle.bypassing_libraries,
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
        "limits": launch_limits.limits_field(scheduler, client, runtime, now),
        "allocated": runtime.allocated,
        "unmade": runtime.memory_use.unmade,
        **residency.as_json(),
        **memory_fields.memory_fields(client, backing),
        "gpu_seconds": round(client.gpu_seconds_at(now), 3),
        **counters.client_fields(),
        "wait_seconds": round(client.wait_seconds_at(now), 3),
        "turn_count": client.turn_count,
        "queue_position": None,
        "expected_wait": None,
        "cells": len(client.cells),
        "cell_ids": [cell for requests in runtime.kernels.values() for cell in requests.values() if cell],
        "processes": processes,
        "kernel_pids": [connection.pid for connection in runtime.kernels],
        **client_fields.idle_fields(client, forecast),
        **client_fields.placement_fields(scheduler, client),
        **client_fields.overrun_fields(client),
        "notes": [
            *client_fields.placement_notes(scheduler, client),
            *client_fields.share_notes(scheduler, client),
            *memory_fields.memory_notes(client, backing),
            *client_fields.overrun_notes(scheduler, client, now),
            *client_fields.idle_notes(client, forecast),
        ],
    }


def _transfer_fields(size: int, nanoseconds: int) -> dict[str, Any]:
    return {"bytes": min(size, MAX_BYTES), "seconds": round(min(nanoseconds, MAX_BYTES) / 1e9, 6)}


def coordinator_fields(socket: str, version: str, uptime: float, counters: ProcessCounters) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "socket": socket,
        "version": version,
        "uptime_seconds": round(uptime, 1),
        "drains": counters.drain_totals(),
    }
