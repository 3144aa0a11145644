"""Workload of a simulation: devices with outages, participants with cells, and costs. In seconds and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from ...core.base.quota import Quota

REPAIR_SECONDS = 600.0  # duration of a device's failure


class Cell(NamedTuple):
    """Cell that starts `think` seconds after the end of the cell before, or after the arrival of the client.

    `phases` alternate between the CPU and the GPU and begin with the CPU.
    GPU time is that of the work without other clients on the device.
    Endless `phases` are an endless cell.
    Cells of one client with the same `name` are runs of one cell; without a name, the cell runs once.
    """

    think: float
    phases: Iterable[float]
    name: str = ""


@dataclass(frozen=True)
class Participant:
    """Client of a workload.

    `cells` may be endless, and each simulation iterates over them once.
    `intensity` is the fraction of a device's throughput that the client's GPU phases can use.
    Two clients with a sum of at most 1 can be colocated without loss.
    `kind` is "notebook" or "job".
    `restarts` are the times at which the client's process ends and a new one begins.
    `launch` is the duration of one launch.
    `step` is the GPU time of a training step of a program that marks its steps; 0: the program marks none.
    With `plain`, the client has memory mode "plain", so its memory stays on its device once it is there.
    `cache` is the part of `memory` that the program's framework only keeps after a cell, for its next allocations.
    """

    id: str
    cells: Iterable[Cell]
    memory: int = 0
    user: str = "1000"
    quota: Quota = field(default_factory=Quota)
    gpus: int = 1
    arrives: float = 0.0
    departs: float | None = None
    kind: str = "notebook"
    intensity: float = 1.0
    launch: float = 0.0005
    restarts: tuple[float, ...] = ()
    step: float = 0.0
    plain: bool = False
    cache: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs of changes of turns and of colocation, as measured by the benches (README, "Figures").

    `handoff`: seconds from the end of a turn to the first launch of the next.
    `drain`: seconds of GPU work that is still submitted when the gate closes.
    `empty_drain`: seconds of a closing with nothing submitted.
    `interference`: fraction of a device's throughput that is lost with colocated clients that could each fill it.
    `fault_bandwidth`: bytes a second of memory that moves by page faults instead of an eviction.
    `passes`: how often a second of work reads all memory of its client; spilled memory comes over the link each time.
    """

    handoff: float = 150e-6
    drain: float = 0.013
    empty_drain: float = 200e-6
    interference: float = 0.05
    fault_bandwidth: float = 3.7e9
    passes: float = 2.0


@dataclass(frozen=True)
class DeviceModel:
    """Device with its memory, the bytes a second of its link each way, and its failures as (from, until).

    `parent` is the name of the GPU that a MIG slice is a part of; empty: a whole GPU.
    """

    memory: int
    link: float
    outages: tuple[tuple[float, float], ...] = ()
    parent: str = ""


@dataclass(frozen=True)
class Workload:
    """Workload with a name for reports.

    With `overlap`, the next client's memory is restored while the last client's memory is evicted, as in the memory
    mode "swap".
    In "unified", a turn ends when its memory has been evicted.
    With `mps`, a control daemon of CUDA's Multi-Process Service runs on the host.
    `needs`: the parts of a device that typical clients ask for; None: those of the participants.
    """

    name: str
    devices: tuple[DeviceModel, ...]
    participants: tuple[Participant, ...]
    costs: Costs = field(default_factory=Costs)
    overlap: bool = False
    mps: bool = False
    needs: tuple[float, ...] | None = None

    def need(self, client: Participant) -> float:
        """Return the memory that the client needs on each of its devices, over the memory of the first device."""
        return client.memory / client.gpus / self.devices[0].memory

    def client_needs(self) -> tuple[float, ...]:
        return tuple(map(self.need, self.participants)) if self.needs is None else self.needs


def with_outages(
    devices: tuple[DeviceModel, ...], per_day: float, seconds: float, seed: int
) -> tuple[DeviceModel, ...]:
    """Return the devices with random failures: `per_day` a day on average, for REPAIR_SECONDS each."""
    if not per_day:
        return devices
    failing = []
    for index, device in enumerate(devices):
        rng = Random(f"failures {seed} {index}")
        times: list[tuple[float, float]] = []
        time = 0.0
        while (time := time + rng.expovariate(per_day / 86400.0)) < seconds:
            times.append((time, time + REPAIR_SECONDS))
            time += REPAIR_SECONDS
        failing.append(replace(device, outages=tuple(times)))
    return tuple(failing)
