"""Cost of a decision by the number of clients, while the devices are always contended, and speed of a simulated day.

Times are processor time, so that other work on the machine does not count.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Sequence
from random import Random
from time import thread_time_ns
from typing import Any

from ..core.interface import commands as cmd
from ..core.interface import events as ev
from .experiment import Variant
from .reports.results import quantile
from .simulation import Simulation
from .workloads import synthetic_notebooks
from .workloads.workload import Cell, DeviceModel, Participant, Workload

CLIENT_COUNTS = (10, 100, 1_000, 10_000)
CLIENTS_PER_DEVICE = 10  # in the measurements with many devices
MEASURED_DECISIONS = 20_000
MAX_SECONDS = 20.0  # of processor time, for the warm-up and for the measurement, which then ends with fewer decisions
DEVICE = DeviceModel(80 * 10**9, 50e9)


class _TimedSimulation(Simulation):
    """Simulation that measures each decision in nanoseconds, with the query of the next deadline after it."""

    durations_ns = array("q")
    _step = 0.001
    _previous_decisions = 0

    def record_limits(self, until: float) -> None:
        """Record nothing, because the cost of the record grows with the number of waiting clients."""

    def measure(self, decisions: int, warm_up: int) -> Sequence[int]:
        """Return the durations of `decisions` decisions in nanoseconds, after `warm_up` decisions that do not count.

        Garbage collections do not count either.
        """
        self.run_decisions(warm_up)
        durations = self.durations_ns = array("q")
        handle, next_deadline = self.scheduler.handle, self.scheduler.next_deadline

        def timed(event: ev.Event, now: float) -> list[cmd.Command]:
            began = thread_time_ns()
            commands = handle(event, now)
            next_deadline()
            durations.append(thread_time_ns() - began)
            return commands

        self._handle = timed
        gc.collect()
        gc.disable()
        try:
            self.run_decisions(decisions)
        finally:
            gc.enable()
        return durations

    def run_decisions(self, count: int) -> None:
        until, late = self.decisions + count, thread_time_ns() + MAX_SECONDS * 1e9
        while self.decisions < until and thread_time_ns() < late:
            self.run_until(self.now + self._step)
            # About a hundred decisions between two reads of the clock, for any number of clients.
            self._step *= 0.5 if self.decisions - self._previous_decisions > 200 else 2.0
            self._previous_decisions = self.decisions


def contended_workload(clients: int, devices: int, seed: int = 1) -> Workload:
    """Return a workload in which nearly every client always waits.

    Cells and the pauses between them last about half a second.
    """
    memory = int(synthetic_notebooks.OVERSUBSCRIPTION * DEVICE.memory * devices / clients)
    participants = tuple(
        Participant(
            f"n{number}",
            _CellSequence(seed, number),
            min(memory, DEVICE.memory // 2),
            arrives=number * 1e-4,
            user=str(number % 50),
        )
        for number in range(clients)
    )
    return Workload("contended", (DEVICE,) * devices, participants)


class _CellSequence:
    """Endless cells of one client, the same in each iteration."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = f"{seed} {number}"

    def __iter__(self) -> Iterator[Cell]:
        rng = Random(self._seed)
        while True:
            yield Cell(rng.expovariate(2.0), (0.0, rng.expovariate(2.0)))


def measure_decisions(
    variant: Variant, clients: int, devices: int, measured: int = MEASURED_DECISIONS
) -> dict[str, Any]:
    """Return `p50`, `p99` and `mean` of a decision in microseconds, and the number of `measured` decisions."""
    simulation = _TimedSimulation(contended_workload(clients, devices), variant.settings)
    durations_ns = simulation.measure(measured, warm_up=max(2 * clients * 4, 2000))
    ordered = sorted(nanoseconds / 1e3 for nanoseconds in durations_ns)
    return {
        "clients": len(simulation.clients),  # fewer where the warm-up has taken too long
        "devices": devices,
        "measured": len(ordered),
        "p50": round(quantile(ordered, 0.5) or 0.0, 1),
        "p99": round(quantile(ordered, 0.99) or 0.0, 1),
        "mean": round(sum(ordered) / len(ordered), 1),
    }


def measure_day(variant: Variant, seconds: float = 86400.0) -> dict[str, Any]:
    """Measure the events a second of processor time, for a day of `notebooks:20` on one device at a load of 0.8."""
    workload = synthetic_notebooks.generate_workload(20, load=0.8, seconds=seconds, devices=(DEVICE,), seed=1)
    began = thread_time_ns()
    results = Simulation(workload, variant.settings).run(seconds)
    took = (thread_time_ns() - began) / 1e9
    return {
        "events": results.events,
        "decisions": results.decisions,
        "seconds": round(took, 2),
        "events_per_second": round(results.events / took),
    }


def measure(
    variant: Variant, clients: Sequence[int] = CLIENT_COUNTS, measured: int = MEASURED_DECISIONS
) -> dict[str, Any]:
    """Measure the cost of decisions on one device and with ten clients to a device, and the speed of a simulation."""
    return {
        "one_device": [measure_decisions(variant, count, 1, measured) for count in clients],
        "many_devices": [
            measure_decisions(variant, count, max(1, count // CLIENTS_PER_DEVICE), measured) for count in clients
        ],
        "simulation": measure_day(variant),
    }
