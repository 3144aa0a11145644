"""Workloads and checked simulations for the tests."""

from __future__ import annotations

import itertools
from typing import Any

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.views.invariants import check
from jupyter_gpushare.simulation.entities import SimClient
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads import synthetic_notebooks
from jupyter_gpushare.simulation.workloads.workload import Cell, Costs, DeviceModel, Participant, Workload
from jupyter_gpushare.wire.page import OUT

GB = 10**9
DEVICE = DeviceModel(80 * GB, 50e9)


class CheckedSimulation(Simulation):
    """Simulation that checks invariants after every event.

    A device works for one client at a time without colocation, its memory is never exceeded, and the scheduler has
    every waiting client. Memory above a resident target leaves, and the scheduler has the figures of memory that stays.
    """

    def handle_event(self, event: ev.Event) -> None:
        super().handle_event(event)
        if self._is_handling:
            return
        check(self.scheduler, self.now)
        exclusive = self.scheduler.settings.sharing == "exclusive"
        for device in self.devices.values():
            assert 0 <= device.resident_bytes <= device.memory
            assert device.resident_bytes == sum(c.resident_on.get(device, 0) for c in device.clients.values())
            open_now = [client.id for client in device.clients.values() if client.is_gate_open]
            assert len(open_now) <= 1 or not exclusive, open_now
            assert len(device.working_clients) <= 1 or not exclusive
            assert sum(c.rate * c.spec.intensity for c in device.working_clients.values()) <= 1 + 1e-9
        for client in self.all_clients:
            if client.waiting_since >= 0 and client.phase == OUT and client.process_number:
                process = self.scheduler.processes[client.process_number]
                assert process.is_waiting_at_gate or process.client.grant, (
                    f"{client.id} waits, but not in the scheduler"
                )

    def _advance(self, time: float) -> None:
        if time > self.now:
            for client in self.all_clients:
                self._check_memory(client)
        super()._advance(time)

    def _check_memory(self, client: SimClient) -> None:
        if not client.process_number or client.evicting:
            return
        if client.moving_to is None:
            targets = {one: self.scheduler.residency.target(client.id, one.uuid) for one in client.devices}
            assert targets == {one: client.resident_targets.get(one) for one in client.devices}, client.id
        assert client.phase != OUT or not client.has_surplus, f"{client.id} stays above its resident target"
        if not client.restoring:
            known = self.scheduler.clients[client.id].memory_use
            assert known.resident == client.resident, f"{client.id} has not reported its resident memory"


def turn_settings(**settings: Any) -> Settings:
    """Return settings for turns of one client at a time, first come, first served."""
    return Settings(**{"policy": "fcfs", "sharing": "exclusive", "idle_release": 0.25, **settings})


def some_notebooks(count: int = 8, *, hours: float = 2.0, seed: int = 1, **how: Any) -> Workload:
    how = {"load": 0.8, "devices": (DEVICE,), **how}
    return synthetic_notebooks.generate_workload(count, seconds=hours * 3600, seed=seed, **how)


def busy_participant(name: str, gpu: float, *, memory: int = 0, arrives: float = 0.0) -> Participant:
    """Return a participant with one cell of `gpu` seconds on the GPU."""
    return Participant(name, (Cell(0.0, (0.0, gpu)),), memory, arrives=arrives)


def endless_participant(name: str, *phases: float, memory: int = 0) -> Participant:
    return Participant(name, (Cell(0.0, itertools.cycle(phases)),), memory, kind="job")


def make_workload(*participants: Participant, device: DeviceModel = DEVICE, **costs: float) -> Workload:
    return Workload("test", (device,), participants, Costs(**costs))


def simulate(workload: Workload, seconds: float, **settings: Any) -> CheckedSimulation:
    return simulate_shipped(workload, seconds, **vars(turn_settings(**settings)))


def simulate_shipped(workload: Workload, seconds: float, **settings: Any) -> CheckedSimulation:
    """Simulate a workload under the shipped settings, except for those that `settings` names."""
    simulation = CheckedSimulation(workload, Settings(**settings))
    simulation.run(seconds)
    return simulation
