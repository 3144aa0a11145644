"""Program that runs the tour's notebook as a visitor does, with the neighbour's notebook at the same time.

Use: `run_tour.py FOLDER OUT` in the environment of `binder/start`.
The program writes the notebook with its outputs to OUT.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client


def opened(path: Path) -> NotebookClient:
    notebook = nbformat.read(path, as_version=4)
    kernel = notebook.metadata.kernelspec.name
    return NotebookClient(notebook, kernel_name=kernel, timeout=60, resources={"metadata": {"path": str(path.parent)}})


def works(own: str) -> bool:
    """Return whether another client than `own` works on the device."""
    with Client() as coordinator:
        clients = coordinator.request(messages.Status())["clients"]
    return any(one["id"] != own and one["phase"] == "running" and one["gpu_seconds"] > 0.5 for one in clients)


async def until_works(own: str) -> None:
    while not await asyncio.to_thread(works, own):
        await asyncio.sleep(0.05)


async def stop(neighbour: NotebookClient, running: asyncio.Task[Any]) -> None:
    while not running.done():
        await neighbour.km.interrupt_kernel()
        await asyncio.wait([running], timeout=1.0)
    with contextlib.suppress(CellExecutionError):  # the interrupt
        await running


async def main(folder: Path, out: Path) -> None:
    tour = opened(folder / "gpushare-tour.ipynb")
    neighbour = opened(folder / "gpushare-neighbour.ipynb")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(tour.async_setup_kernel())
        for index, cell in enumerate(tour.nb.cells):
            if cell.id == "together":
                running = asyncio.create_task(neighbour.async_execute())
                stack.push_async_callback(stop, neighbour, running)
                await asyncio.wait_for(until_works(tour.km.kernel_id), 60)
            await tour.async_execute_cell(cell, index)
            if cell.id == "together-status":
                await stop(neighbour, running)
    nbformat.write(tour.nb, out)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
