"""Samples of the processes on devices: foreign processes, which belong to no client, and the memory of the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...core.state.model import Device
from ..clients.process_handle import ProcessHandle
from ..gpu import simulated_driver
from ..gpu.nvml import Nvml
from ..host.user_database import process_user


class ForeignProcesses:
    """Foreign processes of each device, sampled once a second.

    A process counts once two samples in a row have found it, because clients connect again after a coordinator was
    stopped. The driver's figures for the processes of clients show their context memory.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._by_device: dict[str, list[dict[str, Any]]] = {}
        self._found: dict[str, list[int | None]] = {}  # by device: the pids of the last sample

    def sample(self, known: Mapping[str, Device], handles: Collection[ProcessHandle]) -> None:
        simulated = any(device.info.simulated for device in known.values())
        simulated_processes = simulated_driver.processes() if simulated else {}
        client_pids = {(uuid, handle.connection.pid) for handle in handles for uuid in handle.devices}
        before, self._found, self._by_device = self._found, {}, {}
        all_present: dict[str, Mapping[int, int | None]] = {}
        for uuid, device in known.items():
            present = simulated_processes.get(uuid, {}) if device.info.simulated else self._nvml.processes(uuid)
            if present:
                all_present[uuid] = present
                found = find_foreign(present, {pid for other, pid in client_pids if other == uuid})
                self._found[uuid] = [one["pid"] for one in found]
                self._by_device[uuid] = [one for one in found if one["pid"] in before.get(uuid, ())]
        for handle in handles:
            handle.sample_context_memory(_driver_bytes(handle, all_present))

    def on_device(self, uuid: str) -> list[dict[str, Any]]:
        """Return a field of a device in the snapshot: `pid`, `user` and `memory` (bytes) of each, null if unknown."""
        return self._by_device.get(uuid, [])


def find_foreign(present: Mapping[int, int | None], client_pids: set[int]) -> list[dict[str, Any]]:
    """Return the foreign processes among those that are `present` on a device, with their bytes.

    In a container, NVML reports the pids outside the container. A pid that does not exist here may be a client with
    another pid here. So such pids are reported, without the pid, only as far as they outnumber the missing clients.
    """
    foreign = [
        {"pid": pid, "user": user, "memory": memory}
        for pid, memory in sorted(present.items())
        if pid not in client_pids and (user := process_user(pid)) is not None
    ]
    unknown = [pid for pid in present if pid not in client_pids and process_user(pid) is None]
    missing = len(client_pids - present.keys())
    return foreign + [{"pid": None, "user": None, "memory": None} for _ in unknown[missing:]]


def _driver_bytes(handle: ProcessHandle, present: Mapping[str, Mapping[int, int | None]]) -> int | None:
    """Return the bytes of a process on all of its devices by the driver's account, or None if unknown."""
    pid = handle.connection.pid
    sizes = [present[uuid][pid] for uuid in handle.devices if pid in present.get(uuid, {})]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None
