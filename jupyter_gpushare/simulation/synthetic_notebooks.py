"""The generator: notebooks, and endless training jobs beside them.

The distributions are fixed; docs/explanation/simulator.md says where each figure comes from. Change none of them to
make a policy look better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from random import Random

from .workload import Cell, Costs, DeviceModel, Participant, Workload

# What a cell is, and how often. Lengths are what it takes alone, GPU and CPU together, in seconds.
QUICK_PROBABILITY, MEDIUM_PROBABILITY = 0.94, 0.05  # the rest is training
QUICK_LENGTH = (1.0, 1.3)  # median, sigma of a log-normal
MEDIUM_LENGTH = (20.0, 0.6)
# Published quantiles of training cells of a minute and more: (fraction, minutes); linear between them in the logarithm.
TRAINING_LENGTH = ((0.0, 1.0), (0.5, 5.0), (0.75, 11.0), (0.9, 32.0), (0.99, 1021.0), (1.0, 1440.0))
MAX_CELL_SECONDS = 2 * 3600.0  # what would take longer is cut there: see docs/explanation/simulator.md
GPU_FRACTION = (0.4, 1.0)  # of a quick or medium cell; uniform
TRAINING_GPU_FRACTION = (0.7, 1.0)

GPU_PHASE = (10.0, 0.8)  # within long cells: between two of these lies time on the CPU only
SHORT_PHASE = (0.5, 0.8)  # within cells of less than a minute

# From the end of a cell to the next: at work, or after a break.
BREAK_PROBABILITY = 0.3
THINK = (20.0, 1.0)
BREAK = (300.0, 1.2)  # published: time between a session's cells has a median of about five minutes

MEMORY_SIGMA = 0.8  # of a notebook's memory, log-normal
MIN_MEMORY_FRACTION, MAX_MEMORY_FRACTION = 0.01, 0.9  # of a device
OVERSUBSCRIPTION = 2.0  # all notebooks' memory together, over the devices'
JOB_MEMORY_FRACTION = 0.5  # of a device
JOB_PHASES = (1.0, 60.0)  # CPU, GPU seconds: a checkpoint now and then


def generate_workload(
    count: int,
    *,
    load: float,
    seconds: float,
    devices: tuple[DeviceModel, ...],
    seed: int,
    jobs: int = 0,
    oversubscription: float = OVERSUBSCRIPTION,
    users: int = 1,
    restarts_per_day: float = 0.0,
    max_cell_seconds: float = MAX_CELL_SECONDS,
    costs: Costs | None = None,
    overlap: bool = False,
) -> Workload:
    """`count` notebooks that put `load` (a fraction of each device's time) on the devices in `seconds`, if none of
    them ever waited, and `jobs` endless ones beside them. Think times are scaled to make it so, cells are not.

    `deaths` is how often a day a client's process ends in the midst of things.
    """
    people = [_SyntheticUser(seed, index, max_cell_seconds) for index in range(count)]
    scale = _think_scale(people, load * len(devices) * seconds, seconds)
    sizes = _memory_sizes(seed, count, oversubscription * sum(device.memory for device in devices), devices[0].memory)
    participants = [
        Participant(
            f"notebook-{index}",
            _CellSequence(person, scale),
            sizes[index],
            tenant=str(1000 + index % users),
            restarts=_restart_times(seed, index, restarts_per_day, seconds),
        )
        for index, person in enumerate(people)
    ]
    participants += [
        Participant(
            f"job-{index}",
            (Cell(0.0, itertools.cycle(JOB_PHASES)),),
            int(JOB_MEMORY_FRACTION * devices[0].memory),
            tenant=str(1000 + index % users),
            kind="job",
        )
        for index in range(jobs)
    ]
    return Workload(f"notebooks:{count}", devices, tuple(participants), costs or Costs(), overlap)


class _SyntheticUser:
    """What one notebook's user does, drawn when it is first asked for, and the same every time."""

    def __init__(self, seed: int, index: int, longest: float) -> None:
        self._longest = longest
        self._random = Random(f"notebook {seed} {index}")
        self.seed = f"phases {seed} {index}"
        self._drawn: list[tuple[float, float, float]] = []

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        """Think time before scaling, then GPU and CPU seconds of the cell."""
        while index >= len(self._drawn):
            self._drawn.append(self._draw())
        return self._drawn[index]

    def _draw(self) -> tuple[float, float, float]:
        draw = self._random
        think = _log_normal(draw, *(BREAK if draw.random() < BREAK_PROBABILITY else THINK))
        kind = draw.random()
        if kind < QUICK_PROBABILITY + MEDIUM_PROBABILITY:
            length = _log_normal(draw, *(QUICK_LENGTH if kind < QUICK_PROBABILITY else MEDIUM_LENGTH))
            part = draw.uniform(*GPU_FRACTION)
        else:
            length = min(training_seconds(draw.random()), self._longest)
            part = draw.uniform(*TRAINING_GPU_FRACTION)
        return think, length * part, length * (1 - part)


class _CellSequence:
    """A person's cells for a simulation; walked anew each time."""

    def __init__(self, person: _SyntheticUser, scale: float) -> None:
        self._person = person
        self._scale = scale

    def __iter__(self) -> Iterator[Cell]:
        draw = Random(self._person.seed)
        for index in itertools.count():
            think, gpu, cpu = self._person[index]
            yield Cell(think * self._scale, split_phases(draw, gpu, cpu))


def split_phases(draw: Random, gpu: float, cpu: float) -> list[float]:
    """A cell's phases, CPU first: GPU phases of log-normal lengths, the CPU time spread between them at random."""
    median, sigma = SHORT_PHASE if gpu + cpu < 60 else GPU_PHASE
    mean = median * math.exp(sigma * sigma / 2)
    count = max(1, round(gpu / mean))
    works = [_log_normal(draw, median, sigma) for _ in range(count)]
    gaps = [draw.expovariate(1.0) for _ in range(count + 1)]
    to_gpu, to_cpu = gpu / sum(works), cpu / sum(gaps)
    phases = [gaps[0] * to_cpu]
    for work, gap in zip(works, gaps[1:], strict=True):
        phases += (work * to_gpu, gap * to_cpu)
    return phases


def training_seconds(fraction: float) -> float:
    """Seconds, at a quantile of the published distribution."""
    for (low, shorter), (high, longer) in itertools.pairwise(TRAINING_LENGTH):
        if fraction <= high:
            place = (fraction - low) / (high - low)
            return 60.0 * math.exp(math.log(shorter) + place * (math.log(longer) - math.log(shorter)))
    raise ValueError(f"{fraction} is no fraction")


def _log_normal(draw: Random, median: float, sigma: float) -> float:
    return median * math.exp(draw.gauss(0.0, sigma))


def _think_scale(users: list[_SyntheticUser], target: float, seconds: float) -> float:
    """By bisection: the factor on think times with which the notebooks, never waiting, do `wanted` GPU seconds."""
    low, high = 1.0, 1.0
    while _work_without_waits(users, high, seconds) > target and high < 1e6:
        low, high = high, high * 2
    while _work_without_waits(users, low, seconds) < target and low > 1e-4:
        low, high = low / 2, low
    for _ in range(20):
        middle = math.sqrt(low * high)
        if _work_without_waits(users, middle, seconds) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _work_without_waits(users: list[_SyntheticUser], scale: float, seconds: float) -> float:
    done = 0.0
    for person in users:
        time = 0.0
        for index in itertools.count():
            think, gpu, cpu = person[index]
            time += think * scale
            if time >= seconds:
                break
            length = gpu + cpu
            done += gpu * min(1.0, (seconds - time) / length)
            time += length
    return done


def _memory_sizes(seed: int, count: int, total: float, device: int) -> list[int]:
    """Log-normal sizes with the given sum, as far as the bounds of one notebook allow it."""
    draw = Random(f"memory {seed}")
    least, most = MIN_MEMORY_FRACTION * device, MAX_MEMORY_FRACTION * device
    sizes = [math.exp(draw.gauss(0.0, MEMORY_SIGMA)) for _ in range(count)]
    for _ in range(50):
        factor = total / sum(sizes)
        sizes = [min(most, max(least, size * factor)) for size in sizes]
    return [int(size) for size in sizes]


def _restart_times(seed: int, index: int, per_day: float, seconds: float) -> tuple[float, ...]:
    draw = Random(f"deaths {seed} {index}")
    times: list[float] = []
    time = 0.0
    while per_day > 0 and (time := time + draw.expovariate(per_day / 86400.0)) < seconds:
        times.append(time)
    return tuple(times)
