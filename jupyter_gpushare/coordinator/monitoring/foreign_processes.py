"""Processes on the devices that no client accounts for: they take memory and time that are not theirs to share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...core.state.model import Device
from ..clients.process_handle import ProcessHandle
from ..gpu import nvml
from ..host.user_names import process_user


class ForeignProcesses:
    """Looked at once a second, and read by whoever asks."""

    def __init__(self, nvml: nvml.Nvml) -> None:
        self._nvml = nvml
        self._by_device: dict[str, list[dict[str, Any]]] = {}

    def sample(self, known: Mapping[str, Device], handles: Iterable[ProcessHandle]) -> None:
        simulated = any(device.info.simulated for device in known.values())
        there = nvml.simulated_processes() if simulated else {}
        ours = {(uuid, handle.connection.pid) for handle in handles for uuid in handle.devices}
        self._by_device = {}
        for uuid, device in known.items():
            present = there.get(uuid, {}) if device.info.simulated else self._nvml.processes(uuid)
            if present:
                self._by_device[uuid] = find_foreign(present, {pid for place, pid in ours if place == uuid})

    def on_device(self, uuid: str) -> list[dict[str, Any]]:
        """A field of a device in the snapshot: `pid`, `user` and `memory` (bytes) of each, null where not known."""
        return self._by_device.get(uuid, [])


def find_foreign(present: Mapping[int, int | None], ours: set[int]) -> list[dict[str, Any]]:
    """Of the processes that are `present`, with their bytes, those that are not `ours`.

    In a container NVML names processes by the ids that they have outside of it. One that has no such id here may well
    be a client that we know by another: so only those are told, without ids, that are more than clients are missing.
    """
    found = [
        {"pid": pid, "user": user, "memory": memory}
        for pid, memory in sorted(present.items())
        if pid not in ours and (user := process_user(pid)) is not None
    ]
    nameless = [pid for pid in present if pid not in ours and process_user(pid) is None]
    missing = len(ours - present.keys())
    return found + [{"pid": None, "user": None, "memory": None} for _ in nameless[missing:]]
