"""What is simulated: devices, and clients with what their programs will do. Times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from ..core.base.quota import Quota

REPAIR_SECONDS = 600.0  # seconds for which a device that fails is out of order


class Cell(NamedTuple):
    """One cell: `think` seconds after the one before has ended (or after the client came), then `phases`, which
    alternate between the CPU and the GPU and begin with the CPU. GPU time is what the work takes with the device to
    itself. An endless `phases` is an endless cell.
    """

    think: float
    phases: Iterable[float]


@dataclass(frozen=True)
class Participant:
    """A client. `cells` may be endless and is walked once for each simulation.

    `intensity`: the fraction of a device's throughput that its GPU phases can make use of; two clients whose sum is at
    most 1 can run beside each other without loss. `kind` is "notebook" or "job". `restarts` are the times at which its
    process ends and a new one begins.
    """

    id: str
    cells: Iterable[Cell]
    memory: int = 0
    tenant: str = "1000"
    quota: Quota = field(default_factory=Quota)
    gpus: int = 1
    arrives: float = 0.0
    departs: float | None = None
    kind: str = "notebook"
    intensity: float = 1.0
    launch: float = 0.0005
    restarts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Costs:
    """Costs of changes of turns and of colocation, as measured by the benches (README, "Figures").

    `handoff`: seconds from the end of a turn to the first launch of the next.
    `drain`: seconds of GPU work that is still submitted when the gate closes.
    `empty_drain`: seconds of a closing with nothing submitted.
    `interference`: fraction of a device's throughput that is lost when clients that could each fill the device are
    colocated.
    `fault_bandwidth`: bytes a second of memory that moves by page faults instead of an eviction.
    """

    handoff: float = 150e-6
    drain: float = 0.013
    empty_drain: float = 200e-6
    interference: float = 0.05
    fault_bandwidth: float = 3.7e9


@dataclass(frozen=True)
class DeviceModel:
    """One device: its memory, and bytes a second of its link, each way. `outages`: (from, until) of its failures."""

    memory: int
    link: float
    outages: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Workload:
    """`name` is what the reports call it; `overlap`: the next client's memory may come while the last one's leaves (as
    in the memory mode "swap"; in "unified" a turn is over when its memory has left)."""

    name: str
    devices: tuple[DeviceModel, ...]
    participants: tuple[Participant, ...]
    costs: Costs = field(default_factory=Costs)
    overlap: bool = False


def with_outages(
    devices: tuple[DeviceModel, ...], per_day: float, seconds: float, seed: int
) -> tuple[DeviceModel, ...]:
    """The devices, each with times at which it is out of order: `a_day` times on average, for REPAIR seconds."""
    if not per_day:
        return devices
    broken = []
    for index, device in enumerate(devices):
        draw = Random(f"failures {seed} {index}")
        times: list[tuple[float, float]] = []
        time = 0.0
        while (time := time + draw.expovariate(per_day / 86400.0)) < seconds:
            times.append((time, time + REPAIR_SECONDS))
            time += REPAIR_SECONDS
        broken.append(replace(device, outages=tuple(times)))
    return tuple(broken)
