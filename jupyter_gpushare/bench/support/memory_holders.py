"""Programs that allocate memory on a bench's own device, and the model of the card that is simulated."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...launch.kernel_env import SIMULATED_DRIVER
from ...wire import messages, program
from ...wire.client import Client
from . import harness

CARD_NAME = "A100 40GB PCIe 4.0 x16"  # its link: 25 GB/s each way, pageable copies about half
GPU_SHARED_BYTES = 16 << 30  # part of a real card that clients share
SIZE_DIVISOR = 256  # of shared bytes, work and turns on the simulated card; it keeps their ratios
TIME_FACTOR = 100  # real seconds per modelled second, so that the host's own copies are negligible
SIMULATED_BYTES = GPU_SHARED_BYTES // SIZE_DIVISOR

_PARAMETERS = f"""\
time_scale = {TIME_FACTOR}
[device]
name = {CARD_NAME}, 1/{SIZE_DIVISOR}
memory = {SIMULATED_BYTES >> 20}MiB
context_memory = 512KiB
h2d_bandwidth = 23842MiB/s
d2h_bandwidth = 23842MiB/s
pageable_h2d_bandwidth = 11444MiB/s
pageable_d2h_bandwidth = 11444MiB/s
memory_bandwidth = 1448GiB/s
"""


class MemoryHolder:
    """Process that runs `memory_program`.

    With `shared`, the process is a client, which `jupyter gpushare run` starts with `options`.
    """

    def __init__(self, environment: dict[str, str], name: str, *options: str, shared: bool = True) -> None:
        command = program.argv("jupyter_gpushare.bench.support.memory_program")
        if shared:
            command = program.argv("jupyter_gpushare", "run", "--label", name, *options, "--", *command)
        elif environment.get("GPUSHARE_SIMULATE") == "1":
            environment = {**environment, "LD_LIBRARY_PATH": str(SIMULATED_DRIVER.parent)}
        self.label = name
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send_command(self, *command: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        self._process.stdin.flush()

    def read_answer(self) -> dict[str, Any]:
        """Read the answer to a command. Raises RuntimeError if the program has failed."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a measuring program ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run_command(self, *command: object) -> dict[str, Any]:
        self.send_command(*command)
        return self.read_answer()

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)
        if self._process.stdout:
            self._process.stdout.close()


@contextlib.contextmanager
def two_holders(
    environment: dict[str, str], size: int, piece: int, *options: str, shared: bool = True
) -> Iterator[list[MemoryHolder]]:
    """Run two programs with `size` bytes each in allocations of `piece` bytes.

    `options` and `shared` are those of `MemoryHolder`.
    """
    pair = [MemoryHolder(environment, name, *options, shared=shared) for name in ("one", "two")]
    try:
        for holder in pair:
            holder.read_answer()
            holder.run_command("hold", size, piece)
        yield pair
    finally:
        for holder in pair:
            holder.close()


def run_concurrently(holders: list[MemoryHolder], *command: object) -> list[dict[str, Any]]:
    """Send a command to all programs, let them work at the same time, and return their answers."""
    for holder in holders:
        holder.send_command(*command)
    return [holder.read_answer() for holder in holders]


def elapsed_seconds(ran: list[dict[str, Any]]) -> float:
    """Return the real seconds from the start of the first job to the end of the last."""
    return float(max(one["ended"] for one in ran) - min(one["began"] for one in ran))


def shared_bytes_and_time_factor(device: str) -> tuple[int, float]:
    """Return the shared bytes of the device, and the real seconds per modelled second."""
    return (SIMULATED_BYTES, float(TIME_FACTOR)) if device == "sim" else (GPU_SHARED_BYTES, 1.0)


@contextlib.contextmanager
def bench_host(
    device: str, *options: str, sharing_options: tuple[str, ...] = harness.EXCLUSIVE_TURNS
) -> Iterator[dict[str, str]]:
    """Run a coordinator with `options`, and the device; `sharing_options` as in `harness.running_coordinator`."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as name:
        file = Path(name) / "card"
        file.write_text(_PARAMETERS)
        given = {"GPUSHARE_SIM_CONFIG": str(file)} if device == "sim" else {}
        if device == "gpu":
            options = (*options, "--device-memory", f"{GPU_SHARED_BYTES >> 20}MiB")
        with (
            harness.environment_variables(given),
            harness.running_coordinator(device, *options, sharing_options=sharing_options) as environment,
        ):
            yield {**environment, **given}


def transferred(environment: dict[str, str], label: str) -> dict[str, float]:
    """Return the bytes and seconds of evictions and restores of the client with this label."""
    with Client(environment["GPUSHARE_SOCKET"]) as client:
        status = client.request(messages.Status())
    found = next(client for client in status["clients"] if client["label"] == label)
    return {
        f"{way}_{unit}": float(sum(process[way][unit] for process in found["processes"]))
        for way in ("evicted", "restored")
        for unit in ("bytes", "seconds")
    }


def release_turn(environment: dict[str, str], label: str) -> None:
    """End the turn of the client with this label."""
    with Client(environment["GPUSHARE_SOCKET"]) as client:
        status = client.request(messages.Status())
        found = next(client for client in status["clients"] if client["label"] == label)
        client.request(messages.Release(client=found["id"]))
