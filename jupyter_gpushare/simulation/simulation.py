"""One simulation: clients come, think, run cells and leave; what they get is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import events as ev
from ..core.model import DeviceInfo
from ..core.settings import Settings
from . import results
from .agenda import (
    AWAY,
    CLOSED,
    EVICT,
    GATE,
    IDLE,
    LIFE,
    METER,
    ON_CPU,
    ON_GPU,
    OPEN,
    OPENING,
    RESTORE,
    THINKING,
    WORK,
    SimClient,
    SimDevice,
)
from .gates import Gates
from .workload import Participant, Workload

_PROGRESS: Any = getattr(ev, "Progress", None)
_METER_EVERY = 1.0
_RESTART = 5.0  # seconds from the end of a client's process to the start of its next one


class Simulation(Gates):
    """`workload` under `settings`. Nothing in it is random: what is, was drawn when the workload was made."""

    def __init__(self, workload: Workload, settings: Settings, *, log: bool = False) -> None:
        super().__init__(settings, workload.costs, overlap=workload.overlap, log=log)
        self._actions = [self._work] * 7
        self._actions[WORK] = self._work
        self._actions[GATE] = self._gate
        self._actions[IDLE] = self._idle
        self._actions[EVICT] = self._evicted
        self._actions[RESTORE] = self._restored_ahead
        self._actions[LIFE] = self._life
        self._actions[METER] = self._meter
        self.workload = workload
        self.devices: dict[str, SimDevice] = {}
        self.everybody: list[SimClient] = []
        self.results = results.Results()
        self._numbers = 0
        for index, model in enumerate(workload.devices):
            device = SimDevice(f"GPU-{index}", model.memory, model.link)
            self.devices[device.uuid] = device
            self.feed(ev.DeviceFound(DeviceInfo(device.uuid, f"simulated {index}", model.memory, simulated=True)))
        for index, spec in enumerate(workload.participants):
            client = SimClient(spec, index)
            self.everybody.append(client)
            client.lives = iter(_lives(spec))
            self._next_of_life(client)

    def run(self, seconds: float, watch: Callable[[float], None] | None = None) -> results.Results:
        """Simulate so many seconds. `watch` is told the time now and then."""
        self.run_to(seconds, watch)
        self.results.finish(self, seconds)
        return self.results

    # --- coming and going

    def _next_of_life(self, client: SimClient) -> None:
        time, client.life = next(client.lives, (0.0, ""))
        if client.life:
            self.at(max(time, self.now), LIFE, client)

    def _life(self, client: SimClient) -> None:
        match client.life:
            case "comes":
                self._come(client)
            case "begins":
                self._begin_process(client)
            case "dies":
                self._end_process(client)
            case "leaves":
                self._end_process(client)
                self.clients.pop(client.id, None)
                self.feed(ev.ClientForgotten(client.id))
        self._next_of_life(client)

    def _come(self, client: SimClient) -> None:
        spec = client.spec
        self.clients[client.id] = client
        self.feed(ev.ClientRegistered(client.id, spec.tenant, client.id, spec.quota, spec.gpus))
        client.cells = iter(spec.cells)
        self._begin_process(client)

    def _begin_process(self, client: SimClient) -> None:
        self._numbers += 1
        client.number = self._numbers
        client.wanted = ev.Wanted(client.number)
        self.by_number[client.number] = client
        uuids = self.scheduler.clients[client.id].devices
        client.devices = tuple(self.devices[uuid] for uuid in uuids)
        for device in client.devices:
            device.present[client.index] = client
        client.allocated = client.spec.memory // len(uuids) * len(uuids)
        self.feed(ev.ProcessJoined(client.id, client.number, uuids, relays=False))
        self.say_held(client)
        self._next_cell(client)

    def _end_process(self, client: SimClient) -> None:
        """It is over at once, with what it did; what it had on the device is free."""
        number = client.number
        if not number:
            return
        self.end_work(client)
        self._waited(client)
        for kind in (WORK, GATE, IDLE, METER):
            client.appointments[kind] = -1
        self.forget_memory(client)
        for device in client.devices:
            del device.present[client.index]
        client.gate = CLOSED
        client.doing = AWAY
        client.number = 0
        del self.by_number[number]
        in_cell, client.cell_began = client.cell_began >= 0, -1.0
        self.feed(ev.MemoryHeld(client.id, 0, 0))
        self.feed(ev.ProcessGone(number))
        if in_cell:
            self.feed(client.cell_ended)

    # --- cells

    def _next_cell(self, client: SimClient) -> None:
        cell = next(client.cells, None)
        client.cell_began = -1.0
        if cell is None:
            client.doing = AWAY
            return
        client.doing = THINKING
        client.phases = iter(cell.phases)
        self.at(self.now + cell.think, WORK, client)

    def _work(self, client: SimClient) -> None:
        """What its program did last is over."""
        if client.doing == THINKING:
            client.cell_began = self.now
            client.cell_wait = client.cell_gpu = client.cell_cpu = 0.0
            client.on_gpu_next = False
            client.doing = ON_CPU
            self.feed(client.cell_started)
        elif client.doing == ON_GPU:
            self.end_work(client)
            client.remaining = 0.0
            client.idle_since = self.now
        self._next_phase(client)

    def _next_phase(self, client: SimClient) -> None:
        phases = client.phases
        while True:
            duration = next(phases, None)
            if duration is None:
                self._end_cell(client)
                return
            on_gpu = client.on_gpu_next
            client.on_gpu_next = not on_gpu
            if duration > 0:
                break
        if not on_gpu:
            was_on_gpu = client.doing == ON_GPU
            client.doing = ON_CPU
            client.cell_cpu += duration
            self.at(self.now + duration, WORK, client)
            if was_on_gpu:
                self.watch_idleness(client)
            return
        client.doing = ON_GPU
        client.cell_gpu += duration
        client.remaining = duration
        client.appointments[IDLE] = -1
        if client.gate == OPEN and client.drains_until < 0:
            self.begin_work(client)
        else:
            client.wanting_since = self.now
            if client.gate != OPENING:
                self._say_wanted(client)

    def _end_cell(self, client: SimClient) -> None:
        self.results.cell(client, self.now)
        self._next_cell(client)
        self.feed(client.cell_ended)
        self.watch_idleness(client)

    # --- work on devices

    def begin_work(self, client: SimClient) -> None:
        if client.worked_at >= 0:
            return
        self._waited(client)
        client.worked_at = self.now
        client.rate = 1.0
        alone = True
        for device in client.devices:
            if not device.working:
                device.busy_since = self.now
            device.working[client.index] = client
            alone = alone and len(device.working) == 1
        if alone:
            self.at(self.now + client.remaining, WORK, client)
        else:
            self._share(client)
        if _PROGRESS and client.appointments[METER] < 0:
            self.meter(client)

    def end_work(self, client: SimClient) -> None:
        if client.worked_at < 0:
            return
        self._settle(client)
        client.worked_at = -1.0
        client.appointments[WORK] = -1
        for device in client.devices:
            del device.working[client.index]
            if not device.working:
                device.busy += self.now - device.busy_since
        if any(device.working for device in client.devices):
            self._share(client)

    def left(self, client: SimClient) -> float:
        return client.remaining - (self.now - client.worked_at) * client.rate

    def _settle(self, client: SimClient) -> None:
        did = min((self.now - client.worked_at) * client.rate, client.remaining)
        client.remaining -= did
        client.done += did
        client.worked_at = self.now

    def _share(self, changed: SimClient) -> None:
        """Somebody came to work on devices, or went: how fast everybody there is now."""
        for client in {c.index: c for device in changed.devices for c in device.working.values()}.values():
            self._settle(client)
            client.rate = min(self._rate(device) for device in client.devices)
            self.at(self.now + client.remaining / client.rate, WORK, client)

    def _rate(self, device: SimDevice) -> float:
        """Those who together could use more than the device has get the same part of what they could use."""
        asked = sum(client.spec.intensity for client in device.working.values())
        if asked <= 1.0 or len(device.working) == 1:
            return 1.0
        return (1.0 - self.costs.interference) / asked

    def limit_rate(self, client: SimClient, launch_rate: int, spacing_ppm: int) -> None:
        return  # TODO

    def _waited(self, client: SimClient) -> None:
        if client.wanting_since >= 0:
            waited = self.now - client.wanting_since
            client.wanting_since = -1.0
            client.cell_wait += waited
            client.waited += waited
            self.results.wait(waited)

    # --- the meter

    def meter(self, client: SimClient) -> None:
        if getattr(self.scheduler.settings, "sharing", "exclusive") != "exclusive":
            self.at(self.now + _METER_EVERY, METER, client)

    def _meter(self, client: SimClient) -> None:
        if client.gate == OPEN:
            done = client.done + (client.remaining - self.left(client) if client.worked_at >= 0 else 0.0)
            launches = int(done / client.spec.launch)
            self.meter(client)
            self.feed(_PROGRESS(client.id, launches, launches * 1024, done))


def _lives(spec: Participant) -> list[tuple[float, str]]:
    lives = [(spec.comes, "comes")]
    for time in spec.dies:
        if time > spec.comes and (spec.leaves is None or time + _RESTART < spec.leaves):
            lives += [(time, "dies"), (time + _RESTART, "begins")]
    if spec.leaves is not None:
        lives.append((max(spec.leaves, spec.comes), "leaves"))
    return lives
