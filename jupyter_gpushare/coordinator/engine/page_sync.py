"""Transfer of memory use from pages to the scheduler, and of quotas, prefetch limits and estimates to pages.

The transfer also refuses requests for room on a full device if no memory can be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from ...core.interface import events as ev
from ...core.residency.residency_plan import can_make_resident, free_bytes
from ...core.state.model import MemoryUse
from ...core.views.wait_forecast import expected_waits
from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import ProcessHandle
from ..monitoring.host_backing import HostBackingSampler
from .state import CoordinatorState

_REFUSAL_DELAY_SECONDS = 15.0  # time without an eviction after which a request for room is refused


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
        # By process with a request for room: the memory version of its devices, and the time of its last change.
        self._unchanged: WeakKeyDictionary[ProcessHandle, tuple[int, float]] = WeakKeyDictionary()

    def publish_prefetch(self, runtime: ClientRuntime) -> None:
        """Let the client prefetch as much as its devices have room for.

        Nothing is prefetched while a client of memory mode `plain` runs there, because a process of that mode cannot
        request an eviction.
        """
        devices = [self._scheduler.devices[uuid] for uuid in self._scheduler.clients[runtime.client_id].devices]
        running = {grant.client.id for device in devices for grant in device.grants}
        allowed = runtime.may_prefetch and not any(
            other.uses_plain_mode for other in self._runtimes.values() if other.client_id in running
        )
        free = [free_bytes(device) for device in devices] if allowed else []
        runtime.set_prefetch_limit(min(free, default=0) * len(free))

    def handle_memory_shortage(self, handles: Iterable[ProcessHandle]) -> None:
        """Report requests for room to the scheduler, and refuse each request for which no memory can be evicted.

        A later request of a process gets an answer of its own.
        """
        requests = [(handle, number) for handle in handles if (number := handle.unanswered_request) is not None]
        if not requests:
            return
        runtimes = list(self._runtimes.values())
        for runtime in runtimes:
            self.read_memory(runtime)
        for runtime in runtimes:  # second pass, because the effect of a shortage depends on all memory uses
            self.read_memory(runtime, for_shortage=True)
        for handle, number in requests:
            if handle.number in self._scheduler.processes and self._must_refuse(handle):
                handle.page.control.refused_request_seq = number

    def _must_refuse(self, handle: ProcessHandle) -> bool:
        """Return whether no memory can be evicted for the process, or none has been for `_REFUSAL_DELAY_SECONDS`.

        A process repeats in its next turn a request that it makes while a turn ends.
        """
        client = self._scheduler.processes[handle.number].client
        if client.grant is None or client.grant.is_draining:
            return False
        # The host may have memory for unbacked memory soon.
        if not any(
            can_make_resident(device, client, device.prefetching_client, counts_unbacked=False)
            for device in client.device_bindings
        ):
            return True
        version = sum(device.memory_version for device in client.device_bindings)
        before, since = self._unchanged.get(handle, (-1, 0.0))
        if before != version or any(len(device.grants) > 1 for device in client.device_bindings):
            self._unchanged[handle] = version, self._state.now
            return False
        return self._state.now > since + _REFUSAL_DELAY_SECONDS

    def read_memory(self, runtime: ClientRuntime, for_shortage: bool = False) -> None:
        """Report a changed memory use of the client to the scheduler.

        A grown shortage is reported only with `for_shortage`, because its effect depends on the memory use of the other
        clients, which must be up to date.
        """
        use, unmet = runtime.memory_use, sum(handle.unmet_bytes for handle in runtime.processes.values())
        client = self._scheduler.clients[runtime.client_id]
        if unmet > client.unmet_bytes and not for_shortage:
            return
        unbacked = self._host_backing.of_client(runtime.client_id).unbacked_bytes(use)
        context = runtime.context_memory
        use = MemoryUse(
            use.allocated + context, use.resident + context, use.unmovable + unbacked + context, unbacked, context
        )
        if (client.memory_use, client.unmet_bytes) != (use, unmet):
            self._dispatch(
                ev.MemoryReported(
                    runtime.client_id, use.allocated, use.resident, use.unmovable, unmet, unbacked, context
                )
            )

    def update_estimates(self, now: float) -> None:
        """Update the host backing, the queue positions and the expected waits of all clients."""
        self._host_backing.update()
        self._wait_positions = {
            client: (position, 0.0 if self._scheduler.clients[client].is_short_of_room else wait)
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
