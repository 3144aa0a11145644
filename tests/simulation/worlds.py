"""Workloads and watched simulations for the tests."""

from __future__ import annotations

import itertools
from typing import Any

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.invariants import check
from jupyter_gpushare.core.settings import Settings
from jupyter_gpushare.simulation import notebooks
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workload import Cell, Costs, DeviceModel, Participant, Workload
from jupyter_gpushare.wire.page import OUT

GB = 10**9
DEVICE = DeviceModel(80 * GB, 50e9)


class Watched(Simulation):
    """After every event: what must always hold."""

    def feed(self, event: ev.Event) -> None:
        super().feed(event)
        if self._feeding:
            return
        check(self.scheduler, self.now)
        exclusive = self.scheduler.settings.sharing == "exclusive"
        for device in self.devices.values():
            assert 0 <= device.used <= device.memory
            assert device.used == sum(c.resident // len(c.devices) for c in device.present.values())
            open_now = [client.id for client in device.present.values() if client.is_open]
            assert len(open_now) <= 1 or not exclusive, open_now
            assert len(device.working) <= 1 or not exclusive
            assert sum(client.rate for client in device.working.values()) <= 1 + 1e-9
        for client in self.everybody:
            if client.wanting_since >= 0 and client.phase == OUT:
                process = self.scheduler.processes[client.number]
                assert process.wants or process.client.grant, f"{client.id} waits, and the scheduler does not know"


def turns(**settings: Any) -> Settings:
    """First come, first served, one client at a time."""
    return Settings(**{"policy": "fcfs", "sharing": "exclusive", "idle_release": 0.25, **settings})


def some_notebooks(count: int = 8, *, hours: float = 2.0, seed: int = 1, **how: Any) -> Workload:
    how = {"load": 0.8, "devices": (DEVICE,), **how}
    return notebooks.notebooks(count, seconds=hours * 3600, seed=seed, **how)


def busy(name: str, gpu: float, *, memory: int = 0, comes: float = 0.0) -> Participant:
    """One cell of so many GPU seconds and nothing else."""
    return Participant(name, (Cell(0.0, (0.0, gpu)),), memory, comes=comes)


def endless(name: str, *phases: float, memory: int = 0) -> Participant:
    return Participant(name, (Cell(0.0, itertools.cycle(phases)),), memory, kind="job")


def world(*participants: Participant, device: DeviceModel = DEVICE, **costs: float) -> Workload:
    return Workload("test", (device,), participants, Costs(**costs))


def simulate(workload: Workload, seconds: float, **settings: Any) -> Watched:
    simulation = Watched(workload, turns(**settings))
    simulation.run(seconds)
    return simulation
