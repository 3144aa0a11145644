"""Simulation of a workload: arrivals, cells, restarts and departures of clients, and outages of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ..core.base.device_info import DeviceInfo
from ..core.base.errors import Refused
from ..core.interface import events as ev
from ..core.interface.settings import PACKED, Settings
from .entities import (
    EVICT,
    GATE,
    IDLE,
    INACTIVE,
    LIFECYCLE,
    MOVE,
    ON_CPU,
    ON_GPU,
    RESTORE,
    SAMPLE,
    STEP,
    THINKING,
    WORK,
    SimClient,
    SimDevice,
)
from .free_capacity import FreeCapacity
from .moving_agent import MovingAgent
from .reports.report_data import TimelineData
from .reports.results import Results
from .workloads.workload import Participant, Workload

_RESTART_SECONDS = 5.0  # from the end of a client's kernel to the start of the next one, and between attempts


class Simulation(MovingAgent):
    """Simulation of a workload under settings.

    The simulation is deterministic; all random values are in the workload.
    `details` collects the data of pictures.
    Raises Refused if `settings` name a device that the workload does not have.
    With `is_clairvoyant`, the policy of `settings` gives way to the yardstick `Clairvoyant`.
    """

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        *,
        details: TimelineData | None = None,
        is_clairvoyant: bool = False,
    ) -> None:
        super().__init__(workload, settings, details=details, is_clairvoyant=is_clairvoyant)
        self._actions = [
            self._on_work_timer,
            self._on_gate_timer,
            self.step,
            self.on_evicted,
            self._on_prefetched,
            self._on_lifecycle_event,
        ]
        self._actions += [self.sample, self.on_moved, self.on_step_timer]
        assert list(range(len(self._actions))) == [WORK, GATE, IDLE, EVICT, RESTORE, LIFECYCLE, SAMPLE, MOVE, STEP]
        self.workload = workload
        self.all_clients: list[SimClient] = []
        self.free_capacity = FreeCapacity(workload.client_needs(), len(workload.devices))
        for index, model in enumerate(workload.devices):
            device = SimDevice(f"GPU-{index}", index, model.memory, model.link)
            self.devices[device.uuid] = device
            self.free_devices.add(device)
            info = DeviceInfo(device.uuid, "simulated", model.memory, simulated=True, parent=model.parent)
            self.handle_event(ev.DeviceFound(info))
            if model.outages:
                self._schedule_outages(device, model.outages)
        if unknown := self.scheduler.unknown_devices(settings):
            raise Refused(f"devices: {unknown[0]!r} does not exist: allowed are {', '.join(self.devices)} and indexes")
        for index, spec in enumerate(workload.participants):
            client = SimClient(spec, index)
            self.all_clients.append(client)
            client.lifecycle = _plan_lifecycle(spec)
            self._schedule_lifecycle_event(client)

    def run(self, seconds: float, on_progress: Callable[[float], None] | None = None) -> Results:
        """Simulate `seconds`, and call `on_progress` periodically with the time."""
        self.run_until(seconds, on_progress)
        self._end_open_intervals()
        results = self.results
        results.finish(self.all_clients, self.devices.values(), seconds)
        results.free += self.free_capacity.free
        results.unusable += self.free_capacity.unusable
        results.switches += self.switches
        results.bytes_moved += self.bytes_in + self.bytes_out
        results.bytes_faulted += self.bytes_faulted
        results.events += self.handled_events
        results.decisions += self.decisions
        return results

    def _end_open_intervals(self) -> None:
        """Record the work, waits and turns that are open at the end."""
        for client in self.all_clients:
            self.end_work(client)
            self.end_wait(client)
            if client.has_open_work:
                self.end_turn(client)
        self.free_capacity.advance(self.now)

    # --- arrivals, restarts, departures and failures

    def _schedule_lifecycle_event(self, client: SimClient) -> None:
        time, client.next_lifecycle_event = next(client.lifecycle, (0.0, ""))
        if client.next_lifecycle_event:
            self.schedule(max(time, self.now), LIFECYCLE, client)

    def _on_lifecycle_event(self, client: SimClient) -> None:
        match client.next_lifecycle_event:
            case "arrives":
                self._arrive(client)
            case "restarts":
                self._end_kernel(client, restart=True)
            case "departs":
                self._end_kernel(client, restart=False)
                del self.clients[client.id]
                self.handle_event(ev.ClientRemoved(client.id))
            case "fails":
                self._fail_device(client.devices[0])
            case "recovers":
                self._recover_device(client.devices[0])
        self._schedule_lifecycle_event(client)

    def _arrive(self, client: SimClient) -> None:
        spec = client.spec
        self.clients[client.id] = client
        try:
            self.handle_event(ev.ClientRegistered(client.id, spec.user, client.id, spec.quota, spec.gpus))
        except Refused:
            del self.clients[client.id]
            self.results.refused += 1
            client.is_refused = True
            client.lifecycle = iter(())
            return
        self._end_solitude_beside(client)
        client.cells = iter(spec.cells)
        self._next_cell(client)

    def _initialise_cuda(self, client: SimClient) -> bool:
        """Begin the client's process on the devices that it gets now, and return whether all of them work."""
        self.handle_event(ev.DevicesRequested(client.id))
        uuids = self.scheduler.clients[client.id].devices
        client.devices = tuple(self.devices[uuid] for uuid in uuids)
        self._end_solitude_beside(client)
        if not uuids or any(device.has_failed for device in client.devices):
            return False
        client.is_waiting_at_gate = False
        client.thread_part = self._thread_part(client)
        for device in client.devices:
            self.free_capacity.update(device.index, self.workload.need(client.spec), self.now)
        client.allocated = client.spec.memory // len(uuids) * len(uuids)
        self.join(client, client.devices)
        if client.allocated:
            self.report_memory(client)
        return True

    def _thread_part(self, client: SimClient) -> float:
        """Return the part of the device's threads that a process of the client gets at its start (`launch/mps.py`)."""
        registered = self.scheduler.clients[client.id]
        has_percentage = self.workload.mps and self.scheduler.settings_of(registered).sharing == PACKED
        return registered.quota.share or 1.0 if has_percentage else 1.0

    def is_alone(self, client: SimClient) -> bool:
        return all(len(device.clients) < 2 for device in self.scheduler.clients[client.id].device_bindings)

    def _end_solitude_beside(self, client: SimClient) -> None:
        devices = self.scheduler.clients[client.id].device_bindings
        self.end_solitude(self.devices[one.info.uuid] for one in devices if len(one.clients) == 2)

    def _end_kernel(self, client: SimClient, restart: bool) -> None:
        """End the client's kernel with its process and its work at once, and free its memory."""
        if client.is_restarting and restart:
            return
        for kind in (WORK, GATE, IDLE, SAMPLE, STEP):
            client.timers[kind] = -1
        self._set_activity(client, INACTIVE)
        in_cell, client.cell_started_at = client.cell_started_at >= 0, -1.0
        if client.process_number:
            self._end_process(client)
        if in_cell:
            self.handle_event(ev.CellEnded(client.id, "cell", client.gpu_seconds))
        client.is_restarting = restart
        if restart:
            self.schedule(self.now + _RESTART_SECONDS, WORK, client)

    def _end_process(self, client: SimClient) -> None:
        self.end_work(client)
        if client.has_open_work:
            self.end_turn(client)
        self.end_wait(client)
        self.free_memory(client)
        for device in client.devices:
            del device.clients[client.index]
            self.free_capacity.update(device.index, -self.workload.need(client.spec), self.now)
        client.moving_to, client.timers[MOVE], client.hibernated = None, -1, 0
        freed = self.leave_turn(client)
        number, client.process_number = client.process_number, 0
        self.handle_event(ev.MemoryReported(client.id, 0, 0))
        self.handle_event(ev.ProcessGone(number))
        self.admit_waiting(freed)

    def _schedule_outages(self, device: SimDevice, times: tuple[tuple[float, float], ...]) -> None:
        """Schedule the device's failures as the lifecycle of a stand-in for a client."""
        stand_in = SimClient(Participant(device.uuid, ()), -1)
        stand_in.devices = (device,)
        stand_in.lifecycle = iter(
            [event for fails, until in times for event in ((fails, "fails"), (until, "recovers"))]
        )
        self._schedule_lifecycle_event(stand_in)

    def _fail_device(self, device: SimDevice) -> None:
        """Fail a device, and end the processes with memory on it, as errors of CUDA would do."""
        device.has_failed = True
        self.free_devices.discard(device)
        self.handle_event(ev.DeviceFailed(device.uuid, "simulated failure"))
        for client in list(device.clients.values()):
            self._end_kernel(client, restart=True)

    def _recover_device(self, device: SimDevice) -> None:
        device.has_failed = False
        if not device.turn_number:
            self.free_devices.add(device)
        self.handle_event(ev.DeviceRecovered(device.uuid))

    # --- cells

    def _next_cell(self, client: SimClient) -> None:
        cell = next(client.cells, None)
        client.cell_started_at = -1.0
        if cell is None:
            self._set_activity(client, INACTIVE)
            return
        self._set_activity(client, THINKING)
        client.phases = iter(cell.phases)
        client.cell_names = (cell.name,) if cell.name else ()
        gpu_seconds = sum(cell.phases[1::2]) if isinstance(cell.phases, Sequence) else math.inf
        client.cell_ends_at_gpu = client.gpu_seconds + gpu_seconds
        self.schedule(self.now + cell.think, WORK, client)

    def _on_work_timer(self, client: SimClient) -> None:
        """End the present activity of the client's program, and begin the next one."""
        if client.activity == THINKING:
            client.cell_started_at = self.now
            client.cell_wait = client.cell_gpu = client.cell_cpu = 0.0
            client.is_next_phase_on_gpu = False
            self._set_activity(client, ON_CPU)
            self.handle_event(ev.CellStarted(client.id, "cell", client.cell_names, client.gpu_seconds))
        elif client.activity == ON_GPU:
            self.end_work(client)
            client.gpu_seconds += client.remaining_gpu_seconds  # the remainder of rounding
            client.remaining_gpu_seconds = 0.0
            client.idle_since = self.now
        elif client.is_restarting:
            client.is_restarting = False
            self._next_cell(client)
            return
        self._next_phase(client)

    def _next_phase(self, client: SimClient) -> None:
        while True:
            duration = next(client.phases, None)
            if duration is None:
                self._end_cell(client)
                return
            on_gpu = client.is_next_phase_on_gpu
            client.is_next_phase_on_gpu = not on_gpu
            if duration > 0:
                break
        if on_gpu:
            self._use_gpu(client, duration)
            return
        was_on_gpu = client.activity == ON_GPU
        self._set_activity(client, ON_CPU)
        client.cell_cpu += duration
        self.schedule(self.now + duration, WORK, client)
        if was_on_gpu:
            self.update_idleness(client)

    def _use_gpu(self, client: SimClient, duration: float) -> None:
        if not client.process_number and not self._initialise_cuda(client):
            client.phases, client.is_next_phase_on_gpu = itertools.chain((duration,), client.phases), True
            self._set_activity(client, ON_CPU)
            self.schedule(self.now + _RESTART_SECONDS, WORK, client)
            return
        if client.released:
            self.fill_cache(client)
        self._set_activity(client, ON_GPU)
        client.cell_gpu += duration
        client.remaining_gpu_seconds = duration
        if client.is_gate_open:
            self.continue_work(client)
        else:
            client.waiting_since = self.now
            self.wait_at_gate(client)

    def _set_activity(self, client: SimClient, activity: int) -> None:
        client.activity = activity
        if activity == ON_GPU:
            self.gpu_users[client.index] = client
        else:
            self.gpu_users.pop(client.index, None)

    def _releases_cache(self, client: SimClient) -> bool:
        """Return whether the client's framework releases its cache at the end of a cell."""
        if not client.spec.cache or client.spec.plain or client.turn_limit is not None:
            return False
        return any(one.needs_room_of_caches(self.now) for one in self.scheduler.clients[client.id].device_bindings)

    def _end_cell(self, client: SimClient) -> None:
        self.results.record_cell(client, self.now)
        if client.process_number and self._releases_cache(client):
            self.release_cache(client)
        self._next_cell(client)
        self.handle_event(ev.CellEnded(client.id, "cell", client.gpu_seconds))
        self.update_idleness(client)


def _plan_lifecycle(spec: Participant) -> Iterator[tuple[float, str]]:
    yield spec.arrives, "arrives"
    for time in spec.restarts:
        if time > spec.arrives and (spec.departs is None or time < spec.departs):
            yield time, "restarts"
    if spec.departs is not None:
        yield spec.departs, "departs"
