"""One simulation: clients come, think, run cells and leave; what they get is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core import events as ev
from ..core.errors import Refused
from ..core.model import DeviceInfo
from ..core.settings import Settings
from .agenda import (
    AWAY,
    EVICT,
    GATE,
    IDLE,
    LIFE,
    METER,
    ON_CPU,
    ON_GPU,
    RESTORE,
    THINKING,
    WORK,
    Agent,
    SimClient,
    SimDevice,
)
from .details import Details
from .freeroom import FreeRoom
from .gates import Gates
from .results import Results
from .workload import Participant, Workload

_RESTART = 5.0  # seconds from the end of a client's process to the start of its next one


class Simulation(Gates):
    """`workload` under `settings`. Nothing in it is random: what is, was drawn when the workload was made.

    `details`: where to put what is only of use to a picture.
    """

    def __init__(self, workload: Workload, settings: Settings, *, details: Details | None = None) -> None:
        super().__init__(workload, settings, details=details)
        self._actions = [self._work, self._gate, self.step, self._evicted, self._restored_ahead, self._life]
        assert list(range(len(self._actions) + 1)) == [WORK, GATE, IDLE, EVICT, RESTORE, LIFE, METER]
        self._actions.append(self.meter)
        self.workload = workload
        self.devices: dict[str, SimDevice] = {}
        self.everybody: list[SimClient] = []
        self.room = FreeRoom((_need(p, workload) for p in workload.participants), len(workload.devices))
        for index, model in enumerate(workload.devices):
            device = SimDevice(f"GPU-{index}", index, model.memory, model.link)
            self.devices[device.uuid] = device
            self.feed(ev.DeviceFound(DeviceInfo(device.uuid, f"simulated {index}", model.memory, simulated=True)))
            if model.fails:
                self._watch_failures(device, model.fails)
        for index, spec in enumerate(workload.participants):
            client = SimClient(spec, index)
            self.everybody.append(client)
            client.lives = _lives(spec)
            self._next_of_life(client)

    def run(self, seconds: float, watch: Callable[[float], None] | None = None) -> Results:
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
            case "dies":
                self._end_process(client, restart=True)
            case "leaves":
                self._end_process(client, restart=False)
                del self.clients[client.id]
                self.feed(ev.ClientForgotten(client.id))
            case "fails":
                self._device_fails(client.devices[0])
            case "recovers":
                self._device_recovers(client.devices[0])
        self._next_of_life(client)

    def _come(self, client: SimClient) -> None:
        spec = client.spec
        try:
            self.feed(ev.ClientRegistered(client.id, spec.tenant, client.id, spec.quota, spec.gpus))
        except Refused:
            self.results.refused += 1
            client.lives = iter(())
            return
        self.clients[client.id] = client
        client.cells = iter(spec.cells)
        self._begin_process(client)

    def _begin_process(self, client: SimClient) -> None:
        spec = client.spec
        if any(self.devices[uuid].failed for uuid in self.scheduler.clients[client.id].devices):
            # A kernel that is started again is announced again, and may get another device.
            self.feed(ev.ClientRegistered(client.id, spec.tenant, client.id, spec.quota, spec.gpus))
        uuids = self.scheduler.clients[client.id].devices
        client.devices = tuple(self.devices[uuid] for uuid in uuids)
        if not uuids or any(device.failed for device in client.devices):
            self.at(self.now + _RESTART, WORK, client)
            return
        self._numbers += 1
        client.number = self._numbers
        client.wanted = ev.Wanted(client.number)
        client.agent, client.permit, client.most = Agent(len(uuids)), None, 1.0
        client.waiting = client.idle = client.quiet = False
        for device in client.devices:
            device.present[client.index] = client
            self.room.changed(device.index, _need(client.spec, self.workload), self.now)
        client.allocated = client.spec.memory // len(uuids) * len(uuids)
        self.feed(ev.ProcessJoined(client.id, client.number, uuids))
        if client.allocated:
            self.say_held(client)
        self._next_cell(client)

    def _end_process(self, client: SimClient, restart: bool) -> None:
        """It is over at once, with what it did; what it had on the device is free."""
        number = client.number
        for kind in (WORK, GATE, IDLE, METER):
            if kind != WORK or number:
                client.appointments[kind] = -1
        if not restart:
            client.appointments[WORK] = -1
        if not number:
            return
        self.end_work(client)
        if client.has_opened:
            self.end_turn(client)
        self.end_wait(client)
        self.forget_memory(client)
        for device in client.devices:
            del device.present[client.index]
            self.room.changed(device.index, -_need(client.spec, self.workload), self.now)
        freed = self.leave(client)
        client.doing = AWAY
        client.number = 0
        in_cell, client.cell_began = client.cell_began >= 0, -1.0
        self.feed(ev.MemoryHeld(client.id, 0, 0))
        self.feed(ev.ProcessGone(number))
        self.let_in(freed)
        if in_cell:
            self.feed(client.cell_ended)
        if restart:
            self.at(self.now + _RESTART, WORK, client)

    def _watch_failures(self, device: SimDevice, times: tuple[tuple[float, float], ...]) -> None:
        """The device's appointments are those of a client that is nobody's."""
        stand_in = SimClient(Participant(device.uuid, ()), -1)
        stand_in.devices = (device,)
        stand_in.lives = iter([life for fails, until in times for life in ((fails, "fails"), (until, "recovers"))])
        self._next_of_life(stand_in)

    def _device_fails(self, device: SimDevice) -> None:
        """Whoever has memory there loses it: their processes end, as CUDA's errors make them."""
        device.failed = True
        self.feed(ev.DeviceFailed(device.uuid, "simulated failure"))
        for client in list(device.present.values()):
            self._end_process(client, restart=True)

    def _device_recovers(self, device: SimDevice) -> None:
        device.failed = False
        self.feed(ev.DeviceRecovered(device.uuid))

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
            client.done += client.remaining  # what rounding has left of it
            client.remaining = 0.0
            client.idle_since = self.now
        elif client.doing == AWAY:
            self._begin_process(client)
            return
        self._next_phase(client)

    def _next_phase(self, client: SimClient) -> None:
        while True:
            duration = next(client.phases, None)
            if duration is None:
                self._end_cell(client)
                return
            on_gpu = client.on_gpu_next
            client.on_gpu_next = not on_gpu
            if duration > 0:
                break
        if on_gpu:
            self._want(client, duration)
            return
        was_on_gpu = client.doing == ON_GPU
        client.doing = ON_CPU
        client.cell_cpu += duration
        self.at(self.now + duration, WORK, client)
        if was_on_gpu:
            self.watch_idleness(client)

    def _want(self, client: SimClient, duration: float) -> None:
        client.doing = ON_GPU
        client.cell_gpu += duration
        client.remaining = duration
        if client.is_open:
            self.go_on(client)
        else:
            client.wanting_since = self.now
            self.wait(client)

    def _end_cell(self, client: SimClient) -> None:
        self.results.cell(client, self.now)
        self._next_cell(client)
        self.feed(client.cell_ended)
        self.watch_idleness(client)


def _need(spec: Participant, workload: Workload) -> float:
    """The part of a device that it needs on each of its devices."""
    return spec.memory / spec.gpus / workload.devices[0].memory


def _lives(spec: Participant) -> Iterator[tuple[float, str]]:
    yield spec.comes, "comes"
    for time in spec.dies:
        if time > spec.comes and (spec.leaves is None or time < spec.leaves):
            yield time, "dies"
    if spec.leaves is not None:
        yield spec.leaves, "leaves"
