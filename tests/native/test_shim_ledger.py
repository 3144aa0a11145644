"""Stress test of the ledger with threads: all views of the allocated memory agree, each from its own source.

`GPUSHARE_TEST_OPERATIONS` is the number of operations in each thread (`make stress`: a million).
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from ..support import tier
from .conftest import CudaClient, NativeHost, built_program
from .fake_coordinator import WAIT_SECONDS, ScriptedCoordinator, wait_until

OPERATIONS = int(os.environ.get("GPUSHARE_TEST_OPERATIONS", tier.strength("5000", "200000")))
THREADS, ROUNDS = 8, 4


class StressProgram:
    """Process of `ledger_stress.c`, which prints its own records and the driver's answers."""

    def __init__(self, environment: dict[str, str], mode: str, threads: int = THREADS) -> None:
        argv = [str(built_program("ledger_stress.c")), str(threads), str(OPERATIONS), str(ROUNDS), mode]
        self.process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def read(self) -> dict[str, int]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended with status {self.process.wait(WAIT_SECONDS)}"
        figures: dict[str, int] = json.loads(line)
        return figures

    def again(self) -> dict[str, int]:
        return self.send("r")

    def next_round(self) -> dict[str, int]:
        return self.send("\n")

    def send(self, word: str) -> dict[str, int]:
        assert self.process.stdin
        self.process.stdin.write(word)
        self.process.stdin.flush()
        return self.read()

    def agreed(self, total: Any) -> dict[str, int]:
        """Return the figures of this round, once `total()`, the program's records and the driver's answers agree.

        The shim gives memory that was freed in a stream back a moment after the stream has reached that point.
        """
        figures = self.again()
        wait_until(lambda: total() == figures["bytes"], what=f"{figures} and {total()}")
        figures = self.again()
        assert figures["bytes"] == figures["driver"] == figures["used"] == total()
        return figures


@pytest.mark.timeout(120 + OPERATIONS // 1000)
@pytest.mark.parametrize("mode", ["unified", "plain"])
def test_every_view_agrees_to_the_byte(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    machine_memory = {"GPUSHARE_SIM_MEMORY": "8GiB"}
    # Without the shim, this client gets the driver's figures for the whole device.
    bare = CudaClient(machine.environment(**machine_memory, GPUSHARE_DISABLE="1"))
    bare.run("cuda = Cuda()")
    program = StressProgram(machine.environment(GPUSHARE_MEMORY_MODE=mode, **machine_memory), mode)
    process = coordinator.accept().welcome()
    process.page.control.memory_limit = 4 << 30  # the figures are relative to this limit, not to the device
    process.open(1)
    assert program.read()["bytes"] == 0
    empty = bare.run("cuda.info()[0]")

    for number in range(1, ROUNDS + 1):
        program.next_round()
        figures = program.agreed(lambda: process.page.report.allocated)
        assert figures["operations"] == THREADS * (OPERATIONS // ROUNDS) * number
        assert (figures["bytes"] > 0) == (number < ROUNDS)
        assert sum(slot.allocated for slot in process.client_page.view.slots) == figures["bytes"]
        wait_until(lambda figures=figures: empty - bare.run("cuda.info()[0]") == figures["charged"], what=str(figures))
        assert process.page.report.unmovable <= figures["bytes"]
    assert process.page.report.unmovable == 0
    assert program.process.stdin
    program.process.stdin.close()
    assert program.process.wait(WAIT_SECONDS) == 0
    program.process.stdout.close()  # type: ignore[union-attr]
    bare.end()
