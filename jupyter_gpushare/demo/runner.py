"""Runner of the demo: it executes the notebooks at the same time and checks turns and results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from .. import units
from ..wire import messages, program
from ..wire.client import AsyncClient, Client, ensure_coordinator
from . import demo_report
from .notebooks import DemoNotebook, demo_notebooks
from .phase_recorder import PhaseRecorder, overlap_seconds

SIMULATED_MEMORY = 512 << 20
REAL_MEMORY = 4 << 30  # shared part of a real card, so that the card itself is never oversubscribed
MEMORY_FRACTION = 0.62  # of the device's memory, so that each notebook fits and no two do
T = TypeVar("T")
_ALIVE_SECONDS = 1.0  # between two checks of a kernel that runs no cell


async def run(device: str, output: str, quantum: float | None) -> int:
    """Run the demo, write its report and return the exit status."""
    memory = SIMULATED_MEMORY if device == "sim" else REAL_MEMORY
    with tempfile.TemporaryDirectory(prefix="gpushare-demo-") as directory:
        environment = _environment(Path(directory), device, memory)
        os.environ.update(environment)
        argv = program.argv("jupyter_gpushare", "coordinator", "--detach")
        argv += ["--time-quantum", str(quantum)] if quantum is not None else []
        argv += ["--simulate"] if device == "sim" else ["--device-memory", f"{memory >> 20}MiB"]
        # Without awaiting, so that a signal cannot come between the start and `finally`.
        socket = ensure_coordinator(environment["GPUSHARE_SOCKET"], argv)
        try:
            coordinator = await AsyncClient.connect(socket)
            try:
                return await _run_notebooks(coordinator, device, Path(output), int(memory * MEMORY_FRACTION), quantum)
            finally:
                await coordinator.close()
        finally:
            with Client(socket) as client:
                client.request(messages.Stop())


def _environment(directory: Path, device: str, memory: int) -> dict[str, str]:
    environment = {"GPUSHARE_SOCKET": str(directory / "coordinator.sock"), "XDG_STATE_HOME": str(directory)}
    if device == "sim":
        environment |= {
            "GPUSHARE_SIMULATE": "1",
            "GPUSHARE_SIM_MEMORY": str(memory),
            "GPUSHARE_SIM_STATE": str(directory / "devices"),
            "GPUSHARE_LOCK_DIR": str(directory / "locks"),
        }
    return environment


async def _run_notebooks(
    coordinator: AsyncClient, device: str, output: Path, bytes_each: int, quantum: float | None
) -> int:
    todo = demo_notebooks(bytes_each)
    recorder = PhaseRecorder(len(todo), bytes_each)
    following = asyncio.create_task(recorder.record(coordinator.subscribe()))
    turns = f", turns of {quantum:g} s" if quantum is not None else ""
    print(f"Three notebooks on one {'simulated ' if device == 'sim' else ''}device{turns}.", flush=True)
    outcomes = await run_together(todo, [_execute(script, recorder) for script in todo])
    end = time.monotonic() - recorder.began
    following.cancel()
    if outcomes is None:
        return 1
    result = build_result(recorder, todo, outcomes)
    demo_report.write(output, result, recorder, end)
    print("\n" + "\n".join(demo_report.timeline(recorder, end)) + "\n")
    print_summary(result)
    print(f"Report: {output / 'report.html'}")
    return 0 if result["overlap_seconds"] == 0 and result["wrong_results"] == 0 else 1


async def run_together(scripts: Sequence[DemoNotebook], work: Sequence[Coroutine[Any, Any, T]]) -> list[T] | None:
    """Return the results of the notebooks, or None after a failure, which is printed and ends all of the work."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [
            (script.name, task.exception())
            for script, task in zip(scripts, tasks, strict=True)
            if task.done() and task.exception()
        ]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for name, failure in failures:
        print(f"{name} failed: {failure}", file=sys.stderr)
    return None if failures else [task.result() for task in tasks]


