"""Work on the device that waits for work of a thread that stands at the gate: the end of a turn never locks them up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .host import Host, Program, eventually

WAITS = "cuda.launch('wait_flag', flags[{0}], 1) or cuda.cuCtxSynchronize()"
SETS = "cuda.launch('set_flag', flags[{0}], 1) or cuda.cuCtxSynchronize()"


def with_flags(host: Host, *programs: Program) -> None:
    path = host.folder / "flags"
    Path(path).write_bytes(bytes(4096))
    for program in programs:
        program.run(f"flags = Flags(cuda, {str(path)!r})")


@pytest.mark.parametrize("coordinated", [True, False], ids=["coordinated", "by lock files"])
def test_a_process_whose_launch_waits_for_another_process(quick: Host, coordinated: bool) -> None:
    waits, sets = quick.program("pair"), quick.program("pair")
    other = quick.program("other")
    with_flags(quick, waits, sets)
    other.busy()
    if not coordinated:
        quick.kill_coordinator()
        killed = time.monotonic_ns()
        waits.run("cuda.spin(1)")
        eventually(lambda: any(e.begin_ns > killed for e in quick.executions(waits)))
    for number in range(3):
        pair = (waits, sets) if number % 2 == 0 else (sets, waits)
        began = time.monotonic_ns()
        pair[0].start(WAITS.format(number))
        if coordinated:  # the turn is over and cannot end: the other half stands at the closed gate
            eventually(lambda: quick.phase("pair") in ("draining", "overrun"))
        else:
            eventually(lambda: pid_is_draining(quick, pair[0], began))  # noqa: B023 - called before the next round
        pair[1].start(SETS.format(number))
        assert pair[1].result() == 0
        assert pair[0].result() == 0
    finished = time.monotonic_ns()
    eventually(lambda: any(e.begin_ns > finished for e in quick.executions(other)))
    other.stop()
    assert quick.overlap([waits, sets], [other]) == 0


def pid_is_draining(host: Host, program: Program, moment: int) -> bool:
    """Whether the last turn of the program, by the shim's log, has ended without having drained."""
    deadline = 0.2
    opened = [line for line in host.log_text().splitlines() if f"[{program.pid}]" in line and "turn" in line]
    return bool(opened) and "drained" not in opened[-1] and time.monotonic_ns() > moment + deadline * 1e9


def test_two_threads_of_one_process(quick: Host) -> None:
    both, other = quick.program("both"), quick.program("other")
    with_flags(quick, both)
    other.busy()
    both.run("streams = [cuda.stream(1), cuda.stream(1)]; results = []")
    for number in range(3):
        both.run(
            "waits = threading.Thread(target=lambda: results.append("
            f"cuda.here() or cuda.launch('wait_flag', flags[{number}], 1, stream=streams[0])"
            " or cuda.cuStreamSynchronize(c_void_p(streams[0])))); waits.start()"
        )
        eventually(lambda: quick.phase("both") in ("draining", "overrun"))
        both.start(f"cuda.launch('set_flag', flags[{number}], 1, stream=streams[1]) or waits.join(10)")
        assert both.result() is None
        assert both.run("results.pop()") == 0
    other.stop()
    assert quick.overlap([both], [other]) == 0


def test_pairs_that_wait_for_each_other_all_the_time(quick: Host) -> None:
    """As the ranks of a training job do, beside a neighbour."""
    pair = [quick.program("pair"), quick.program("pair")]
    other = quick.program("other")
    with_flags(quick, *pair)
    other.busy()
    for rank, program in enumerate(pair):
        program.run(
            "def ring(rounds):\n"
            "    for step in range(1, rounds + 1):\n"
            f"        check(cuda.launch('set_flag', flags[{rank} * 512 + step], 1))\n"
            f"        check(cuda.launch('wait_flag', flags[{1 - rank} * 512 + step], 1))\n"
            "        check(cuda.spin(1))\n"
            "        check(cuda.cuCtxSynchronize())\n"
        )
    for program in pair:
        program.start("ring(100)")
    for program in pair:
        program.result(30)
    other.stop()
    assert quick.overlap(pair, [other]) == 0
