"""Demo on two Slurm nodes of this machine: notebooks share the simulated device of their node.

The demo kills the daemons of Slurm while the notebooks work, and their variables survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from traitlets.config import Config

from .. import units
from ..cluster.channel.messages import Coordinator, NodeError
from ..cluster.node_connection import CONNECTIONS
from ..cluster.settings import GpuShareCluster
from . import demo_report
from .notebooks import DemoNotebook, demo_notebooks
from .phase_recorder import PhaseRecorder
from .runner import (
    MEMORY_FRACTION,
    SIMULATED_MEMORY,
    build_result,
    print_summary,
    run_cells,
    run_together,
    running_kernel,
)
from .slurm_cluster import NODES, SlurmCluster, missing_programs

_KERNEL = "python3-gpushare-cluster"
_SNAPSHOT_SECONDS = 0.05
_KILL_SECONDS = 4.0  # after the start of the work
_OUTAGE_SECONDS = 3.0


async def run(output: str) -> int:
    """Run the demo, write report.json, and return the exit status: 0 if all results are right, else 1."""
    if missing := missing_programs():
        packages = "Debian's packages slurmctld, slurmd, slurm-client and munge, and the user root"
        print(f"jupyter gpushare demo: {', '.join(missing)} missing: --slurm needs {packages}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gs-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)  # munged refuses a folder that is private or that others may write to
        try:
            cluster = SlurmCluster(folder)
        except (OSError, subprocess.SubprocessError) as error:  # TimeoutError is an OSError
            print(f"jupyter gpushare demo: Slurm's daemons do not start: {error}", file=sys.stderr)
            return 1
        try:
            os.environ.update(_environment(folder))
            os.environ.pop("GPUSHARE_SOCKET", None)
            return await _Demo(cluster).run(Path(output))
        except (OSError, subprocess.SubprocessError, NodeError) as error:
            print(f"jupyter gpushare demo: the demo on Slurm has failed: {error}", file=sys.stderr)
            return 1
        finally:
            await asyncio.to_thread(CONNECTIONS.close)
            cluster.close()


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of the nodes, and make a kernelspec there."""
    spec = folder / "jupyter" / "kernels" / _KERNEL
    spec.mkdir(parents=True)
    metadata = {
        "kernel_provisioner": {"provisioner_name": "gpushare-remote-provisioner"},
        "supported_encryption": ["curve"],
    }
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "Python 3 (shared GPU, cluster)", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps({**content, "metadata": metadata}))
    state = {"XDG_STATE_HOME": str(folder / "server"), "JUPYTER_PATH": str(folder / "jupyter")}
    return {**state, "GPUSHARE_SIMULATE": "1", "GPUSHARE_SIM_MEMORY": str(SIMULATED_MEMORY)}


class _Demo:
    """One run on a cluster that has started."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        # Each node has an address of its own.
        addresses = {node: f"127.0.0.{number}" for number, node in enumerate(NODES, 1)}
        self._config = Config(
            {"GpuShareCluster": {"engine": cluster.engine, "nodes": list(NODES), "addresses": addresses}}
        )
        self._settings = GpuShareCluster(config=self._config)
        self._recorders: dict[str, PhaseRecorder] = {}

    async def run(self, output: Path) -> int:
        scripts = self._scripts()
        clients = {script: self._client(script) for script in scripts}
        print(f"{len(scripts)} notebooks on {len(NODES)} nodes of Slurm, each with a simulated device.", flush=True)
        async with contextlib.AsyncExitStack() as running:
            began = time.monotonic()
            starts = [self._start(running, script, clients[script]) for script in scripts]
            nodes = await run_together(scripts, starts)
            if nodes is None:
                return 1
            by_node: dict[str, list[DemoNotebook]] = defaultdict(list)
            for script, node in zip(scripts, nodes, strict=True):
                by_node[node].append(script)
                print(f"{script.name:<14} has started on {node}", flush=True)
            print(f"All kernels have started within {units.format_duration(time.monotonic() - began)}.", flush=True)
            bytes_each = int(SIMULATED_MEMORY * MEMORY_FRACTION)
            self._recorders = {node: PhaseRecorder(len(found), bytes_each) for node, found in by_node.items()}
            tasks = [asyncio.create_task(self._record(node)) for node in by_node]
            tasks.append(asyncio.create_task(self._kill_daemons()))
            work = [
                run_cells(script, clients[script], self._recorders[node])
                for script, node in zip(scripts, nodes, strict=True)
            ]
            try:
                outcomes = await run_together(scripts, work)
                if outcomes is None:
                    return 1
                await tasks.pop()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self._report(by_node, dict(zip(scripts, outcomes, strict=True)), output)

    def _scripts(self) -> list[DemoNotebook]:
        """Return two notebooks for each node."""
        scripts = demo_notebooks(int(SIMULATED_MEMORY * MEMORY_FRACTION))
        train = scripts[0]
        return [*scripts, DemoNotebook("train-2.ipynb", train.cells, train.think)]

    def _client(self, script: DemoNotebook) -> NotebookClient:
        manager = AsyncKernelManager(kernel_name=_KERNEL, config=self._config)
        return NotebookClient(script.notebook(), km=manager, timeout=300)

    async def _start(self, running: contextlib.AsyncExitStack, script: DemoNotebook, client: NotebookClient) -> str:
        """Start the kernel of a notebook, and return its node."""
        manager: Any = client.km
        await running.enter_async_context(running_kernel(script, client))
        return str(manager.provisioner.node_name)

    async def _ask(self, node: str, kind: str) -> Any:
        """Return the result of a request of this type to the coordinator of a node. Raise NodeError."""
        connection = await asyncio.to_thread(CONNECTIONS.connection, node, self._settings.command(node))
        return await asyncio.wrap_future(connection.request(Coordinator(message={"type": kind})))

    async def _record(self, node: str) -> None:
        """Record the snapshots of a node's coordinator until the task is cancelled."""
        while True:
            with contextlib.suppress(NodeError):
                self._recorders[node].on_snapshot(await self._ask(node, "status"))
            await asyncio.sleep(_SNAPSHOT_SECONDS)

    async def _kill_daemons(self) -> None:
        """Kill the daemons of Slurm while the notebooks work, and start new ones."""
        for recorder in self._recorders.values():
            await recorder.have_all_allocated.wait()
        await asyncio.sleep(_KILL_SECONDS)
        await asyncio.to_thread(self._cluster.kill_daemons)
        print("          kill -9 of slurmctld and of slurmd on both nodes; the notebooks go on", flush=True)
        await asyncio.sleep(_OUTAGE_SECONDS)
        await asyncio.to_thread(self._cluster.start_daemons)

    def _report(
        self, by_node: dict[str, list[DemoNotebook]], outcomes: dict[DemoNotebook, dict[str, Any]], output: Path
    ) -> int:
        results = {}
        for node, scripts in sorted(by_node.items()):
            recorder = self._recorders[node]
            results[node] = build_result(recorder, scripts, [outcomes[script] for script in scripts])
            print(f"\nNode {node}:")
            print("\n".join(demo_report.timeline(recorder, time.monotonic() - recorder.began)))
            print_summary(results[node])
        output.mkdir(parents=True, exist_ok=True)
        (output / "report.json").write_text(json.dumps(results, indent=2) + "\n")
        print(f"\nReport: {output / 'report.json'}")
        is_right = all(one["overlap_seconds"] == 0 and one["wrong_results"] == 0 for one in results.values())
        return 0 if is_right and len(results) == len(NODES) else 1
