"""Generator of workloads with notebooks and endless training jobs.

The distributions are fixed, and docs/explanation/simulator.md has the source of each figure.
No figure may be changed to improve the results of a policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from random import Random

from .workload import Cell, Costs, DeviceModel, Participant, Workload

# Kinds of cells and their probabilities. Lengths are GPU and CPU time together without other clients, in seconds.
QUICK_PROBABILITY, MEDIUM_PROBABILITY = 0.94, 0.05  # the other cells are training
QUICK_LENGTH = (1.0, 1.3)  # median, sigma of a log-normal
MEDIUM_LENGTH = (20.0, 0.6)  # the same
# Published quantiles of training cells of a minute and more: (fraction, minutes); linear between them in the logarithm.
TRAINING_LENGTH = ((0.0, 1.0), (0.5, 5.0), (0.75, 11.0), (0.9, 32.0), (0.99, 1021.0), (1.0, 1440.0))
MAX_CELL_SECONDS = 2 * 3600.0  # longer cells are cut to this, see docs/explanation/simulator.md
GPU_FRACTION = (0.4, 1.0)  # of a quick or medium cell; uniform
TRAINING_GPU_FRACTION = (0.7, 1.0)

# GPU phases of a cell, with CPU phases between them: median in seconds, sigma of a log-normal.
GPU_PHASE = (10.0, 0.8)  # in cells of a minute and more
SHORT_PHASE = (0.5, 0.8)  # in shorter cells

# Time from the end of a cell to the next cell, without or with a break: median in seconds, sigma of a log-normal.
BREAK_PROBABILITY = 0.3
THINK = (20.0, 1.0)
BREAK = (300.0, 1.2)  # published: time between a session's cells has a median of about five minutes

RERUN_SIGMA = 0.2  # of the length of a run of a cell over that of the run before, log-normal

MEMORY_SIGMA = 0.8  # of a notebook's memory, log-normal
MIN_MEMORY_FRACTION, MAX_MEMORY_FRACTION = 0.01, 0.9  # of a device
OVERSUBSCRIPTION = 2.0  # memory of all notebooks over memory of all devices
JOB_MEMORY_FRACTION = 0.5  # of a device
JOB_PHASES = (1.0, 60.0)  # CPU seconds of a checkpoint, GPU seconds of training


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
    reruns: float = 0.0,
) -> Workload:
    """Return a workload with `count` notebooks and `jobs` endless jobs.

    Without waits, the notebooks would use the fraction `load` of the devices' time in `seconds`.
    Think times are scaled to this load, and cells are not.
    `reruns` is the fraction of cells that ran before, in about the time of their earlier run.
    `restarts_per_day` is the mean number of times a day that a client's process ends and begins again.
    """
    synthetic_users = [_SyntheticUser(seed, index, max_cell_seconds, reruns) for index in range(count)]
    scale = _think_scale(synthetic_users, load * len(devices) * seconds, seconds)
    sizes = _memory_sizes(seed, count, oversubscription * sum(device.memory for device in devices), devices[0].memory)
    participants = [
        Participant(
            f"notebook-{index}",
            _CellSequence(user, scale),
            sizes[index],
            user=str(1000 + index % users),
            restarts=_restart_times(seed, index, restarts_per_day, seconds),
        )
        for index, user in enumerate(synthetic_users)
    ]
    participants += [
        Participant(
            f"job-{index}",
            (Cell(0.0, itertools.cycle(JOB_PHASES)),),
            int(JOB_MEMORY_FRACTION * devices[0].memory),
            user=str(1000 + index % users),
            kind="job",
        )
        for index in range(jobs)
    ]
    return Workload(f"notebooks:{count}", devices, tuple(participants), costs or Costs(), overlap)


class _SyntheticUser:
    """Behaviour of one notebook's user: cells and think times, drawn at the first use and then kept."""

    def __init__(self, seed: int, index: int, max_cell_seconds: float, reruns: float) -> None:
        self._max_cell_seconds = max_cell_seconds
        self._reruns = reruns
        self._random = Random(f"notebook {seed} {index}")
        self._rerun_random = Random(f"reruns {seed} {index}")
        self.seed = f"phases {seed} {index}"
        self._drawn: list[tuple[float, float, float]] = []
        self._names: list[str] = []

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        """Return the think time before scaling, and the GPU and CPU seconds of the cell."""
        while index >= len(self._drawn):
            name, drawn = f"cell-{len(self._drawn)}" if self._reruns else "", self._draw()
            if self._drawn and self._rerun_random.random() < self._reruns:
                earlier = self._rerun_random.randrange(len(self._drawn))
                factor = _log_normal(self._rerun_random, 1.0, RERUN_SIGMA)
                _, gpu, cpu = self._drawn[earlier]
                name, drawn = self._names[earlier], (drawn[0], gpu * factor, cpu * factor)
            self._drawn.append(drawn)
            self._names.append(name)
        return self._drawn[index]

    def name(self, index: int) -> str:
        """Return the name of a cell that was drawn."""
        return self._names[index]

    def _draw(self) -> tuple[float, float, float]:
        rng = self._random
        think = _log_normal(rng, *(BREAK if rng.random() < BREAK_PROBABILITY else THINK))
        kind = rng.random()
        if kind < QUICK_PROBABILITY + MEDIUM_PROBABILITY:
            length = _log_normal(rng, *(QUICK_LENGTH if kind < QUICK_PROBABILITY else MEDIUM_LENGTH))
            gpu_fraction = rng.uniform(*GPU_FRACTION)
        else:
            length = min(training_seconds(rng.random()), self._max_cell_seconds)
            gpu_fraction = rng.uniform(*TRAINING_GPU_FRACTION)
        return think, length * gpu_fraction, length * (1 - gpu_fraction)


