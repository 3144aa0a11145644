"""Additional start time of a shared kernel, here or by a node agent, and of any other program; interrupt times.

The start of a kernel lasts from the request to its first answer. An interrupt lasts until the answer of its cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from ..launch.kernel_env import SHIM
from .support import harness, progress

_ROUNDS = 7
_NODE_KERNEL = "python3-node"
_PROGRAMS = 300


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"plain_ms", "shared_ms", "extra_ms", "preload_ms", "rounds"}` as medians of alternating starts.

    With the extra `cluster`, `node_ms` is the start of a shared kernel by a node agent of this host that runs already.
    `node_ratio` compares it with `shared_ms`, and `interrupt_ms` and `node_interrupt_ms` are times of interrupts.
    `preload_ms` is the shim's cost for a program that never uses the device (`/bin/true`, 300 runs each way).
    """
    rounds = rounds or _ROUNDS
    names = ["python3", "python3-gpushare", *([_NODE_KERNEL] if find_spec("cryptography") else [])]
    starts: dict[str, list[float]] = {name: [] for name in names}
    interrupts: dict[str, list[float]] = {name: [] for name in names}
    with harness.running_coordinator(device) as environment, _node_kernelspec(environment):
        for name in names:
            _measure_kernel(name, environment)  # the first start reads the disk, and starts the node agent
        for _ in progress.report_steps(range(rounds), lambda _: "starts of plain and of shared kernels"):
            for name in names:
                start, interrupt = _measure_kernel(name, environment)
                starts[name].append(start)
                interrupts[name].append(interrupt)
    plain, shared, *node = starts.values()
    of_nodes = (
        {
            "node_ms": statistics.median(node[0]) * 1000,
            "node_ratio": statistics.median(b / a for a, b in zip(shared, node[0], strict=True)),
            "interrupt_ms": statistics.median(interrupts["python3-gpushare"]) * 1000,
            "node_interrupt_ms": statistics.median(interrupts[_NODE_KERNEL]) * 1000,
        }
        if node
        else {}
    )
    return {
        "plain_ms": statistics.median(plain) * 1000,
        "shared_ms": statistics.median(shared) * 1000,
        "extra_ms": statistics.median(b - a for a, b in zip(plain, shared, strict=True)) * 1000,
        **of_nodes,
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


@contextlib.contextmanager
def _node_kernelspec(environment: dict[str, str]) -> Iterator[None]:
    """Provide a kernelspec whose kernels a node agent of this host starts."""
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    metadata = {
        "kernel_provisioner": {"provisioner_name": "gpushare-remote-provisioner"},
        "supported_encryption": ["curve"],
    }
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as name:
        folder = Path(name) / "kernels" / _NODE_KERNEL
        folder.mkdir(parents=True)
        content = {"argv": argv, "display_name": _NODE_KERNEL, "language": "python", "metadata": metadata}
        (folder / "kernel.json").write_text(json.dumps(content))
        path = os.pathsep.join(filter(None, [name, os.environ.get("JUPYTER_PATH", "")]))
        with harness.environment_variables({**environment, "JUPYTER_PATH": path}):
            yield


def _measure_kernel(name: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds until a kernel of this kernelspec answers, and those of an interrupt."""
    manager = KernelManager(kernel_name=name)
    began = time.perf_counter()
    with harness.environment_variables(environment):
        manager.start_kernel(env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        start = time.perf_counter() - began
        interrupt = _interrupt_seconds(manager, client)
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
    return start, interrupt


def _interrupt_seconds(manager: KernelManager, client: BlockingKernelClient) -> float:
    """Return the seconds between an interrupt of an endless cell and the answer of the cell."""
    cell = client.execute("import time; print('begun', flush=True); time.sleep(600)")
    while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    began = time.perf_counter()
    manager.interrupt_kernel()
    while client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != cell:
        pass
    return time.perf_counter() - began
