"""Two clients that hold 1.8 times what the device has: both at once, against one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import memory_holders, progress

_JOB_SECONDS = 30.0  # of the device, for each client's job on a whole card: six quanta, and three uses of 10 s
_QUANTA_SECONDS = (5, 30)


class Run(NamedTuple):
    """`quantum` 0: one after the other; `half`: clients that use the device half of the time."""

    quantum: int
    is_half_busy: bool

    def __str__(self) -> str:
        how = f"side by side, turns of {self.quantum} s" if self.quantum else "one after the other"
        return f"{how}, {'busy half of the time' if self.is_half_busy else 'always busy'}"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """`{"q5_busy", "q5_half", "q5_aim", …}`: total time over one after the other, for quanta of 5 s, with clients that
    are always busy and clients that use the device for 10 s and then not for 10 s; `q5_aim` is what the link allows the
    busy ones.

    `rounds`: seconds of each job (0: 30). From 90 on the same for quanta of 30 s, `q30_busy` …: jobs of three quanta.
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
            shrunk = memory_holders.SIZE_DIVISOR if device == "sim" else 1
            figures[f"q{quantum}_aim"] = round(1 + 1.1 * (0.95 * cap / link) / (quantum / shrunk), 3)
    return figures


def _run(device: str, run: Run, mode: str, job: float) -> float:
    """Real seconds from the first launch to the last."""
    cap, slowed = memory_holders.shared_bytes_and_time_factor(device)
    shrunk = memory_holders.SIZE_DIVISOR if device == "sim" else 1
    piece = cap // 32
    size = int(cap * 0.95 * 15 / 16) // piece * piece
    sweep = min(10 if run.is_half_busy else 0.5, job) / shrunk
    seconds = job / shrunk
    options = [
        "--time-quantum",
        str((run.quantum or max(_QUANTA_SECONDS)) / shrunk * slowed),
        "--pinned-memory",
        f"{size >> 20}MiB",
    ]
    words = ("job", seconds, sweep, sweep * slowed if run.is_half_busy else 0)
    with (
        memory_holders.bench_host(device, *options) as environment,
        memory_holders.two_holders(environment, size, piece, "--memory-mode", mode) as programs,
    ):
        if run.quantum:
            return memory_holders.elapsed_seconds(memory_holders.run_together(programs, *words))
        return memory_holders.elapsed_seconds([program.run_command(*words) for program in programs])
