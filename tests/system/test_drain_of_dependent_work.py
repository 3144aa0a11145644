"""Tests of device work that waits for work of a thread at the gate: a drain never deadlocks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages

from .system_host import MOST, GpuProgram, SystemHost, turn_intervals, wait_until


def with_flags(host: SystemHost, *programs: GpuProgram) -> None:
    path = host.folder / "flags"
    Path(path).write_bytes(bytes(4096))
    for program in programs:
        program.run(f"flags = Flags(cuda, {str(path)!r})")


@pytest.mark.parametrize("coordinated", [True, False], ids=["coordinated", "without a coordinator"])
@pytest.mark.parametrize("every", [1, 3])
def test_ranks_that_wait_for_each_other_at_every_step(
    short_quantum_host: SystemHost, coordinated: bool, every: int
) -> None:
    """Two ranks, as of a training job, wait for the device after every `every` steps; another client takes turns.

    Wherever a turn ends, one rank is likely to be in a step for which the other rank waits at the gate. A busy
    machine may run many steps in one turn, so the ranks go on until five turns have begun.
    """
    short_quantum_host.request(messages.Config(changes={"time_quantum": 0.03}))
    pair = [short_quantum_host.program("pair", part=part) for part in (MOST, 0.0)]
    other = short_quantum_host.program("other", part=MOST)
    with_flags(short_quantum_host, *pair)
    other.busy()
    for rank, program in enumerate(pair):
        program.run(
            "def train(first, last):\n"
            "    for step in range(first, last + 1):\n"
            f"        check(cuda.launch('set_flag', flags[{rank} * 512 + step], 1))\n"
            f"        check(cuda.launch('wait_flag', flags[{1 - rank} * 512 + step], 1))\n"
            "        check(cuda.spin(1))\n"
            f"        check(cuda.cuCtxSynchronize() if step % {every} == 0 else 0)\n"
        )
    if not coordinated:
        short_quantum_host.kill_coordinator()
        killed = time.monotonic_ns()
        wait_until(lambda: short_quantum_host.worked_since(killed + int(2e9), other))
    turns: list[tuple[int, int, int]] = []
    for first in range(1, 400, 120):
        for program in pair:
            program.start(f"train({first}, {first + 119})")
        for program in pair:
            program.result()
        turns = turn_intervals(short_quantum_host.launches(*pair), short_quantum_host.launches(other))
        if len(turns) >= 5:
            break
    other.stop()
    assert short_quantum_host.overlap(pair, [other]) == 0
    assert len(turns) >= 5


def test_a_callback_that_needs_the_lock_of_a_thread_at_the_gate(short_quantum_host: SystemHost) -> None:
    """Some extensions keep Python's lock during a driver call.

    Then neither a host callback nor the turn can end before that call has returned.
    """
    program, other = (short_quantum_host.program(name, part=MOST) for name in ("keeps the lock", "other"))
    other.busy()
    program.run(
        "import ctypes\n"
        "keeping = ctypes.PyDLL('libcuda.so.1').cuLaunchKernel\n"
        "called = []\n"
        "callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(time.monotonic_ns()))\n"
        "streams = [cuda.stream(1), cuda.stream(1)]\n"
        "def work(rounds):\n"
        "    for number in range(rounds):\n"
        "        check(cuda.spin(1, stream=streams[0]))\n"
        "        check(cuda.cuLaunchHostFunc(c_void_p(streams[0]), callback, None))\n"
        "        for _ in range(3):\n"
        "            check(cuda.launch('spin', 1000000, stream=streams[1], call=keeping))\n"
        "        if number % 5 == 0:\n"
        "            check(cuda.cuStreamSynchronize(c_void_p(streams[1])))\n"
        "    for stream in streams:\n"
        "        check(cuda.cuStreamSynchronize(c_void_p(stream)))\n"
        "    return len(called)\n"
    )
    rounds, turns = 0, 0
    while turns < 5 and rounds < 3000:  # a turn ends late on a busy machine
        rounds += 300
        assert program.run("work(300)", 60) == rounds
        turns = len(turn_intervals(short_quantum_host.launches(program), short_quantum_host.launches(other)))
    other.stop()
    assert turns >= 5
    assert short_quantum_host.overlap([program], [other]) == 0
