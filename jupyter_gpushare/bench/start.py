"""Additional start time of a shared kernel, from the request to its first answer, and of any other program."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from typing import Any

from jupyter_client.manager import KernelManager

from ..launch.kernel_env import SHIM
from .support import harness, progress

_ROUNDS = 7
_PROGRAMS = 300


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"plain_ms", "shared_ms", "extra_ms", "preload_ms", "rounds"}` as medians of alternating starts.

    `preload_ms` is the shim's cost for a program that never uses the device (`/bin/true`, 300 runs each way).
    """
    rounds = rounds or _ROUNDS
    plain, shared = [], []
    with harness.running_coordinator(device) as environment:
        _kernel_start_seconds("python3", environment)  # the first start reads the disk
        _kernel_start_seconds("python3-gpushare", environment)
        for _ in progress.report_steps(range(rounds), lambda _: "starts of a plain and of a shared kernel"):
            plain.append(_kernel_start_seconds("python3", environment))
            shared.append(_kernel_start_seconds("python3-gpushare", environment))
    extra = statistics.median(b - a for a, b in zip(plain, shared, strict=True))
    return {
        "plain_ms": statistics.median(plain) * 1000,
        "shared_ms": statistics.median(shared) * 1000,
        "extra_ms": extra * 1000,
        "preload_ms": preload_seconds() * 1000,
        "rounds": rounds,
    }


def preload_seconds(times: int = _PROGRAMS) -> float:
    """Return the seconds that the preloaded shim adds to a run of `/bin/true`."""
    bare = {"PATH": "/bin"}
    shared = bare | {"LD_PRELOAD": str(SHIM)}
    return statistics.median(_program_seconds(shared) - _program_seconds(bare) for _ in range(times))


def _program_seconds(environment: dict[str, str]) -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
    return time.perf_counter() - began


def _kernel_start_seconds(name: str, environment: dict[str, str]) -> float:
    """Return the seconds until a kernel of this kernel spec answers."""
    manager = KernelManager(kernel_name=name)
    began = time.perf_counter()
    with harness.environment_variables(environment):
        manager.start_kernel(env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        took = time.perf_counter() - began
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
    return took
