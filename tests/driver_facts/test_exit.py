"""Fact about the driver (see test_facts.py): the driver ends by an exit handler that cuInit registers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..support import sanitizers
from ..support.compile_cache import cached
from .harness import environment

SOURCE = Path(__file__).resolve().parent / "exit_order.c"


def test_the_driver_ends_by_an_exit_handler_that_its_initialisation_registers(tmp_path: Path) -> None:
    """An exit handler that is younger than cuInit can still use the driver; an older one gets CUDA_ERROR_DEINITIALIZED.
    (So the handler of the shim, which is registered after cuInit, runs before the driver's.)

    Source: openucx/ucx #11275 (which handlers find the driver gone); CUDA programming guide, "Initialization" (use of
    the driver after its end is undefined). Seen on an H200.
    """
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *sanitizers.FLAGS, str(SOURCE)]
    program = cached("exit_order", [SOURCE], lambda out: [[*command, "-o", str(out), "-ldl"]])
    done = subprocess.run([str(program)], env=environment(tmp_path / "state"), capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["younger 0", "older 4"]), done.stderr