class _CellSequence:
    """Cells of a user for a simulation, the same in each iteration."""

    def __init__(self, user: _SyntheticUser, scale: float) -> None:
        self._user = user
        self._scale = scale

    def __iter__(self) -> Iterator[Cell]:
        rng = Random(self._user.seed)
        for index in itertools.count():
            think, gpu, cpu = self._user[index]
            yield Cell(think * self._scale, split_phases(rng, gpu, cpu), self._user.name(index))


def split_phases(rng: Random, gpu: float, cpu: float) -> list[float]:
    """Return the phases of a cell, CPU first.

    GPU phases have log-normal lengths, and the CPU time is distributed between them at random.
    """
    median, sigma = SHORT_PHASE if gpu + cpu < 60 else GPU_PHASE
    mean = median * math.exp(sigma * sigma / 2)
    count = max(1, round(gpu / mean))
    works = [_log_normal(rng, median, sigma) for _ in range(count)]
    gaps = [rng.expovariate(1.0) for _ in range(count + 1)]
    to_gpu, to_cpu = gpu / sum(works), cpu / sum(gaps)
    phases = [gaps[0] * to_cpu]
    for work, gap in zip(works, gaps[1:], strict=True):
        phases += (work * to_gpu, gap * to_cpu)
    return phases


def training_seconds(fraction: float) -> float:
    """Return the seconds of a training cell at a quantile of the published distribution."""
    return 60.0 * at_quantile(TRAINING_LENGTH, fraction)


def at_quantile(quantiles: Sequence[tuple[float, float]], fraction: float) -> float:
    """Return the value at a fraction, between the quantiles linear in the logarithm."""
    for (low, smaller), (high, larger) in itertools.pairwise(quantiles):
        if fraction <= high:
            weight = (fraction - low) / (high - low)
            return math.exp(math.log(smaller) + weight * (math.log(larger) - math.log(smaller)))
    raise ValueError(f"{fraction} is not a fraction from 0 to 1")


def _log_normal(rng: Random, median: float, sigma: float) -> float:
    return median * math.exp(rng.gauss(0.0, sigma))


def _think_scale(users: list[_SyntheticUser], target: float, seconds: float) -> float:
    """Return the factor on think times with which the notebooks, without waits, do `target` GPU seconds.

    The algorithm is a bisection.
    """
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
    for user in users:
        time = 0.0
        for index in itertools.count():
            think, gpu, cpu = user[index]
            time += think * scale
            if time >= seconds:
                break
            length = gpu + cpu
            done += gpu * min(1.0, (seconds - time) / length)
            time += length
    return done


def _memory_sizes(seed: int, count: int, total: float, device: int) -> list[int]:
    """Return log-normal sizes with the given sum, as far as the bounds of one notebook allow it."""
    rng = Random(f"memory {seed}")
    min_bytes, max_bytes = MIN_MEMORY_FRACTION * device, MAX_MEMORY_FRACTION * device
    sizes = [math.exp(rng.gauss(0.0, MEMORY_SIGMA)) for _ in range(count)]
    for _ in range(50):
        factor = total / sum(sizes)
        sizes = [min(max_bytes, max(min_bytes, size * factor)) for size in sizes]
    return [int(size) for size in sizes]


def _restart_times(seed: int, index: int, per_day: float, seconds: float) -> tuple[float, ...]:
    rng = Random(f"deaths {seed} {index}")
    times: list[float] = []
    time = 0.0
    while per_day > 0 and (time := time + rng.expovariate(per_day / 86400.0)) < seconds:
        times.append(time)
    return tuple(times)
