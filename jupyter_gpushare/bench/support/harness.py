"""Harness of the benches: a coordinator of the bench's own, the simulated device or the GPU, and measuring programs.

The simulated device is the bench's own, so a measurement there neither includes nor disturbs other work.
A GPU and its lock files belong to the host, so clients of other coordinators take turns with the bench.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...launch.kernel_env import SIMULATED_DRIVER, native_part
from ...wire import messages, program
from ...wire.client import Client, ensure_coordinator

# Turns of one client at a time, which most benches measure.
EXCLUSIVE_TURNS = ("--policy", "fcfs", "--sharing", "exclusive", "--idle-release", "0.25")
MAX_ADDITIONAL_SECONDS = 120.0  # of a program, for its start and its end


@contextlib.contextmanager
def running_coordinator(
    device: str, *options: str, sharing_options: tuple[str, ...] = EXCLUSIVE_TURNS
) -> Iterator[dict[str, str]]:
    """Run a coordinator with `options` and `sharing_options`, and stop it at the end.

    Empty `sharing_options` stand for the default settings.
    Yields the environment of programs that use this coordinator.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as name:
        directory = Path(name)
        environment = {**os.environ, "GPUSHARE_SOCKET": str(directory / "c.sock"), "XDG_STATE_HOME": name}
        environment.pop("GPUSHARE_PREPARED", None)
        argv = program.argv("jupyter_gpushare", "coordinator", "--detach", *sharing_options, *options)
        if device == "sim":
            environment |= {
                "GPUSHARE_SIMULATE": "1",
                "GPUSHARE_SIM_STATE": str(directory / "devices"),
                "GPUSHARE_LOCK_DIR": str(directory / "locks"),
            }
            argv.append("--simulate")
        with environment_variables(environment):
            socket = ensure_coordinator(environment["GPUSHARE_SOCKET"], argv)
        try:
            yield environment
        finally:
            with Client(socket) as client:
                client.request(messages.Stop())


@contextlib.contextmanager
def environment_variables(environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def start_bench_program(arguments: list[str], environment: dict[str, str], *, shared: bool) -> subprocess.Popen[str]:
    """Start the measuring program, with `shared` as a client, or else without the shim."""
    command = [str(native_part("gpushare-bench")), *arguments]
    return start_program(command, environment, shared=shared)


def start_program(command: list[str], environment: dict[str, str], *, shared: bool) -> subprocess.Popen[str]:
    """Start a program that prints its figures as JSON, with `shared` as a client, or else without the shim.

    `read_results` closes the standard input of the program.
    """
    if shared:
        command = program.argv("jupyter_gpushare", "run", "--label", "bench", "--", *command)
    elif environment.get("GPUSHARE_SIMULATE") == "1":
        environment = {**environment, "LD_LIBRARY_PATH": str(SIMULATED_DRIVER.parent)}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_result(started: subprocess.Popen[str], seconds: float = 0.0) -> dict[str, Any]:
    """Return the figures that a program prints, as `read_results` does."""
    return read_results([started], seconds)[0]


def read_results(programs: list[subprocess.Popen[str]], seconds: float = 0.0) -> list[dict[str, Any]]:
    """Return the figures that each program prints after a measurement of `seconds`, and end the programs.

    Raises RuntimeError if a program fails or does not end in time.
    """
    limit = seconds + MAX_ADDITIONAL_SECONDS
    try:
        return [_read_figures(program, limit) for program in programs]
    finally:
        for program in programs:
            with program:
                program.kill()


def _read_figures(program: subprocess.Popen[str], limit: float) -> dict[str, Any]:
    try:
        output, _ = program.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a measuring program did not end within {limit:g} s") from None
    if program.returncode:
        raise RuntimeError(f"a measuring program ended with status {program.returncode}")
    figures: dict[str, Any] = json.loads(output)
    return figures
