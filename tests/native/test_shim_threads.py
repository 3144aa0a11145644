"""Tests of threads that start and end while turns begin and end: many threads, and threads with small stacks."""

from __future__ import annotations

import subprocess

import pytest

from ..driver_facts.harness import PTX
from ..support import sanitizers
from . import simlog
from .conftest import NativeHost, built_program
from .fake_coordinator import ScriptedCoordinator, wait_until

SMALL = 256 if sanitizers.KIND else 16  # KiB, about PTHREAD_STACK_MIN


@pytest.mark.parametrize(("threads", "stack"), [(200, 256), (16, SMALL)], ids=["many", "small"])
def test_ending_threads_are_drained_and_counted_exactly(
    machine: NativeHost, coordinator: ScriptedCoordinator, threads: int, stack: int
) -> None:
    argv = [str(built_program("context_teardown.c")), str(PTX), str(threads), str(stack), "5"]
    program = subprocess.Popen(
        argv, env=machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        process = coordinator.accept().welcome()
        wait_until(lambda: process.page.report.waiting > 0)
        for epoch in range(1, 13):
            process.open(epoch)
            process.wait_until_entered(epoch)
            process.drain(epoch)
            runs = simlog.read_all(machine.simlog)[program.pid]
            done = sum(run.kind == "launch" for run in runs)
            # The page has the figures a moment after the end of the turn. Then the process runs nothing more.
            wait_until(lambda done=done: process.page.report.launches == done, what=f"{done} launches")
            assert len(simlog.read_all(machine.simlog)[program.pid]) == len(runs)
        process.open(13)
        wait_until(lambda: len(simlog.read_all(machine.simlog).get(program.pid, [])) >= threads)
        output, _ = program.communicate(timeout=60)
        assert program.returncode == 0 and int(output) >= threads
    finally:
        program.kill()
        program.communicate()
