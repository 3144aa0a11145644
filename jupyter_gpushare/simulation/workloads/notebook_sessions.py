"""Generator of long sessions with rare tasks, in the manner of the trace behind NotebookOS (Carver et al., ASPLOS'26).

docs/explanation/simulator.md has the source of each figure, and the assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .synthetic_notebooks import TRAINING_GPU_FRACTION, at_quantile, split_phases
from .workload import Cell, Costs, DeviceModel, Participant, Workload

HOURS = 17.5  # of the excerpt in the paper
GPUS = ((1, 28), (4, 11), (8, 12))  # number of devices, and how many sessions of the published excerpt have so many
# Quantiles: (fraction, value), linear between them in the logarithm.
SESSION_MINUTES = ((0.0, 86.0), (0.1, 96.0), (0.25, 173.0), (0.5, 1256.0), (0.75, 2139.0), (0.9, 2445.0), (1.0, 2817.0))
FIRST_MINUTES = ((0.0, 5.0), (0.25, 12.0), (0.5, 49.0), (0.75, 151.0), (0.9, 685.0), (1.0, 2068.0))  # before any task
TASKS = ((0.0, 0.5), (0.1, 1.0), (0.5, 3.0), (0.75, 11.0), (0.9, 23.0), (0.99, 55.0), (1.0, 56.0))  # of a session
PAUSE_MINUTES = ((0.0, 1.0), (0.5, 3.0), (0.75, 9.0), (0.9, 38.0), (0.95, 90.0), (0.99, 520.0), (1.0, 1392.0))
TASK_MINUTES = (
    *((0.0, 3.0), (0.25, 6.0), (0.5, 11.0), (0.75, 21.0)),
    *((0.9, 41.0), (0.95, 79.0), (0.98, 345.0), (0.99, 961.0), (1.0, 1778.0)),
)
GIGABYTES = ((0.0, 0.5), (0.5, 1.6), (0.75, 3.8), (0.9, 4.6), (1.0, 5.0))  # on each device


def generate_sessions(
    count: int,
    *,
    seconds: float,
    devices: tuple[DeviceModel, ...],
    seed: int,
    costs: Costs | None = None,
    overlap: bool = False,
) -> Workload:
    """Return a workload with `count` sessions, which begin at random moments of `seconds`."""
    sessions = tuple(_session(Random(f"session {seed} {index}"), index, seconds) for index in range(count))
    return Workload(f"sessions:{count}", devices, sessions, costs or Costs(), overlap)


def _session(rng: Random, index: int, seconds: float) -> Participant:
    (gpus,) = rng.choices([number for number, _ in GPUS], [weight for _, weight in GPUS])
    arrives = rng.uniform(0.0, seconds)
    return Participant(
        f"session-{index}",
        tuple(_tasks(rng)),
        int(at_quantile(GIGABYTES, rng.random()) * 1e9) * gpus,
        gpus=gpus,
        arrives=arrives,
        departs=arrives + 60.0 * at_quantile(SESSION_MINUTES, rng.random()),
    )


def _tasks(rng: Random) -> Iterator[Cell]:
    for number in range(int(at_quantile(TASKS, rng.random()))):
        pause = at_quantile(PAUSE_MINUTES if number else FIRST_MINUTES, rng.random())
        length, gpu_fraction = 60.0 * at_quantile(TASK_MINUTES, rng.random()), rng.uniform(*TRAINING_GPU_FRACTION)
        yield Cell(60.0 * pause, split_phases(rng, length * gpu_fraction, length * (1 - gpu_fraction)))
