"""Any sequence of events: nobody runs beside anybody, nobody is forgotten, no time is lost or made.

The world checks the core's invariants after every event, and that no process runs without the locks of its devices.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core import events as ev

from .world import CLOSED, OUTSIDER, FakeProcess, World, baseline

QUANTUM = 0.5
CLIENTS = ["a", "b", "c", "d", "e"]
DEVICES = ["d1", "d2", "d3"]


class AnyHost(RuleBasedStateMachine):
    """Clients of one or several processes on one or several devices do what they like."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.world = World(baseline(time_quantum=QUANTUM))
        for uuid in DEVICES[:count]:
            self.world.device(uuid)

    def processes(self) -> list[FakeProcess]:
        return list(self.world.processes.values())

    def pick(self, data: st.DataObject) -> FakeProcess:
        return data.draw(st.sampled_from(self.processes()), label="process")

    @rule(client=st.sampled_from(CLIENTS), data=st.data(), drains=st.sampled_from([0.0, 0.01, 0.3]), busy=st.booleans())
    @precondition(lambda self: len(self.world.processes) < 8)
    def join(self, client: str, data: st.DataObject, drains: float, busy: bool) -> None:
        devices = data.draw(st.lists(st.sampled_from(self.world.devices), min_size=1, unique=True), label="devices")
        relays = data.draw(st.sampled_from([True, True, False]), label="relays")
        self.world.process(client, *devices, drains_in=drains, busy=busy, relays=relays)

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.03, 0.4]))
    def news_are_late(self, seconds: float) -> None:
        """A coordinator that is slow hears of turns that changed without it."""
        self.world.news_late = seconds

    @rule(data=st.data())
    @precondition(lambda self: self.world.processes)
    def want(self, data: st.DataObject) -> None:
        self.world.want(self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: self.world.processes)
    def interrupt(self, data: st.DataObject) -> None:
        self.world.unwant(self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: self.world.processes)
    def idle(self, data: st.DataObject) -> None:
        self.world.idle(self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: self.world.processes)
    def crossed_or_repeated_wants(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if process.gate != CLOSED:
            self.world.feed(ev.Wanted(process.number))

    @rule(data=st.data(), age=st.integers(0, 3))
    @precondition(lambda self: self.world.processes)
    def stale_drained(self, data: st.DataObject, age: int) -> None:
        process = self.pick(data)
        if age or process.gate == CLOSED:
            self.world.feed(ev.Drained(process.number, max(0, process.epoch - age)))

    @rule(data=st.data())
    @precondition(lambda self: self.world.processes)
    def kill(self, data: st.DataObject) -> None:
        self.world.kill(self.pick(data))

    @rule(data=st.data(), request=st.sampled_from("123"), starts=st.booleans())
    @precondition(lambda self: self.world.scheduler.clients)
    def cell(self, data: st.DataObject, request: str, starts: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.world.scheduler.clients)), label="client")
        self.world.feed(ev.CellStarted(client, request) if starts else ev.CellEnded(client, request))

    @rule(data=st.data())
    @precondition(lambda self: self.world.scheduler.clients)
    def release(self, data: st.DataObject) -> None:
        self.world.feed(ev.TurnReleased(data.draw(st.sampled_from(sorted(self.world.scheduler.clients)))))

    @rule(data=st.data())
    @precondition(lambda self: len(self.world.processes) > 1)
    def collective(self, data: st.DataObject) -> None:
        """The work of one process now waits on the device for another one of its client."""
        process = self.pick(data)
        peers = [p for p in self.processes() if p.client == process.client and p is not process]
        if peers:
            process.peer, process.collectives = data.draw(st.sampled_from(peers)), 1
            process.peer.busy = True

    @rule(client=st.sampled_from(CLIENTS), data=st.data(), epoch=st.integers(0, 50), running=st.booleans())
    @precondition(lambda self: len(self.world.processes) < 8)
    def adopt(self, client: str, data: st.DataObject, epoch: int, running: bool) -> None:
        devices = data.draw(st.lists(st.sampled_from(self.world.devices), min_size=1, unique=True), label="devices")
        known = self.world.scheduler.clients.get(client)
        if known and known.grant and known.grant.epoch == epoch:
            epoch += 1  # nobody else ever gave this epoch
        locked = {self.world.locks.get(uuid, (client,))[0] for uuid in devices} == {client}
        self.world.adopt(client, *devices, epoch=epoch, running=running and locked)

    @rule(data=st.data())
    def outsider(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(self.world.devices), label="device")
        if uuid not in self.world.locks:
            self.world.lock_elsewhere(uuid)
        elif self.world.locks[uuid][0] == OUTSIDER:
            self.world.unlock_elsewhere(uuid)

    @rule(quantum=st.sampled_from([0.001, 0.1, QUANTUM, 5.0]))
    def configure(self, quantum: float) -> None:
        self.world.feed(ev.SettingsChanged(baseline(time_quantum=quantum)))

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.1, 0.3, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @invariant()
    def no_time_is_made(self) -> None:
        """What clients are said to have used is no more than what the devices had."""
        if not hasattr(self, "world"):
            return
        world = self.world
        used = sum(client.gpu_seconds_at(world.now) for client in world.scheduler.clients.values())
        assert used <= world.now * len(world.devices) + 1e-6

    def teardown(self) -> None:
        """Left alone, with outsiders gone, everybody who waits gets to run."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.feed(ev.SettingsChanged(baseline(time_quantum=QUANTUM)))
        for uuid, (holder, _) in list(world.locks.items()):
            if holder == OUTSIDER:
                world.unlock_elsewhere(uuid)
        for process in world.processes.values():
            process.collectives = 0
        for process in [p for p in world.processes.values() if p.waits]:
            openings = process.openings
            if process.number in world.processes and process.waits:
                world.run_until(lambda p=process, n=openings: p.openings > n, within=60.0)  # type: ignore[misc]


AnyHost.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestAnyHost = AnyHost.TestCase


def mixed_load(seed: int, devices: int = 2, clients: int = 6) -> World:
    """Some clients are always busy, some run cells, some are gangs."""
    choose = random.Random(seed)
    world = World(baseline(time_quantum=QUANTUM))
    uuids = [world.device(uuid) for uuid in DEVICES[:devices]]
    for number in range(clients):
        needs = choose.sample(uuids, choose.choice([1, 1, devices]))
        process = world.process(f"client {number}", *needs, drains_in=choose.uniform(0, 0.05))
        if choose.random() < 0.6:
            process.busy = True
            world.at(choose.uniform(0, 3), lambda process=process: world.want(process))
        else:
            for cell in range(10):
                began, length = choose.uniform(0, 40), choose.uniform(0.01, 0.6)
                world.at(began, lambda p=process, c=cell: [world.start_cell(p.client, str(c)), world.want(p)])
                world.at(began + length, lambda p=process, c=cell: world.end_cell(p.client, str(c)))
    return world


@pytest.mark.parametrize("seed", range(8))
def test_nobody_waits_longer_than_a_turn_of_each_of_the_others(seed: int) -> None:
    """The bound of first come, first served: clients ahead × (quantum + drain), gangs included: they claim devices."""
    world = mixed_load(seed)
    others = len(world.scheduler.clients) - 1
    bound = others * (QUANTUM + 0.05) + 0.05
    while world.now < 45:
        world.run(0.05)
        for client in world.scheduler.clients.values():
            if client.waiting_since is not None:
                assert world.now - client.waiting_since <= bound, f"{client.id}\n{world.story()}"


@pytest.mark.parametrize("seed", range(4))
def test_time_is_conserved(seed: int) -> None:
    """The turns of a device do not overlap, and add up to what clients are said to have used."""
    world = mixed_load(seed, devices=1)
    world.run(60)
    turns = world.turns["d1"]
    for (_, _, ended), (_, began, _) in itertools.pairwise(turns):
        assert began >= ended
    used = {client.id: client.gpu_seconds_at(world.now) for client in world.scheduler.clients.values()}
    held = dict.fromkeys(used, 0.0)
    for name, began, ended in turns:
        held[name] += ended - began
    for name, since in world.locks.values():
        held[name] += world.now - since
    assert used == pytest.approx(held)
    assert sum(used.values()) <= 60 + 1e-9
    for client in world.scheduler.clients.values():
        assert client.wait_seconds_at(world.now) + used[client.id] <= 60 + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_the_same_events_lead_to_the_same_commands(seed: int) -> None:
    world = mixed_load(seed)
    world.run(30)
    again = Scheduler(world.settings)
    commands = [command for now, event in world.log for command in again.handle(event, now)]
    assert commands == world.commands
    assert len(commands) > 100
