"""Time of drains with two training loops, which submit launches as far ahead as the driver allows."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from .support import harness, progress

_QUANTUM = 0.1  # seconds
_SECONDS = 10.0
_LAUNCH_NS = 500_000
_WINDOW = 0.02  # seconds
_MIN_DRAINS = 5  # with the window; without a window, a driver may take work of seconds
_DRAINED = re.compile(r"drained, epoch \d+, ([0-9.]+) ms")


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"p50_ms", "p99_ms", "window_ms", "drains", "first_ms", "unbounded_p50_ms", "throughput_ratio"}`.

    A drain lasts from the closing of the gate to the end of the submitted work.
    The bench measures `rounds` seconds (0: 10) with the default in-flight window and as long without a window.
    `first_ms` is the first drain, which finishes the work that was submitted before the other client came.
    `throughput_ratio` is the launches per second with the window over those without it.
    """
    seconds = float(rounds or _SECONDS)
    windows = progress.report_steps(
        (_WINDOW, 0.0), lambda window: f"{seconds:g} s with{'' if window else 'out'} a window"
    )
    (drains, throughput), (unbounded, throughput_unbounded) = (_run(device, seconds, window) for window in windows)
    first, *drains = drains
    drains.sort()
    return {
        "p50_ms": round(statistics.median(drains), 3),
        "p99_ms": round(drains[min(len(drains) - 1, int(len(drains) * 0.99))], 3),
        "window_ms": _WINDOW * 1000,
        "drains": len(drains),
        "first_ms": first,
        "unbounded_p50_ms": round(statistics.median(unbounded), 3),
        "throughput_ratio": round(throughput / throughput_unbounded, 4),
    }


def _run(device: str, seconds: float, window: float) -> tuple[list[float], float]:
    """Return the milliseconds of each drain, and the launches per second of both programs together."""
    options = ("--time-quantum", str(_QUANTUM), f"--GpuShare.inflight_window={window}")
    with harness.running_coordinator(device, *options) as environment:
        log = Path(environment["XDG_STATE_HOME"]) / "shim.log"
        logging = {**environment, "GPUSHARE_LOG": "debug", "GPUSHARE_LOG_FILE": str(log)}
        arguments = ["drain", str(seconds), str(_LAUNCH_NS)]
        programs = [harness.start_bench_program(arguments, logging, shared=True) for _ in range(2)]
        results = harness.read_results(programs, seconds)
        drains = [float(taken) for taken in _DRAINED.findall(log.read_text())]
    if len(drains) < (_MIN_DRAINS if window else 1):
        raise RuntimeError(f"only {len(drains)} turns ended in {seconds:g} s: the two programs did not take turns")
    elapsed_ns = max(result["end"] for result in results) - min(result["begin"] for result in results)
    return drains, sum(result["launches"] for result in results) / elapsed_ns * 1e9
