"""The ledger, exact under threads: each view of what is allocated is taken from its own source, and all agree.

`GPUSHARE_TEST_OPERATIONS` is the number of operations per thread (`make stress`: a million).
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


class Books:
    """A `ledger_stress.c`: its own books, and what the driver tells it."""

    def __init__(self, environment: dict[str, str], mode: str, threads: int = THREADS) -> None:
        argv = [str(built_program("ledger_stress.c")), str(threads), str(OPERATIONS), str(ROUNDS), mode]
        self.process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def read(self) -> dict[str, int]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it ended with status {self.process.wait(WAIT_SECONDS)}"
        read: dict[str, int] = json.loads(line)
        return read

    def again(self) -> dict[str, int]:
        return self.say("r")

    def next_round(self) -> dict[str, int]:
        return self.say("\n")

    def say(self, word: str) -> dict[str, int]:
        assert self.process.stdin
        self.process.stdin.write(word)
        self.process.stdin.flush()
        return self.read()

    def agree(self, total: Any) -> dict[str, int]:
        """This round's books, once `total()`, the program's own and what it is told agree.

        Memory that was freed in a stream is given back a moment after the stream has reached that point.
        """
        mine = self.again()
        wait_until(lambda: total() == mine["bytes"], what=f"{mine} and {total()}")
        mine = self.again()
        assert mine["bytes"] == mine["driver"] == mine["used"] == total()
        return mine


@pytest.mark.timeout(120 + OPERATIONS // 1000)
@pytest.mark.parametrize("mode", ["unified", "plain"])
def test_every_view_agrees_to_the_byte(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
    machine_memory = {"GPUSHARE_SIM_MEMORY": "8GiB"}
    outside = CudaClient(
        machine.environment(**machine_memory, GPUSHARE_DISABLE="1")
    )  # the driver's books of the machine
    outside.run("cuda = Cuda()")
    books = Books(machine.environment(GPUSHARE_MEMORY_MODE=mode, **machine_memory), mode)
    process = coordinator.accept().welcome()
    process.page.control.memory_limit = 4 << 30  # what it is told is about this, not about the device
    process.open(1)
    assert books.read()["bytes"] == 0
    empty = outside.run("cuda.info()[0]")

    for number in range(1, ROUNDS + 1):
        books.next_round()
        mine = books.agree(lambda: process.page.report.allocated)
        assert mine["operations"] == THREADS * (OPERATIONS // ROUNDS) * number
        assert (mine["bytes"] > 0) == (number < ROUNDS)
        assert sum(slot.allocated for slot in process.client_page.view.slots) == mine["bytes"]
        wait_until(lambda mine=mine: empty - outside.run("cuda.info()[0]") == mine["charged"], what=str(mine))
        assert process.page.report.unmovable <= mine["bytes"]
    assert process.page.report.unmovable == 0
    assert books.process.stdin
    books.process.stdin.close()
    assert books.process.wait(WAIT_SECONDS) == 0
    books.process.stdout.close()  # type: ignore[union-attr]
    outside.end()
