"""Host backing of each client: the memory of the host, within the limits of cgroups, for what leaves its devices.

Memory that leaves a device counts in the cgroup of its process. Beyond a limit, Linux would kill a process there. So
the sampler divides the free memory of each cgroup among the clients in it, those first whose memory leaves first.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from ...core import Scheduler
from ...core.base.memory_use import MemoryUse
from ...core.state.model import Client, Device
from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import MAX_BYTES, ProcessHandle
from ..host.cgroups import PROC, MemoryCgroup, MemoryCgroups
from ..host.host_memory import available_bytes, usable_bytes

SIMULATED_MEMORY_IS_ON_HOST = True  # as soon as a program has touched it
_STEP_BYTES = 32 << 20  # of `max_evicted`, so that small changes of the free memory have no effect


@dataclass(frozen=True)
class HostBacking:
    """Host backing of one client in bytes."""

    allocatable: int | None = None  # bound of all that the client may have allocated; None: unknown
    max_evicted: int | None = None  # bound of the memory that may be off the devices at once; None: no cgroup has one
    cgroup: str = ""  # the cgroup with a limit that has the least room; "": there is none
    is_known: bool = True  # the cgroups of all its processes can be read

    def unbacked_bytes(self, use: MemoryUse) -> int:
        """Return the movable bytes on the devices for which the host has no memory."""
        if self.max_evicted is None:
            return 0
        return min(use.movable, max(0, use.allocated - use.unmade - self.max_evicted))


@dataclass
class _Group:
    """Cgroup with the sums of its clients, in bytes."""

    usable: int = 0  # for evicted memory, with what that memory has already
    room: int = 0  # the part of `usable` that is free
    allocated: int = 0
    clients: int = 0


@dataclass
class _ClientSample:
    """Memory of one client, of which `on_host` bytes have host memory already."""

    runtime: ClientRuntime
    client: Client
    use: MemoryUse
    on_host: int
    cgroups: Mapping[str, MemoryCgroup]  # with a limit, by path
    is_known: bool
    groups: list[_Group] = field(default_factory=list)

    @property
    def backed_bytes(self) -> int:
        """Bytes that are off the devices, or can leave them without more host memory."""
        return max(self.on_host, self.use.evicted_bytes)


class HostBackingSampler:
    """Sampler of the host backing of all clients of one coordinator.

    A sample has three steps: `start`, `read_process` for each process, and `update`. `proc` is the folder of the
    processes.
    """

    def __init__(self, scheduler: Scheduler, runtimes: Mapping[str, ClientRuntime], proc: Path = PROC) -> None:
        self._scheduler = scheduler
        self._runtimes = runtimes
        self._proc = proc
        self._cgroups = MemoryCgroups(proc)
        self._of_process: WeakKeyDictionary[ProcessHandle, tuple[MemoryCgroup, ...] | None] = WeakKeyDictionary()
        self._on_host: WeakKeyDictionary[ProcessHandle, int] = WeakKeyDictionary()
        self._backings: dict[str, HostBacking] = {}

    def of_client(self, identity: str) -> HostBacking:
        return self._backings.get(identity) or HostBacking()

    def start(self) -> None:
        """Start a sample.

        The host memory of the processes comes first. A cgroup that is read later counts at least as much of it, so its
        free memory is not overestimated.
        """
        for runtime in self._runtimes.values():
            for handle in runtime.processes.values():
                self._on_host[handle] = _on_host(runtime, handle)
        self._cgroups = MemoryCgroups(self._proc)

    def read_process(self, handle: ProcessHandle) -> None:
        """Read the cgroups of a process; each cgroup is read once in a sample."""
        self._of_process[handle] = self._cgroups.of_process(handle.connection.pid)

    def update(self) -> None:
        """Update the backing of all clients from the sample and the present memory of the clients."""
        samples = [
            self._sample(runtime, self._scheduler.clients[runtime.client_id]) for runtime in self._runtimes.values()
        ]
        self._sum_groups(samples)
        limited = sorted((one for one in samples if one.groups), key=lambda one: _eviction_order(one.client))
        rooms = {one.client.id: min(group.room for group in one.groups) for one in limited}
        granted = {one.client.id: _grant(one) for one in limited}
        bound = _AllocationBound(self._scheduler, samples)
        available = available_bytes((), self._proc)
        own_cgroups = self._cgroups.of_process(os.getpid()) or ()
        self._backings = {}
        for one in samples:
            # The coordinator's cgroups stand for those of a client that cannot be read.
            free = available if one.is_known else available_bytes(own_cgroups, self._proc)
            room, max_evicted = None, None
            if one.groups:
                room = rooms[one.client.id]
                spare = min(group.room // group.clients for group in one.groups)
                max_evicted = one.backed_bytes + granted[one.client.id] + spare
                if max_evicted < one.use.allocated:
                    max_evicted -= max_evicted % _STEP_BYTES
            nearest = min(one.cgroups.values(), key=lambda cgroup: cgroup.free_bytes, default=None)
            self._backings[one.client.id] = HostBacking(
                bound.of_client(one, free, room), max_evicted, nearest.path if nearest else "", one.is_known
            )

    def _sample(self, runtime: ClientRuntime, client: Client) -> _ClientSample:
        cgroups: dict[str, MemoryCgroup] = {}
        is_known = True
        for handle in runtime.processes.values():
            found = self._of_process.get(handle)
            is_known = is_known and found is not None
            cgroups |= {cgroup.path: cgroup for cgroup in found or ()}
        on_host = sum(_on_host(runtime, handle) for handle in runtime.processes.values())
        return _ClientSample(runtime, client, runtime.memory_use, on_host, cgroups, is_known)

    def _sum_groups(self, samples: Iterable[_ClientSample]) -> None:
        """Sum the clients of each cgroup, and compute the memory there that evicted memory may have."""
        groups: dict[str, _Group] = {}
        sampled: dict[str, int] = defaultdict(int)  # bytes on the host, by cgroup, when its free memory was read
        present: dict[str, int] = defaultdict(int)
        free: dict[str, int] = {}
        for one in samples:
            before = sum(self._on_host.get(handle, 0) for handle in one.runtime.processes.values())
            for path, cgroup in one.cgroups.items():
                group = groups.setdefault(path, _Group())
                group.allocated += one.use.allocated
                group.clients += 1
                sampled[path] += before
                present[path] += one.on_host
                free[path] = cgroup.free_bytes
                one.groups.append(group)
        for path, group in groups.items():
            group.usable = usable_bytes(free[path], sampled[path])
            group.room = max(0, group.usable - present[path])


class _AllocationBound:
    """Bound of the memory that a client may allocate, so that it can leave its devices and other clients can run."""

    def __init__(self, scheduler: Scheduler, samples: Sequence[_ClientSample]) -> None:
        self._capacity = sum(device.info.memory for device in scheduler.devices.values())
        self._allocated = sum(one.use.allocated for one in samples)
        made = self._allocated - sum(one.use.unmade for one in samples)
        self._on_host = max(made - self._capacity, sum(one.backed_bytes for one in samples))
        self._largest = {uuid: _largest_needs(device) for uuid, device in scheduler.devices.items()}

    def of_client(self, one: _ClientSample, free: int | None, room: int | None) -> int | None:
        """Return the bytes that the client may have allocated in all, or None if unknown.

        `free` is the free memory of the host, and `room` that of the client's cgroups, None without a limit.
        """
        bounds = [self._capacity + group.usable - group.allocated + one.use.allocated for group in one.groups]
        if free is not None:
            usable = usable_bytes(free, self._on_host)
            bounds.append(self._capacity + usable - self._allocated + one.use.allocated)
        if room is not None and not one.runtime.uses_plain_mode:
            bounds.append(one.backed_bytes + room + self._room_with_others(one.client))
        if any(device.unbacked > one.client.memory_on(device).unbacked for device in one.client.device_bindings):
            # Page faults would make the driver evict that memory.
            bounds.append(_sum_over_devices(one.client, _room_without_unmovable))
        # Bounded, because users may report any number of devices.
        return min(max(0, min(bounds)), MAX_BYTES) if bounds else None

    def _room_with_others(self, client: Client) -> int:
        """Return the bytes that may stay on the client's devices for good, so that each other client can still run."""

        def room(device: Device, client: Client) -> int:
            largest = next((need for need, other in self._largest[device.info.uuid] if other is not client), 0)
            return max(0, _room_without_unmovable(device, client) - largest)

        return _sum_over_devices(client, room)


