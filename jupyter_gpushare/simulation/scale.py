"""What a decision costs, by how many clients there are: the scheduler under a crowd that always wants more.

Times are the processor's, so that other work on the machine does not count."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Sequence
from random import Random
from time import perf_counter_ns, thread_time_ns
from typing import Any

from ..core.interface import commands as cmd
from ..core.interface import events as ev
from . import synthetic_notebooks
from .experiment import Variant
from .results import quantile
from .simulation import Simulation
from .workload import Cell, DeviceModel, Participant, Workload

CLIENT_COUNTS = (10, 100, 1_000, 10_000)
CLIENTS_PER_DEVICE = 10  # clients, where there are many devices
MEASURED_DECISIONS = 20_000  # decisions
MAX_SECONDS = 20.0  # seconds for each of the two parts of a measurement: it ends then with what it has
DEVICE = DeviceModel(80 * 10**9, 50e9)


class _TimedSimulation(Simulation):
    """`taken`: nanoseconds of each decision, together with the look at the next deadline that follows it."""

    durations_ns = array("q")
    _step = 0.001
    _previous_decisions = 0

    def measure(self, decisions: int, warm_up: int) -> Sequence[int]:
        """After `settle` decisions that are not counted. Collections of garbage are not either."""
        self.run_decisions(warm_up)
        taken = self.durations_ns = array("q")
        handle, next_deadline = self.scheduler.handle, self.scheduler.next_deadline

        def timed(event: ev.Event, now: float) -> list[cmd.Command]:
            began = thread_time_ns()
            commands = handle(event, now)
            next_deadline()
            taken.append(thread_time_ns() - began)
            return commands

        self._handle = timed
        gc.collect()
        gc.disable()
        try:
            self.run_decisions(decisions)
        finally:
            gc.enable()
        return taken

    def run_decisions(self, count: int) -> None:
        until, late = self.decisions + count, perf_counter_ns() + MAX_SECONDS * 1e9
        while self.decisions < until and perf_counter_ns() < late:
            self.run_until(self.now + self._step)
            # About a hundred decisions between two looks at the clock, however many clients there are.
            self._step *= 0.5 if self.decisions - self._previous_decisions > 200 else 2.0
            self._previous_decisions = self.decisions


def contended_workload(clients: int, devices: int, seed: int = 1) -> Workload:
    """Nearly everybody wants a device all the time: cells of about half a second, and as long to think."""
    memory = int(synthetic_notebooks.OVERSUBSCRIPTION * DEVICE.memory * devices / clients)
    people = tuple(
        Participant(
            f"n{number}",
            _CellSequence(seed, number),
            min(memory, DEVICE.memory // 2),
            arrives=number * 1e-4,
            tenant=str(number % 50),
        )
        for number in range(clients)
    )
    return Workload("contended", (DEVICE,) * devices, people)


class _CellSequence:
    def __init__(self, seed: int, number: int) -> None:
        self._seed = f"{seed} {number}"

    def __iter__(self) -> Iterator[Cell]:
        draw = Random(self._seed)
        while True:
            yield Cell(draw.expovariate(2.0), (0.0, draw.expovariate(2.0)))


def measure_decisions(
    variant: Variant, clients: int, devices: int, measured: int = MEASURED_DECISIONS
) -> dict[str, Any]:
    """`p50`, `p99` and `mean` in microseconds, of so many `measured`."""
    simulation = _TimedSimulation(contended_workload(clients, devices), variant.settings)
    taken = simulation.measure(measured, warm_up=max(2 * clients * 4, 2000))
    ordered = sorted(nanoseconds / 1e3 for nanoseconds in taken)
    return {
        "clients": clients,
        "devices": devices,
        "measured": len(ordered),
        "p50": round(quantile(ordered, 0.5) or 0.0, 1),
        "p99": round(quantile(ordered, 0.99) or 0.0, 1),
        "mean": round(sum(ordered) / len(ordered), 1),
    }


def measure_day(variant: Variant, seconds: float = 86400.0) -> dict[str, Any]:
    """A day of `notebooks:20` on one device, at a load of 0.8: events a second of this machine's time."""
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
    """Microseconds per decision, all on one device and ten to a device; and events a second of a simulation."""
    return {
        "one_device": [measure_decisions(variant, count, 1, measured) for count in clients],
        "many_devices": [
            measure_decisions(variant, count, max(1, count // CLIENTS_PER_DEVICE), measured) for count in clients
        ],
        "simulation": measure_day(variant),
    }
