"""A coordinator and a device of a bench's own, so that nobody else's work is measured or disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..launch.kernel_env import SIMULATED_DRIVER, native_part
from ..wire import messages, program
from ..wire.client import Client, ensure_coordinator

# One client after the other, whatever they do: what most benches measure.
EXCLUSIVE_TURNS = ("--policy", "fcfs", "--sharing", "exclusive", "--idle-release", "0.25")


@contextlib.contextmanager
def running_coordinator(
    device: str, *options: str, sharing_options: tuple[str, ...] = EXCLUSIVE_TURNS
) -> Iterator[dict[str, str]]:
    """Run a coordinator with `options` that shares as `sharing_options` have it (empty: as it does by default).

    Yields the environment that leads to it. It is stopped at the end.
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
    """Start the measuring program, as a client of its own or bare."""
    command = [str(native_part("gpushare-bench")), *arguments]
    return start_program(command, environment, shared=shared)


def start_program(command: list[str], environment: dict[str, str], *, shared: bool) -> subprocess.Popen[str]:
    """Start any program that prints its figures as JSON, as a client of its own or bare.

    Its standard input ends when `result` asks for its figures.
    """
    if shared:
        command = program.argv("jupyter_gpushare", "run", "--label", "bench", "--", *command)
    elif environment.get("GPUSHARE_SIMULATE") == "1":
        environment = {**environment, "LD_LIBRARY_PATH": str(SIMULATED_DRIVER.parent)}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_result(started: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what the program printed. Raises RuntimeError when the program failed."""
    output, _ = started.communicate(timeout=120)
    if started.returncode:
        raise RuntimeError(f"gpushare-bench ended with status {started.returncode}")
    figures: dict[str, Any] = json.loads(output)
    return figures
