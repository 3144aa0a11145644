"""Transfer of memory use from pages to the scheduler, and of quotas, prefetch limits and estimates to pages.

The transfer also refuses requests for room on a full device if no memory can be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isinf
from weakref import WeakKeyDictionary

from ...core.base.memory_use import NO_MEMORY, MemoryUse
from ...core.interface import events as ev
from ...core.residency.residency_plan import can_make_resident, free_bytes, is_short_of_room
from ...core.state.model import Client, Device
from ...core.views.wait_forecast import expected_waits
from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import ProcessHandle
from ..monitoring.host_backing import HostBackingSampler
from ..views.memory_fields import room_refusal
from .state import CoordinatorState

_REFUSAL_DELAY_SECONDS = 15.0  # time without room after which a request for room, or a wait for room, is refused
_PREFETCH_END_SECONDS = 0.1  # after the end of a prefetch: all memory that it moved is in the reports by then
_MAX_GAP_SECONDS = 5.0  # between two requests; a longer time counts as turns of other clients, and adds no wait


@dataclass
class _Wait:
    """Wait of a process for an eviction."""

    turn: int
    least_others_bytes: int  # of other clients on the devices of the process, in this turn
    seen_at: float
    waited_seconds: float = 0.0  # since the wait began; a new minimum of `least_others_bytes` begins it anew


class PageSync:
    """Synchroniser of the pages of all processes and the scheduler."""

    def __init__(
        self, state: CoordinatorState, dispatch: Callable[[ev.Event], None], host_backing: HostBackingSampler
    ) -> None:
        self._state = state
        self._scheduler = state.scheduler
        self._runtimes = state.runtimes
        self._dispatch = dispatch
        self._host_backing = host_backing
        self._wait_positions: dict[str, tuple[int, float]] = {}  # position and seconds, by client
        self._waits: WeakKeyDictionary[ProcessHandle, _Wait] = WeakKeyDictionary()
        self._short_since: WeakKeyDictionary[ClientRuntime, float] = WeakKeyDictionary()  # or since its last refusal
        self._prefetches: dict[str, tuple[Client, float]] = {}  # by device: the last one, and when it was last seen

    def publish_prefetch(self, runtime: ClientRuntime) -> None:
        """Let the client prefetch to each device that it may prefetch to, as much as the device has room for.

        Nothing is prefetched while a client of memory mode `plain` runs there, because a process of that mode cannot
        request an eviction.
        """
        for device in self._scheduler.clients[runtime.client_id].device_bindings:
            running = {grant.client.id for grant in device.grants}
            allowed = device.info.uuid in runtime.prefetch_devices and not any(
                other.uses_plain_mode for other in self._runtimes.values() if other.client_id in running
            )
            runtime.set_prefetch_limit(device.info.uuid, free_bytes(device) if allowed else 0)

    def handle_memory_shortage(self, handles: Iterable[ProcessHandle]) -> None:
        """Report requests for room to the scheduler, and refuse each request for which no memory can be evicted.

        A later request of a process gets an answer of its own.
        """
        handles = list(handles)
        for handle in handles:
            self._remove_ended_wait(handle)
        requests = [(handle, number) for handle in handles if (number := handle.unanswered_request) is not None]
        if not requests:
            return
        # The report of a shortage ends prefetches.
        for uuid, device in self._scheduler.devices.items():
            if device.prefetching_client:
                self._prefetches[uuid] = device.prefetching_client, self._state.now
        runtimes = list(self._runtimes.values())
        for runtime in runtimes:
            self.read_memory(runtime)
        for runtime in runtimes:  # second pass, because the effect of a shortage depends on all memory uses
            self.read_memory(runtime, for_shortage=True)
        for handle, number in requests:
            if handle.number in self._scheduler.processes and self._must_refuse(handle):
                handle.page.control.refused_request_seq = number

    def refuse_room(self, runtime: ClientRuntime) -> None:
        """Refuse room to a client that has waited for it too long in the queue.

        Unbacked memory of other clients does not count, because the host may have memory for it soon.
        """
        client = self._state.client(runtime)
        since = self._short_since.setdefault(runtime, self._state.now)
        if not client.is_short_of_room or not any(
            is_short_of_room(device, client, counts_unbacked=False) for device in client.device_bindings
        ):
            del self._short_since[runtime]
        elif self._state.now > since + _REFUSAL_DELAY_SECONDS:
            runtime.refuse_room(room_refusal(client))
            self._short_since[runtime] = self._state.now

    def _prefetching_client(self, uuid: str) -> Client | None:
        """Return the client whose memory is on its way to the device, and can be evicted afterwards."""
        client, seen_at = self._prefetches.get(uuid, (None, 0.0))
        return client if self._state.now < seen_at + _PREFETCH_END_SECONDS else None

    def _must_refuse(self, handle: ProcessHandle) -> bool:
        """Return whether no memory can be evicted for the process, or none has been for `_REFUSAL_DELAY_SECONDS`.

        A process repeats in its next turn a request that it makes while a turn ends. So only the delay leads to a
        refusal then, because the end of the turn may depend on the call that makes the request.
        """
        client = self._scheduler.processes[handle.number].client
        if client.grant is None:
            return False
        devices = [device for device in client.device_bindings if device.info.uuid in handle.unmet_devices]
        # The host may have memory for unbacked memory soon.
        if not client.grant.is_draining and not any(
            can_make_resident(device, client, self._prefetching_client(device.info.uuid), counts_unbacked=False)
            for device in devices
        ):
            return True
        return self._has_waited_in_vain(handle, client, devices)

    def _has_waited_in_vain(self, handle: ProcessHandle, client: Client, devices: Iterable[Device]) -> bool:
        now = self._state.now
        others_bytes = sum(device.resident - client.memory_on(device).resident for device in devices)
        wait = self._waits.get(handle)
        assert client.grant is not None
        turn = client.grant.turn
        # Memory that other clients have restored since the last turn may be evicted now.
        has_changed = wait and wait.turn != turn and wait.least_others_bytes != others_bytes
        has_progress = wait and others_bytes < wait.least_others_bytes
        if not wait or has_changed or has_progress or any(len(device.grants) > 1 for device in devices):
            self._waits[handle] = _Wait(turn, others_bytes, now)
            return False
        wait.turn = turn
        if now <= wait.seen_at + _MAX_GAP_SECONDS:
            wait.waited_seconds += now - wait.seen_at
        wait.seen_at = now
        return wait.waited_seconds > _REFUSAL_DELAY_SECONDS

    def _remove_ended_wait(self, handle: ProcessHandle) -> None:
        """Remove the wait of a request that has been met. A request that the end of the turn ends comes again."""
        process = self._scheduler.processes.get(handle.number)
        grant = process.client.grant if process else None
        if not handle.unmet_bytes and grant and not grant.is_draining:
            self._waits.pop(handle, None)

    def read_memory(self, runtime: ClientRuntime, for_shortage: bool = False) -> None:
        """Report a changed memory use of the client to the scheduler.

        A grown shortage is reported only with `for_shortage`, because its effect depends on the memory use of the other
        clients, which must be up to date.
        """
        client = self._scheduler.clients[runtime.client_id]
        reported, parts = runtime.memory_use, runtime.memory_by_device
        unbacked = self._host_backing.of_client(runtime.client_id).unbacked_bytes(reported)
        use = _with_unmovable(reported, unbacked, runtime.context_memory)
        by_device = {
            uuid: _with_unmovable(part, _part(unbacked, part, reported), runtime.context_memory_on(uuid))
            for uuid in client.devices
            for part in [parts.get(uuid, NO_MEMORY)]
        }
        has_grown = any(
            part.unmet > client.memory_by_device.get(uuid, NO_MEMORY).unmet for uuid, part in by_device.items()
        )
        if has_grown and not for_shortage:
            return
        spills = runtime.uses_only_unified_mode
        if (client.memory_use, client.memory_by_device, client.can_spill) != (use, by_device, spills):
            self._dispatch(
                ev.MemoryReported(
                    runtime.client_id,
                    use.allocated,
                    use.resident,
                    use.unmovable,
                    use.unmet,
                    use.unbacked,
                    use.context,
                    use.unmade,
                    by_device,
                    spills,
                )
            )

    def update_estimates(self, now: float) -> None:
        """Update the host backing, the queue positions and the expected waits of all clients."""
        self._host_backing.update()
        clients = self._scheduler.clients
        self._wait_positions = {
            client: (
                position,
                0.0 if isinf(wait) or clients[client].is_short_of_room or clients[client].cannot_return else wait,
            )
            for uuid in self._scheduler.devices
            for position, (client, wait) in enumerate(expected_waits(self._scheduler, uuid, now).items(), start=1)
        }

    def on_process_added(self, runtime: ClientRuntime, handle: ProcessHandle) -> None:
        """Update the estimates with a new process of the client, and write the pages of the client."""
        self._host_backing.read_process(handle)
        self.update_estimates(self._state.now)
        self.write_pages(runtime)

    def write_quota(self, runtime: ClientRuntime) -> None:
        """Write the quota of a client, and the settings that processes need, to the client's pages."""
        client = self._state.client(runtime)
        memory = sum(self._scheduler.devices[uuid].info.memory for uuid in client.devices)
        idle = self._scheduler.idle_release(client)
        runtime.write_quota(client, memory, self._scheduler.quantum(client), idle, self._state.settings.traits)

    def write_pages(self, runtime: ClientRuntime) -> None:
        """Write the heartbeat and the last estimates to the client's pages."""
        position, wait = self._wait_positions.get(runtime.client_id, (0, 0.0))
        backing = self._host_backing.of_client(runtime.client_id)
        devices = self._state.client(runtime).device_bindings
        context = max((device.context for device in devices), default=0)
        runtime.write_levels(int(self._state.now * 1e9), backing.allocatable, context, position, wait)
        runtime.set_max_evicted(backing.max_evicted)
        if runtime.turn_limit is not None:  # the parts of the processes change with their memory
            runtime.set_turn_limit(runtime.turn_limit)


def _with_unmovable(use: MemoryUse, unbacked: int, context: int) -> MemoryUse:
    """Add unbacked memory and context memory, which processes do not report, to the memory that they report."""
    return replace(
        use,
        allocated=use.allocated + context,
        resident=use.resident + context,
        unmovable=use.unmovable + unbacked + context,
        unbacked=unbacked,
        context=context,
    )


def _part(size: int, part: MemoryUse, whole: MemoryUse) -> int:
    """Return the part of `size` bytes on a device, in proportion to the movable memory there."""
    return size * part.movable // whole.movable if whole.movable else 0
