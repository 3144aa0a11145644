"""What clients do on devices, how fast, and how long they wait for it."""

from __future__ import annotations

from ..core.interface import events as ev
from ..core.interface.launch_budget import BLOCKS, LaunchBudget
from ..core.interface.settings import EXCLUSIVE, Settings
from .event_queue import SAMPLE, WORK, SimClient, SimDevice
from .memory_transfers import MemoryTransfers
from .report_data import TimelineData
from .results import Results
from .workload import Costs

_SAMPLE_SECONDS = 1.0  # seconds
_BLOCKS_PER_LAUNCH = 1024  # of one launch


class ExecutionModel(MemoryTransfers):
    def __init__(self, costs: Costs, settings: Settings, details: TimelineData | None) -> None:
        super().__init__(costs)
        self.results = Results()
        self.timeline = details
        self._reports_progress = settings.sharing != EXCLUSIVE

    def begin_work(self, client: SimClient) -> None:
        if client.accounted_until >= 0:
            return
        self.end_wait(client)
        client.accounted_until = self.now
        alone = True
        for device in client.devices:
            if not device.working_clients:
                device.busy_since = self.now
            device.working_clients[client.index] = client
            alone = alone and len(device.working_clients) == 1
        if alone and client.max_rate == 1.0:
            client.rate = 1.0
            self.schedule(self.now + client.remaining_gpu_seconds, WORK, client)
        else:
            self._update_rates(client)
        if self._reports_progress and client.timers[SAMPLE] < 0:
            self.schedule(self.now + _SAMPLE_SECONDS, SAMPLE, client)

    def end_work(self, client: SimClient) -> None:
        if client.accounted_until < 0:
            return
        self._account_work(client)
        client.accounted_until = -1.0
        client.timers[WORK] = -1
        shared = False
        for device in client.devices:
            del device.working_clients[client.index]
            if device.working_clients:
                shared = True
            else:
                device.busy_seconds += self.now - device.busy_since
                if self.timeline:
                    self.timeline.add_work(device.busy_since, self.now)
        if shared:
            self._update_rates(client)

    def remaining_work(self, client: SimClient) -> float:
        return client.remaining_gpu_seconds - (self.now - client.accounted_until) * client.rate

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

    # --- clients beside each other

    def _account_work(self, client: SimClient) -> None:
        did = min((self.now - client.accounted_until) * client.rate, client.remaining_gpu_seconds)
        client.busy_seconds += self.now - client.accounted_until
        client.remaining_gpu_seconds -= did
        client.gpu_seconds += did
        client.accounted_until = self.now

    def _update_rates(self, changed: SimClient) -> None:
        """Somebody came to work on devices, or went, or may work at another rate: how fast everybody there is now."""
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
        """Clients who together could use more than the device has get the same part of what they could use."""
        if len(device.working_clients) == 1:
            return client.max_rate
        asked = sum(one.spec.intensity * one.max_rate for one in device.working_clients.values())
        return client.max_rate if asked <= 1.0 else client.max_rate * (1.0 - self.costs.interference) / asked

    def limit_rate(self, client: SimClient, budget: LaunchBudget | None) -> None:
        client.max_rate = 1.0
        if budget:
            cost = client.spec.launch / _BLOCKS_PER_LAUNCH if budget.unit == BLOCKS else 1.0
            client.max_rate = min(1.0, budget.rate * cost)
        if client.accounted_until >= 0:
            self._update_rates(client)

    # --- the meter

    def sample(self, client: SimClient) -> None:
        """Once a second the agent of a client that has its gate open says what it has done so far."""
        if client.is_gate_open:
            self.schedule(self.now + _SAMPLE_SECONDS, SAMPLE, client)
            self.report_progress(client)

    def report_progress(self, client: SimClient) -> None:
        if self._reports_progress:
            if client.accounted_until >= 0:
                self._account_work(client)
            launches = int(client.gpu_seconds / client.spec.launch)
            self.handle_event(ev.Progress(client.id, launches, launches * _BLOCKS_PER_LAUNCH, client.busy_seconds))
