"""Cost of sharing for a program without other clients: a training loop without and with the shim."""

from __future__ import annotations

import importlib.util
import statistics
from typing import Any

from ..wire import program
from .support import harness, progress

_ROUNDS = 5
_SECONDS = {"sim": 2.0, "gpu": 15.0}
_LAUNCH_NS = 100_000  # on the simulated device


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"bare_per_s", "shared_per_s", "ratio", "what", "rounds"}` as medians over pairs of runs.

    On a GPU, the loop has training steps in PyTorch.
    On the simulated device, it has launches of 100 µs, submitted as far ahead as the driver allows.
    `ratio` is the median of the pairs' ratios, which is 1 if sharing costs nothing.
    Raises RuntimeError on a GPU without PyTorch.
    """
    rounds = rounds or _ROUNDS
    if device == "gpu" and importlib.util.find_spec("torch") is None:
        raise RuntimeError("the training loop of this bench needs PyTorch, which is not installed: pip install torch")
    pairs = []
    with harness.running_coordinator(device) as environment:
        for number in progress.report_steps(range(rounds), lambda _: "a training loop without and with the shim"):
            ways = (False, True) if number % 2 == 0 else (True, False)
            speeds = {shared: _speed(device, environment, shared) for shared in ways}
            pairs.append((speeds[False], speeds[True]))
    return {
        "bare_per_s": round(statistics.median(bare for bare, _ in pairs), 1),
        "shared_per_s": round(statistics.median(shared for _, shared in pairs), 1),
        "ratio": round(statistics.median(shared / bare for bare, shared in pairs), 4),
        "what": "steps of a training loop in PyTorch" if device == "gpu" else "launches of 100 µs",
        "rounds": rounds,
    }


def _speed(device: str, environment: dict[str, str], shared: bool) -> float:
    seconds = str(_SECONDS[device])
    if device == "gpu":
        command = program.argv("jupyter_gpushare.bench.support.training", seconds)
        result = harness.read_result(harness.start_program(command, environment, shared=shared))
        return float(result["steps"] / result["seconds"])
    result = harness.read_result(
        harness.start_bench_program(["drain", seconds, str(_LAUNCH_NS)], environment, shared=shared)
    )
    return float(result["launches"] / (result["end"] - result["begin"]) * 1e9)
