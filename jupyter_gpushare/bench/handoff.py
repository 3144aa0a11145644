"""How long nobody runs when the turn changes: two busy clients, nothing to move."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from . import harness

_QUANTUM_SECONDS = 0.02
_SECONDS = 10.0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """`{"p50_us", "p99_us", "handoffs", "wake_us", "parts_us"}`: from a client's last launch to the next one's first.

    Two programs launch and wait for each launch in a tight loop, with turns of 20 ms, for `rounds` seconds (0: 10).
    `parts_us` has the medians of the parts: until the gate has closed, the work has drained and the turn is left, the
    next client has entered, and its first launch is made. `wake_us` is what this machine takes, right then, to wake one
    sleeping process; a handoff has three such steps.
    """
    seconds = float(rounds or _SECONDS)
    with harness.running_coordinator(device, "--time-quantum", str(_QUANTUM_SECONDS)) as environment:
        programs = [harness.start_bench_program(["handoff", str(seconds)], environment, shared=True) for _ in range(2)]
        results = [harness.read_result(program) for program in programs]
    wake = round(wake_up_ns() / 1000, 1)
    gaps = sorted(gap / 1000 for gap in handoffs([result["runs"] for result in results]))
    if len(gaps) < 10:
        raise RuntimeError(f"only {len(gaps)} turns changed in {seconds:g} s: the two programs did not take turns")
    p99 = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
    return {
        "p50_us": round(statistics.median(gaps), 1),
        "p99_us": round(p99, 1),
        "handoffs": len(gaps),
        "wake_us": wake,
        "parts_us": handoff_parts(results),
    }


def handoff_parts(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return how long each part of a handoff takes in microseconds; medians of those whose turns are known."""
    runs = sorted((first, last, number) for number, result in enumerate(results) for first, last in result["runs"])
    turns = [result["turns"] for result in results]
    found: list[list[int]] = []
    for before, after in itertools.pairwise(runs):
        left = next((turn for turn in turns[before[2]] if turn[0] <= before[1] <= turn[2]), None)
        entered = next((turn for turn in turns[after[2]] if turn[0] <= after[0] <= turn[2]), None)
        if before[2] != after[2] and left and entered:
            moments = [before[1], left[1], left[2], entered[0], after[0]]
            found.append([later - earlier for earlier, later in itertools.pairwise(moments)])
    names = ("close", "drain_and_leave", "enter", "first_launch")
    return {
        name: round(statistics.median(part) / 1000, 1)
        for name, part in zip(names, zip(*found, strict=True), strict=bool(found))
    }


def handoffs(programs: list[list[list[int]]]) -> list[int]:
    """Nanoseconds between the last launch of a program's run and the first of another's that follows it."""
    runs = sorted((first, last, number) for number, rows in enumerate(programs) for first, last in rows)
    return [later[0] - run[1] for run, later in itertools.pairwise(runs) if run[2] != later[2]]


def wake_up_ns(times: int = 100) -> float:
    """Nanoseconds, median, from writing to a pipe to the return of the read of a process that slept for a turn."""
    told, tell = multiprocessing.Pipe(duplex=False)
    answers, answer = multiprocessing.Pipe(duplex=False)
    sleeper = multiprocessing.get_context("spawn").Process(target=_answer_wake_ups, args=(told, answer), daemon=True)
    sleeper.start()
    taken: list[int] = []
    answers.recv()
    for _ in range(times):
        time.sleep(_QUANTUM_SECONDS)
        tell.send_bytes(time.monotonic_ns().to_bytes(8, "little"))
        taken.append(answers.recv())
    sleeper.terminate()
    sleeper.join()
    return statistics.median(taken)


def _answer_wake_ups(told: Connection, answer: Connection) -> None:
    answer.send(0)
    while True:
        written = told.recv_bytes()
        answer.send(time.monotonic_ns() - int.from_bytes(written, "little"))
