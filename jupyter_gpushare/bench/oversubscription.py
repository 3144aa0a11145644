"""Two clients with 1.8 times the device's memory that take turns, against one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

from .support import memory_holders, progress

_JOB_SECONDS = 30.0  # device time of each client's job on a whole card: six quanta of 5 s, or three sweeps of 10 s
_QUANTA_SECONDS = (5, 30)


class Run(NamedTuple):
    """Run of both clients with turns of `quantum` seconds, or one after the other if `quantum` is 0."""

    quantum: int
    is_half_busy: bool

    def __str__(self) -> str:
        how = f"side by side, turns of {self.quantum} s" if self.quantum else "one after the other"
        return f"{how}, {'busy half of the time' if self.is_half_busy else 'always busy'}"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"q5_busy", "q5_half", "q5_aim", …}`: the total time over that of one client after the other.

    `q5` figures are for quanta of 5 s.
    In `q5_busy`, clients are always busy; in `q5_half`, they alternate between 10 s with and 10 s without work.
    `q5_aim` is the smallest value of `q5_busy` that the link allows.
    `rounds` is the seconds of each job (0: 30).
    Jobs of 90 s and more, three quanta of 30 s, add the same figures for quanta of 30 s (`q30_busy` …).
    """
    mode, seconds = "swap", rounds or _JOB_SECONDS
    figures: dict[str, Any] = {
        "card": f"simulated, {memory_holders.CARD_NAME}" if device == "sim" else "real",
        "mode": mode,
        "seconds": seconds,
    }
    cap, _ = memory_holders.shared_bytes_and_time_factor(device)
    link = 25e9 if device == "sim" else None
    quanta = [quantum for quantum in _QUANTA_SECONDS if quantum == _QUANTA_SECONDS[0] or seconds >= 3 * quantum]
    runs = [Run(quantum, half) for quantum in (0, *quanta) for half in (False, True)]
    taken = {run: _run(device, run, mode, seconds) for run in progress.report_steps(runs, str)}
    for quantum in quanta:
        for half in (False, True):
            total = taken[Run(quantum, half)] / taken[Run(0, half)]
            figures[f"q{quantum}_{'half' if half else 'busy'}"] = round(total, 3)
        if link:
            divisor = memory_holders.SIZE_DIVISOR if device == "sim" else 1
            figures[f"q{quantum}_aim"] = round(1 + 1.1 * (0.95 * cap / link) / (quantum / divisor), 3)
    return figures


def _run(device: str, run: Run, mode: str, job: float) -> float:
    """Return the real seconds from the first launch to the last."""
    cap, slowed = memory_holders.shared_bytes_and_time_factor(device)
    divisor = memory_holders.SIZE_DIVISOR if device == "sim" else 1
    piece = cap // 32
    size = int(cap * 0.95 * 15 / 16) // piece * piece
    sweep = min(10 if run.is_half_busy else 0.5, job) / divisor
    seconds = job / divisor
    options = [
        "--time-quantum",
        str((run.quantum or max(_QUANTA_SECONDS)) / divisor * slowed),
        "--pinned-memory",
        f"{size >> 20}MiB",
    ]
    command = ("job", seconds, sweep, sweep * slowed if run.is_half_busy else 0)
    with (
        memory_holders.bench_host(device, *options) as environment,
        memory_holders.two_holders(environment, size, piece, "--memory-mode", mode) as programs,
    ):
        if run.quantum:
            return memory_holders.elapsed_seconds(memory_holders.run_concurrently(programs, *command))
        return memory_holders.elapsed_seconds([program.run_command(*command) for program in programs])
