"""What clients do on devices, how fast, and how long they wait for it."""

from __future__ import annotations

from ..core import events as ev
from ..core.settings import EXCLUSIVE, Settings
from ..core.throttle.budget import BLOCKS, Budget
from .agenda import METER, WORK, SimClient, SimDevice
from .details import Details
from .movement import Movement
from .results import Results
from .workload import Costs

_METER_EVERY = 1.0  # seconds
_BLOCKS = 1024  # of one launch


class Work(Movement):
    def __init__(self, costs: Costs, settings: Settings, details: Details | None) -> None:
        super().__init__(costs)
        self.results = Results()
        self.details = details
        self._metered = settings.sharing != EXCLUSIVE

    def begin_work(self, client: SimClient) -> None:
        if client.worked_at >= 0:
            return
        self.end_wait(client)
        client.worked_at = self.now
        alone = True
        for device in client.devices:
            if not device.working:
                device.busy_since = self.now
            device.working[client.index] = client
            alone = alone and len(device.working) == 1
        if alone and client.most == 1.0:
            client.rate = 1.0
            self.at(self.now + client.remaining, WORK, client)
        else:
            self._share(client)
        if self._metered and client.appointments[METER] < 0:
            self.at(self.now + _METER_EVERY, METER, client)

    def end_work(self, client: SimClient) -> None:
        if client.worked_at < 0:
            return
        self._settle(client)
        client.worked_at = -1.0
        client.appointments[WORK] = -1
        shared = False
        for device in client.devices:
            del device.working[client.index]
            if device.working:
                shared = True
            else:
                device.busy += self.now - device.busy_since
                if self.details:
                    self.details.worked(device.busy_since, self.now)
        if shared:
            self._share(client)

    def left(self, client: SimClient) -> float:
        return client.remaining - (self.now - client.worked_at) * client.rate

    def end_wait(self, client: SimClient) -> None:
        if client.wanting_since >= 0:
            waited = self.now - client.wanting_since
            client.wanting_since = -1.0
            client.cell_wait += waited
            client.waited += waited
            self.results.wait(waited)
            if self.details:
                self.details.wait(client.id, self.now - waited, self.now)

    def end_turn(self, client: SimClient) -> None:
        if self.details:
            for device in client.devices:
                self.details.turn(client.id, device.uuid, client.turn_began, self.now)

    # --- clients beside each other

    def _settle(self, client: SimClient) -> None:
        did = min((self.now - client.worked_at) * client.rate, client.remaining)
        client.busy += self.now - client.worked_at
        client.remaining -= did
        client.done += did
        client.worked_at = self.now

    def _share(self, changed: SimClient) -> None:
        """Somebody came to work on devices, or went, or may work at another rate: how fast everybody there is now."""
        for client in {one.index: one for device in changed.devices for one in device.working.values()}.values():
            self._settle(client)
            client.rate = min(self._rate(device, client) for device in client.devices)
            if client.rate > 0:
                self.at(self.now + client.remaining / client.rate, WORK, client)
            else:
                client.appointments[WORK] = -1

    def _rate(self, device: SimDevice, client: SimClient) -> float:
        """Clients who together could use more than the device has get the same part of what they could use."""
        if len(device.working) == 1:
            return client.most
        asked = sum(one.spec.intensity * one.most for one in device.working.values())
        return client.most if asked <= 1.0 else client.most * (1.0 - self.costs.interference) / asked

    def limit_rate(self, client: SimClient, budget: Budget | None) -> None:
        client.most = 1.0
        if budget:
            cost = client.spec.launch / _BLOCKS if budget.unit == BLOCKS else 1.0
            client.most = min(1.0, budget.rate * cost)
        if client.worked_at >= 0:
            self._share(client)

    # --- the meter

    def meter(self, client: SimClient) -> None:
        """Once a second the agent of a client that has its gate open says what it has done so far."""
        if client.is_open:
            self.at(self.now + _METER_EVERY, METER, client)
            self.say_progress(client)

    def say_progress(self, client: SimClient) -> None:
        if self._metered:
            if client.worked_at >= 0:
                self._settle(client)
            launches = int(client.done / client.spec.launch)
            self.feed(ev.Progress(client.id, launches, launches * _BLOCKS, client.busy))