async def _execute(script: DemoNotebook, recorder: PhaseRecorder) -> dict[str, Any]:
    """Run one notebook, and return the report of its last cell.

    The kernel has Unix sockets, because another process might take a TCP port before the kernel does.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-kernel-") as folder:
        manager = AsyncKernelManager(
            kernel_name="python3-gpushare", transport="ipc", connection_file=f"{folder}/kernel.json"
        )
        client = NotebookClient(script.notebook(), km=manager, timeout=300)
        async with running_kernel(script, client):
            return await run_cells(script, client, recorder)


@contextlib.asynccontextmanager
async def running_kernel(script: DemoNotebook, client: NotebookClient) -> AsyncIterator[None]:
    """Start the kernel of a notebook, and end the kernel with the context.

    `async_setup_kernel` of nbclient would replace the demo's handlers of signals, and end only one of the kernels.
    """
    manager: Any = client.km
    try:
        await client.async_start_new_kernel(env={**os.environ, "JPY_SESSION_NAME": script.name})
        await client.async_start_new_kernel_client()
        yield
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)


async def run_cells(script: DemoNotebook, client: NotebookClient, recorder: PhaseRecorder) -> dict[str, Any]:
    """Run the cells of a notebook whose kernel has started, and return the report of the last cell.

    The cell after the setup waits for the setup of all notebooks, because notebooks are colocated while they are small.
    """
    notebook = client.nb
    for number, cell in enumerate(notebook.cells):
        began = time.monotonic()
        try:
            await client.async_execute_cell(cell, number)
        except (CellExecutionError, DeadKernelError) as error:
            raise RuntimeError(f"cell {number + 1}: {error}") from error
        took = time.monotonic() - began
        at = time.monotonic() - recorder.began
        done = f"cell {number + 1} of {len(notebook.cells)} done in {units.format_duration(took)}"
        print(f"{at:6.1f} s  {script.name:<14} {done}", flush=True)
        if number == 0:
            await _wait_for_all_setups(client, recorder)
        elif number + 1 < len(notebook.cells):
            await asyncio.sleep(script.think)
    printed = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    line = next((line for line in printed.splitlines() if line.startswith("REPORT ")), None)
    if line is None:
        raise RuntimeError(f"the last cell has printed no REPORT line: {printed[-300:]!r}")
    reported: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
    return reported


async def _wait_for_all_setups(client: NotebookClient, recorder: PhaseRecorder) -> None:
    """Wait until all notebooks have allocated their memory. Raise RuntimeError if the kernel ends meanwhile."""
    manager: Any = client.km
    waiting = asyncio.ensure_future(recorder.have_all_allocated.wait())
    while not (await asyncio.wait([waiting], timeout=_ALIVE_SECONDS))[0]:
        if not await manager.is_alive():
            waiting.cancel()
            raise RuntimeError("cell 2: Kernel died")


def build_result(recorder: PhaseRecorder, todo: list[DemoNotebook], outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the notebooks on one device, for report.json."""
    spans = {s.name: [(b, e) for b, e in outcome["spans_ns"]] for s, outcome in zip(todo, outcomes, strict=True)}
    device = recorder.devices[0]
    clients = [
        {
            "label": script.name,
            "cells": len(script.cells),
            "gpu_seconds": recorder.clients[script.name]["gpu_seconds"],
            "wait_seconds": recorder.clients[script.name]["wait_seconds"],
            "turn_count": recorder.clients[script.name]["turn_count"],
        }
        for script in todo
    ]
    return {
        "device": f"{device['name']}, {units.format_size(device['memory_total'])} for sharing",
        "simulated": device["simulated"],
        "clients": clients,
        "overlap_seconds": overlap_seconds(spans),
        "wrong_results": sum(outcome["wrong"] for outcome in outcomes),
        "oversubscription": round(recorder.peak_allocated / device["memory_total"], 3),
    }


def print_summary(result: dict[str, Any]) -> None:
    for client in result["clients"]:
        print(
            f"{client['label']:<14} {client['cells']} cells, GPU {units.format_duration(client['gpu_seconds'])} "
            f"in {client['turn_count']} turns, waited {units.format_duration(client['wait_seconds'])}"
        )
    print(
        f"{result['device']}{' (simulated)' if result['simulated'] else ''}: memory in use "
        f"{result['oversubscription']:.2f} times the device's, turns overlapped {result['overlap_seconds']:g} s, "
        f"{result['wrong_results']} wrong results"
    )
