"""Tests of ends of programs and of interrupts while a rival has the other turns."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ..support.polling import wait_until
from ..system.system_host import MIB, GpuProgram
from .card_host import IS_GPU, MODES, WAIT, WORKING_SET, CardHost

EXITS = 50 if IS_GPU else 8
BATCH = 10 if IS_GPU else 4  # programs at the same time
HELD = 8 * MIB
INTERRUPTS = 5  # at most on the simulated device, where one that comes in time is enough
PIECES = 8  # of the working set, which come back one after the other
PIECE = WORKING_SET // PIECES
INTERRUPT_CODE = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
def is_interrupted():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        check(cuda.spin())
        check(cuda.cuCtxSynchronize())
        return False
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
"""


def close_input(program: GpuProgram) -> None:
    """Let the program end by itself, with a thread that still works."""
    assert program.process.stdin
    program.process.stdin.close()


# Way, and exit status.
ENDS: list[tuple[Callable[[GpuProgram], None], int]] = [
    (close_input, 0),
    (lambda program: program.start("os._exit(3)"), 3),
    (lambda program: program.send(signal.SIGTERM), -signal.SIGTERM),
    (lambda program: program.send(signal.SIGKILL), -signal.SIGKILL),
]


def test_exits(host: CardHost, record_property: Callable[[str, object], None]) -> None:
    """Each program ends while it has work, in its turn or at the gate, and leaves neither a process nor memory."""
    host.begin("swap")
    witness = host.card_program("")
    rival = host.start_rival("swap", size=HELD)
    free = witness.run("cuda.info()[0]")
    ends = itertools.cycle(ENDS)
    for number in range(0, EXITS, BATCH):
        names = [f"p{each}" for each in range(number, min(EXITS, number + BATCH))]
        with ThreadPoolExecutor(BATCH) as starters:
            programs = list(starters.map(lambda name: host.card_program(name, "swap"), names))
        for program in programs:
            program.start(f"array = hold({HELD}, 1)")
        for program in programs:
            program.result(WAIT)
            program.busy()
        for program, (end, status) in zip(programs, ends, strict=False):
            end(program)
            assert program.process.wait(WAIT) == status
        wait_until(lambda: process_count(host) == 1, WAIT, what="the end of all processes but the rival's")
    wait_until(lambda: witness.run("cuda.info()[0]") >= free - HELD, WAIT, what="the memory of the programs")
    host.stop_rival(rival, size=HELD)
    record_property("exits", EXITS)


def process_count(host: CardHost) -> int:
    return sum(len(client["processes"]) for client in host.clients().values())


@pytest.mark.parametrize("mode", MODES)
def test_interrupt_of_a_restore(host: CardHost, mode: str, record_property: Callable[[str, object], None]) -> None:
    """An interrupt while memory comes back raises KeyboardInterrupt, and the memory stays right.

    In mode `unified` the gate opens once the prefetches are submitted, so an interrupt may come too late.
    """
    if mode == "swap":
        host.slow_down_restores()
    host.begin(mode)
    program = host.card_program("one", mode)
    rival = host.start_rival(mode, is_short=True)
    program.start(f"arrays = [hold({PIECE}, 7) for _ in range({PIECES})]")
    program.result(WAIT)
    program.run(INTERRUPT_CODE)
    interrupted = 0
    for _ in range(INTERRUPTS):
        host.wait_for_eviction("one")
        before = host.page(program)["restored_bytes"]
        program.start("is_interrupted()")
        wait_until(lambda before=before: is_restoring(host, program, before) or program.has_answered, WAIT, interval=0)
        program.send(signal.SIGINT)
        interrupted += program.result(WAIT)
        program.start(f"[words(array, {PIECE}) for array in arrays]")
        assert program.result(WAIT) == [[7]] * PIECES
        if interrupted and not IS_GPU:
            break
    record_property("interrupted", f"{interrupted} of {INTERRUPTS}")
    evicted = host.moved_bytes("one")
    record_property("evicted_bytes", evicted)
    host.stop_rival(rival)
    assert evicted > 0
    assert interrupted or mode == "unified"


def is_restoring(host: CardHost, program: GpuProgram, restored_bytes: int) -> bool:
    """Return whether a part of the program's memory has come back, and another part has not."""
    page = host.page(program)
    return page["restored_bytes"] > restored_bytes and page["resident"] < page["allocated"]