def _largest_needs(device: Device) -> list[tuple[int, Client]]:
    """Return the two clients with the most memory on a device apart from unmovable memory, and those bytes."""
    needs = [
        (use.allocated - use.unmovable, client)
        for client in device.clients.values()
        for use in [client.memory_on(device)]
    ]
    return heapq.nlargest(2, needs, key=lambda pair: pair[0])


def _room_without_unmovable(device: Device, client: Client) -> int:
    """Return the bytes of the device without context memory and without unmovable memory of others."""
    own = client.memory_on(device).unmovable - client.memory_on(device).context
    return device.info.memory - (device.unmovable - own)


def _sum_over_devices(client: Client, room: Callable[[Device, Client], int]) -> int:
    """Return the bytes on all devices of the client, whose further memory may be on any of them."""
    rooms = [room(device, client) for device in client.device_bindings]
    return min(rooms, default=0) * len(rooms)


def _on_host(runtime: ClientRuntime, handle: ProcessHandle) -> int:
    """Return the bytes of a process's memory that have host memory already."""
    if runtime.is_simulated and SIMULATED_MEMORY_IS_ON_HOST:
        return handle.allocated - handle.memory_use.unmade
    return min(handle.allocated, handle.host_pinned + handle.host_pageable)


def _eviction_order(client: Client) -> tuple[bool, int, float]:
    """Return a key that sorts clients in the order in which their memory is likely to leave."""
    has_room = not any(device.has_memory_shortage for device in client.device_bindings)
    if client.grant:
        return has_room, 1, 0.0
    if client.waiting_since is not None:
        return has_room, 2, -client.queue_sequence
    return has_room, 0, client.last_turn_ended_at


def _grant(one: _ClientSample) -> int:
    """Take the host memory from its cgroups that a client needs to leave its devices; return how much there was.

    Unmade memory is on the devices in the client's next turn, and has to leave them afterwards.
    """
    needed = one.use.movable + one.use.unmade - (one.backed_bytes - one.use.evicted_bytes)
    granted = max(0, min(needed, *(group.room for group in one.groups)))
    for group in one.groups:
        group.room -= granted
    return granted
