"""Bench of a coordinator with many notebooks for a long time: deadlines, handoffs, processor time and memory.

The notebooks exist only on the wire (`synthetic_processes.py`).
Each notebook runs more cells than a real user, so the coordinator has more work than with as many users.
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
from .support import harness, progress
from .support.synthetic_processes import MEMORY_FRACTION, Turn

PROCESSES = 4
SUBSCRIBERS = 10
LATE_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLES = 10  # of the coordinator's memory


def measure(device: str, rounds: int, clients: int = 200, devices: int = 4, seconds: float = 600.0) -> dict[str, Any]:
    """Return times in milliseconds and `coordinator_cpu` as a fraction of one processor. Raises RuntimeError.

    The bench runs once and always on the simulated device.
    `late` is the time from a turn's deadline to the begin of the next turn, and `missed` counts times above 50 ms.
    `handoff` is the time from the end of a turn without a deadline, or before its deadline, to the next turn.
    Turns in the first tenth of the time do not count, and a kind without turns has no figures.
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
    turns = [turn for turn in turns if turn.entered_at > began]
    late, handoffs = _turn_delays(turns)
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
    argv = program.argv("jupyter_gpushare.bench.support.synthetic_processes", environment["GPUSHARE_SOCKET"])
    loads = [(first, end - first, 0) for first, end in itertools.pairwise(bounds)]
    loads.append((0, 0, SUBSCRIBERS))  # in a process of their own, because snapshots would delay notebooks in theirs
    workers = []
    for first, count, subscribers in loads:
        numbers = (first, count, subscribers, memory)
        workers.append(harness.start_program([*argv, *map(str, numbers)], environment, shared=False))
    return workers


def _await_clients(socket: str, workers: Sequence[subprocess.Popen[str]], clients: int) -> None:
    """Wait until the coordinator has all clients. Raises RuntimeError if a worker fails."""
    with Client(socket) as client:
        while len(client.request(messages.Status())["clients"]) < clients:
            _check_workers(workers)
            time.sleep(0.2)


def _check_workers(workers: Sequence[subprocess.Popen[str]]) -> None:
    if any(worker.poll() for worker in workers):
        raise RuntimeError("a process with notebooks of the bench has failed")


def _sample_coordinator(
    pid: int, workers: Sequence[subprocess.Popen[str]], seconds: float
) -> tuple[list[int], float, float]:
    """Return the coordinator's memory at each sample in bytes, its processor use, and the time of the first sample.

    The processor use is a fraction of one processor from the first sample to the last but one.
    """
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
    """Return the seconds from deadlines to the next turns, and from ends without a deadline to the next turns.

    A next turn counts if its client waited before.
    """
    late: list[float] = []
    handoffs: list[float] = []
    turns_by_device: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        turns_by_device[turn.device].append(turn)
    for rows in turns_by_device.values():
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
