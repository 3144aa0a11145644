"""Time of handoffs between two busy clients without memory to move."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from .support import harness

_QUANTUM_SECONDS = 0.02
_SECONDS = 10.0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"p50_us", "p99_us", "handoffs", "wake_us", "parts_us"}` in microseconds.

    A handoff lasts from a client's last launch to the next client's first.
    Two programs launch and wait for each launch in a tight loop, with turns of 20 ms, for `rounds` seconds (0: 10).
    `parts_us` has the medians of a handoff's four parts, see `handoff_parts`.
    `wake_us` is the time in which this machine wakes a sleeping process; a handoff has three such steps.
    """
    seconds = float(rounds or _SECONDS)
    with harness.running_coordinator(device, "--time-quantum", str(_QUANTUM_SECONDS)) as environment:
        programs = [harness.start_bench_program(["handoff", str(seconds)], environment, shared=True) for _ in range(2)]
        results = harness.read_results(programs, seconds)
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
    """Return the median of each part of a handoff in microseconds, from the handoffs with known turns.

    The first part ends when the gate has closed, the second when the client has drained and left the turn.
    The third ends when the next client has entered, the fourth with its first launch.
    """
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
    """Return the nanoseconds of each handoff, from a program's last launch to the other program's first launch."""
    runs = sorted((first, last, number) for number, rows in enumerate(programs) for first, last in rows)
    return [later[0] - run[1] for run, later in itertools.pairwise(runs) if run[2] != later[2]]


def wake_up_ns(times: int = 100) -> float:
    """Return the median nanoseconds between a write to a pipe and the reader's return, after a sleep of one quantum."""
    calls, call = multiprocessing.Pipe(duplex=False)
    answers, answer = multiprocessing.Pipe(duplex=False)
    sleeper = multiprocessing.get_context("spawn").Process(target=_answer_wake_ups, args=(calls, answer), daemon=True)
    sleeper.start()
    taken: list[int] = []
    answers.recv()
    for _ in range(times):
        time.sleep(_QUANTUM_SECONDS)
        call.send_bytes(time.monotonic_ns().to_bytes(8, "little"))
        taken.append(answers.recv())
    sleeper.terminate()
    sleeper.join()
    return statistics.median(taken)


def _answer_wake_ups(calls: Connection, answer: Connection) -> None:
    answer.send(0)
    while True:
        written = calls.recv_bytes()
        answer.send(time.monotonic_ns() - int.from_bytes(written, "little"))
