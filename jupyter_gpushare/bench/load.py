"""A coordinator with many notebooks for a long time: does it keep the time, and what does it take?

The notebooks exist only on the wire (`notebooks.py`). They are faster than real ones, so the coordinator has more to do
than the same number of people would give it.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..wire import messages, program
from ..wire.client import Client
from . import harness, progress
from .synthetic_processes import MEMORY_FRACTION, Turn

PROCESSES = 4
SUBSCRIBERS = 10
LATE_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLES = 10  # looks at the coordinator's memory


def measure(device: str, rounds: int, clients: int = 200, devices: int = 4, seconds: float = 600.0) -> dict[str, Any]:
    """Times in milliseconds, `coordinator_cpu` in parts of one processor. Always on the simulated device, and once.

    `missed` turns were over by their deadline, and the next one's began more than 50 ms later. `late` is that time,
    `handoff` the same after turns that ended before a deadline. The first tenth of the time counts as the beginning.
    There are no such figures where nothing ended that way. Raises RuntimeError when a part fails.
    """
    given = {"GPUSHARE_SIM_DEVICES": str(devices)}
    with harness.environment_variables(given), harness.running_coordinator("sim", sharing_options=()) as environment:
        with Client(environment["GPUSHARE_SOCKET"]) as client:
            status = client.request(messages.Status())
        pid, memory = status["coordinator"]["pid"], status["devices"][0]["memory_total"]
        workers = _start_workers(environment, clients, int(MEMORY_FRACTION * memory))
        try:
            _await_clients(environment["GPUSHARE_SOCKET"], workers, clients)
            sizes, cpu, began = _sample_coordinator(pid, workers, seconds)
            turns = [Turn(*turn) for worker in workers for turn in harness.read_result(worker)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    late, handoffs = _turn_delays([turn for turn in turns if turn.entered_at > began])
    if not late and not handoffs:
        raise RuntimeError(f"no turn changed in {seconds:g} s")
    return {
        "clients": clients,
        "devices": devices,
        "seconds": seconds,
        "turns": len(turns),
        "deadlines": len(late),
        "missed": sum(one > LATE_SECONDS for one in late),
        **_quantiles("late", late),
        **_quantiles("handoff", handoffs),
        "coordinator_cpu": round(cpu, 3),
        "memory_begin_mib": round(sizes[0] / 2**20, 1),
        "memory_end_mib": round(sizes[-1] / 2**20, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _start_workers(environment: dict[str, str], clients: int, memory: int) -> list[subprocess.Popen[str]]:
    bounds = [clients * number // PROCESSES for number in range(PROCESSES + 1)]
    argv = program.argv("jupyter_gpushare.bench.synthetic_processes", environment["GPUSHARE_SOCKET"])
    parts = [(first, end - first, 0) for first, end in itertools.pairwise(bounds)]
    parts.append((0, 0, SUBSCRIBERS))  # by themselves: to read what they get would delay notebooks in the same process
    workers = []
    for first, count, subscribers in parts:
        words = (first, count, subscribers, memory)
        workers.append(harness.start_program([*argv, *map(str, words)], environment, shared=False))
    return workers


def _await_clients(socket: str, workers: Sequence[subprocess.Popen[str]], clients: int) -> None:
    """Return when the coordinator knows all clients. Raises RuntimeError when a worker fails."""
    with Client(socket) as client:
        while len(client.request(messages.Status())["clients"]) < clients:
            _check_workers(workers)
            time.sleep(0.2)


def _check_workers(workers: Sequence[subprocess.Popen[str]]) -> None:
    if any(worker.poll() for worker in workers):
        raise RuntimeError("a part of the load has failed")


def _sample_coordinator(
    pid: int, workers: Sequence[subprocess.Popen[str]], seconds: float
) -> tuple[list[int], float, float]:
    """Bytes of memory at each step after the first, the part of a processor since then, and when that was."""
    sizes: list[int] = []
    used = began = 0.0
    for step in progress.report_steps(range(_SAMPLES), lambda _: f"{seconds / _SAMPLES:g} s of load"):
        threading.Event().wait(seconds / _SAMPLES)
        _check_workers(workers)
        with open(f"/proc/{pid}/statm") as file:
            sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        if step == 0:
            used, began = _processor_time(pid), time.monotonic()
        elif step == _SAMPLES - 2:
            cpu = (_processor_time(pid) - used) / (time.monotonic() - began)
    return sizes, cpu, began


def _processor_time(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _turn_delays(turns: Sequence[Turn]) -> tuple[list[float], list[float]]:
    """Seconds from the deadlines of turns, and from the ends of those without, to the next turn of somebody waiting."""
    late: list[float] = []
    handoffs: list[float] = []
    of: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        of[turn.device].append(turn)
    for rows in of.values():
        for turn, later in itertools.pairwise(sorted(rows, key=lambda turn: turn.entered_at)):
            if turn.deadline and turn.left_at >= turn.deadline and later.waiting_since < turn.deadline:
                late.append(max(0.0, later.entered_at - turn.deadline))
            elif later.waiting_since < turn.left_at:
                handoffs.append(max(0.0, later.entered_at - turn.left_at))
    return late, handoffs


def _quantiles(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(1000 * value for value in values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    found = {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    return {f"{name}_{what}_ms": round(value, 2) for what, value in found.items()}
