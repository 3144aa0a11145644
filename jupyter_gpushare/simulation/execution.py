"""Work of clients on devices: its speed with and without colocation, the waits before it, and reports of progress."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.interface import events as ev
from ..core.interface.launch_budget import BLOCKS, LaunchBudget
from ..core.interface.settings import EXCLUSIVE, Settings
from .entities import SAMPLE, WORK, SimClient, SimDevice
from .memory_transfers import MemoryTransfers
from .reports.report_data import TimelineData
from .reports.results import Results
from .workloads.workload import Costs

_SAMPLE_SECONDS = 1.0
_SAMPLE_SECONDS_ALONE = 10.0  # without another client on the device, because nothing is compared until one comes
_BLOCKS_PER_LAUNCH = 1024
_ROUNDING_SECONDS = 1e-6  # by which a training step may end too early


class ExecutionModel(MemoryTransfers):
    """Model of the execution on devices, on top of the memory transfers."""

    def __init__(self, costs: Costs, settings: Settings, details: TimelineData | None) -> None:
        super().__init__(costs)
        self.results = Results()
        self.timeline = details
        sharings = {settings.sharing, *(own.get("sharing") for own in settings.devices.values())}
        self._reports_progress = bool(sharings - {EXCLUSIVE, None})

    def begin_work(self, client: SimClient) -> None:
        if client.accounted_until >= 0:
            return
        self.end_wait(client)
        client.accounted_until = self.now
        is_exclusive = True
        for device in client.devices:
            if not device.working_clients:
                device.busy_since = self.now
            device.working_clients[client.index] = client
            is_exclusive = is_exclusive and len(device.working_clients) == 1
        if is_exclusive and self._max_speed(client) == 1.0:
            client.rate = 1.0
            self.schedule(self.now + client.remaining_gpu_seconds, WORK, client)
        else:
            self._update_rates(client)
        if self._reports_progress and client.timers[SAMPLE] < 0:
            self._schedule_sample(client)

    def end_work(self, client: SimClient) -> None:
        if client.accounted_until < 0:
            return
        self._account_work(client)
        client.accounted_until = -1.0
        client.timers[WORK] = -1
        was_colocated = False
        for device in client.devices:
            del device.working_clients[client.index]
            if device.working_clients:
                was_colocated = True
            else:
                device.busy_seconds += self.now - device.busy_since
                if self.timeline:
                    self.timeline.add_work(device.busy_since, self.now)
        if was_colocated:
            self._update_rates(client)

    def remaining_work(self, client: SimClient) -> float:
        return client.remaining_gpu_seconds - (self.now - client.accounted_until) * client.rate

    def remaining_of_cell(self, client: SimClient) -> float:
        """Return the GPU seconds that are left of the client's cell."""
        unaccounted = (self.now - client.accounted_until) * client.rate if client.accounted_until >= 0 else 0.0
        return max(0.0, client.cell_ends_at_gpu - client.gpu_seconds - unaccounted)

    def training_steps(self, client: SimClient) -> int:
        """Return the number of training steps that the client's program has marked."""
        return int(self._trained(client)) if client.spec.step else 0

    def done_of_training_step(self, client: SimClient) -> float:
        """Return the GPU seconds since the last mark of the client's program."""
        return self._trained(client) % 1.0 * client.spec.step

    def _trained(self, client: SimClient) -> float:
        """Return the training steps so far, with the done part of the present step."""
        unaccounted = (self.now - client.accounted_until) * client.rate if client.accounted_until >= 0 else 0.0
        return (client.gpu_seconds + unaccounted + _ROUNDING_SECONDS) / client.spec.step

    def end_wait(self, client: SimClient) -> None:
        if client.waiting_since >= 0:
            waited = self.now - client.waiting_since
            client.waiting_since = -1.0
            client.cell_wait += waited
            client.wait_seconds += waited
            self.results.record_wait(waited)
            if self.timeline:
                self.timeline.add_wait(client.id, self.now - waited, self.now)

    def end_turn(self, client: SimClient) -> None:
        if self.timeline:
            for device in client.devices:
                self.timeline.add_turn(client.id, device.uuid, client.turn_entered_at, self.now)

    # --- colocated clients

    def _account_work(self, client: SimClient) -> None:
        done = min((self.now - client.accounted_until) * client.rate, client.remaining_gpu_seconds)
        client.busy_seconds += (self.now - client.accounted_until) * self._device_time(client)
        client.remaining_gpu_seconds -= done
        client.gpu_seconds += done
        client.accounted_until = self.now

    def _update_rates(self, changed: SimClient) -> None:
        """Update the rates of all clients on the devices of a client that began, ended or got another `max_rate`."""
        for client in {
            one.index: one for device in changed.devices for one in device.working_clients.values()
        }.values():
            self._account_work(client)
            client.rate = min(self._rate(device, client) for device in client.devices)
            if client.rate > 0:
                self.schedule(self.now + client.remaining_gpu_seconds / client.rate, WORK, client)
            else:
                client.timers[WORK] = -1

    def _rate(self, device: SimDevice, client: SimClient) -> float:
        """Return the rate of a client on one device.

        If all clients together ask for more than the device has, each gets the same fraction of what it asks for.
        Other work interferes for the part of the time for which it occupies the device.
        """
        rate = self._max_speed(client)
        if len(device.working_clients) == 1:
            return rate
        asked = sum(
            min(one.spec.intensity * self._device_time(one), one.thread_part) for one in device.working_clients.values()
        )
        if asked <= 1.0:
            return rate
        others = sum(self._device_time(one) for one in device.working_clients.values() if one is not client)
        return rate * (1.0 - self.costs.interference * min(1.0, others)) / asked

    def _max_speed(self, client: SimClient) -> float:
        """Return the client's rate without other work on the device."""
        return min(client.max_rate, self.spill_speed(client), client.thread_part / client.spec.intensity)

    def _device_time(self, client: SimClient) -> float:
        """Return the part of the time for which the client's launches occupy a device, at most the whole."""
        return min(1.0, client.max_rate / self.spill_speed(client))

    def update_speed(self, client: SimClient) -> None:
        """Update the rates after memory of a client that works has moved."""
        if client.accounted_until >= 0:
            self._update_rates(client)

    def limit_rate(self, client: SimClient, budget: LaunchBudget | None) -> None:
        client.max_rate = 1.0
        if budget:
            cost = client.spec.launch / _BLOCKS_PER_LAUNCH if budget.unit == BLOCKS else 1.0
            client.max_rate = min(1.0, budget.rate * cost)
        if client.accounted_until >= 0:
            self._update_rates(client)

    # --- reports to the scheduler

    def sample(self, client: SimClient) -> None:
        """Report the progress of a client with an open gate, once a second as its agent does, or less often."""
        if client.is_gate_open:
            self._schedule_sample(client)
            self.report_progress(client)

    def end_solitude(self, devices: Iterable[SimDevice]) -> None:
        """Report the progress of the clients that had these devices alone until another client came now."""
        for client in [one for device in devices for one in device.clients.values()]:
            if self._reports_progress and not self.is_alone(client):
                self.sample(client)

    def is_alone(self, client: SimClient) -> bool:
        """Return whether the scheduler has no other client on the client's devices."""
        raise NotImplementedError

    def _schedule_sample(self, client: SimClient) -> None:
        seconds = _SAMPLE_SECONDS_ALONE if self.is_alone(client) else _SAMPLE_SECONDS
        self.schedule(self.now + seconds, SAMPLE, client)

    def report_progress(self, client: SimClient) -> None:
        if self._reports_progress:
            if client.accounted_until >= 0:
                self._account_work(client)
            launches = int(client.gpu_seconds / client.spec.launch)
            steps, blocks = self.training_steps(client), launches * _BLOCKS_PER_LAUNCH
            self.handle_event(ev.Progress(client.id, launches, blocks, client.busy_seconds, training_steps=steps))
