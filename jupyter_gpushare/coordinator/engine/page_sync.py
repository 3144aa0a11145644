"""What clients hold, as their pages tell it; what they may hold, and how long they wait, as ours tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary

from ...core import Scheduler
from ...core.interface import events as ev
from ...core.residency.residency_plan import can_make_resident, free_bytes
from ...core.views.wait_forecast import expected_waits
from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import MAX_BYTES, ProcessHandle
from ..host import host_memory

_REFUSAL_DELAY_SECONDS = (
    15.0  # seconds for which memory that can leave may stay before what it is needed for is refused
)


class PageSync:
    """Between the pages of all processes and the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        runtimes: Mapping[str, ClientRuntime],
        dispatch: Callable[[ev.Event], None],
        now: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._runtimes = runtimes
        self._dispatch = dispatch
        self._now = now
        self._backing: int | None = None
        self._wait_positions: dict[str, tuple[int, float]] = {}  # position and seconds, by client
        # By process that is short of room: how often its devices have changed, and since when they have not.
        self._unchanged: WeakKeyDictionary[ProcessHandle, tuple[int, float]] = WeakKeyDictionary()

    def publish_prefetch(self, runtime: ClientRuntime) -> None:
        """As much of it as its devices have room for, `device_memory` being all that they have. Nothing beside a client
        of mode `plain`: it cannot ask anybody to leave again.
        """
        devices = [self._scheduler.devices[uuid] for uuid in self._scheduler.clients[runtime.client_id].devices]
        running = {grant.client.id for device in devices for grant in device.grants}
        wanted = runtime.may_prefetch and not any(
            other.has_unmovable_memory for other in self._runtimes.values() if other.client_id in running
        )
        rooms = [free_bytes(device) for device in devices] if wanted else []
        runtime.set_prefetch_limit(min(rooms, default=0) * len(rooms))

    def handle_memory_shortage(self, handles: Iterable[ProcessHandle]) -> None:
        """For what these processes are short of, others leave; a process for which none can leave is refused.

        A request that comes meanwhile is another one: its own answer follows.
        """
        asks = [(handle, number) for handle in handles if (number := handle.unanswered_request) is not None]
        if not asks:
            return
        runtimes = list(self._runtimes.values())
        for runtime in runtimes:
            self.read_memory(runtime)
        for runtime in runtimes:  # now that it is known what all the others have
            self.read_memory(runtime, for_shortage=True)
        for handle, number in asks:
            if handle.number in self._scheduler.processes and self._must_refuse(handle):
                handle.page.control.refused_request_seq = number

    def _must_refuse(self, handle: ProcessHandle) -> bool:
        """Return whether no more memory can leave for the process, or none has left for long.

        A process repeats a request that it makes while its turn ends, in its next turn.
        """
        client = self._scheduler.processes[handle.number].client
        if client.grant is None or client.grant.is_draining:
            return False
        if not any(can_make_resident(device, client, device.prefetching_client) for device in client.device_bindings):
            return True
        changes = sum(device.memory_version for device in client.device_bindings)
        before, since = self._unchanged.get(handle, (-1, 0.0))
        if before != changes or any(len(device.grants) > 1 for device in client.device_bindings):
            self._unchanged[handle] = changes, self._now()
            return False
        return self._now() > since + _REFUSAL_DELAY_SECONDS

    def read_memory(self, runtime: ClientRuntime, for_shortage: bool = False) -> None:
        """Tell the scheduler what the client holds, if that is another than it knows. `asks`: also if it is short of
        more than before; what that means depends on what others hold.
        """
        held, short = runtime.memory_use, sum(handle.unmet_bytes for handle in runtime.processes.values())
        client = self._scheduler.clients[runtime.client_id]
        if short > client.unmet_bytes and not for_shortage:
            return
        if (client.memory_use, client.unmet_bytes) != (held, short):
            self._dispatch(ev.MemoryReported(runtime.client_id, held.allocated, held.resident, held.unmovable, short))

    def update_estimates(self, now: float) -> None:
        """Find out what host and devices can still back, and which client waits for how long."""
        held = [runtime.memory_use for runtime in self._runtimes.values()]
        allocated = sum(one.allocated for one in held)
        capacity = sum(device.info.memory for device in self._scheduler.devices.values())
        simulated = any(device.info.simulated for device in self._scheduler.devices.values())
        # The simulated driver keeps "device" memory on the host too.
        evicted = max(allocated - capacity, sum(one.allocated - one.resident for one in held))
        backing = host_memory.backing_bytes(capacity, allocated, allocated if simulated else evicted)
        # Any number of devices may have been reported.
        self._backing = None if backing is None else min(backing, MAX_BYTES)
        self._wait_positions = {
            client: (position, wait)
            for uuid in self._scheduler.devices
            for position, (client, wait) in enumerate(expected_waits(self._scheduler, uuid, now).items(), start=1)
        }

    def write_pages(self, runtime: ClientRuntime) -> None:
        """Write to the client's pages that this coordinator is alive, and what was measured last."""
        position, wait = self._wait_positions.get(runtime.client_id, (0, 0.0))
        runtime.write_levels(int(self._now() * 1e9), self._backing, position, wait)
