"""Command `jupyter gpushare demo`: real notebooks in real kernels share one device, or two nodes, with a report."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ..config.arguments import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command `demo` to its parser."""
    parser.add_argument("--device", choices=["sim", "gpu"], default="sim", help="the simulated device or the real GPU")
    parser.add_argument("--output", default="demo-report", help="directory of report.html and report.json")
    parser.add_argument("--slurm", action="store_true", help="share two simulated nodes of a Slurm on this machine")
    parser.add_argument(
        "--quantum",
        type=number(0.001, 86400),
        help="seconds of a turn while other clients wait (default: as in the shipped settings)",
    )


def main(args: argparse.Namespace) -> int:
    """Run the demo and return the exit status: 0 if results are right and turns never overlapped, else 1."""
    if args.slurm and (args.device != "sim" or args.quantum is not None):
        print("jupyter gpushare demo: --slurm has simulated devices and the shipped quantum only", file=sys.stderr)
        return 2
    try:  # fails before the demo instead of after it
        Path(args.output).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.output).close()
    except OSError as error:
        print(
            f"jupyter gpushare demo: the report cannot be written to {args.output}: {error.strerror}", file=sys.stderr
        )
        return 2
    try:
        if args.slurm:
            from . import cluster_demo

            return asyncio.run(_until_signal(cluster_demo.run(args.output)))
        from . import runner
    except ImportError as error:
        extras = "cluster,demo" if args.slurm else "demo"
        print(f"jupyter gpushare demo: {error}; install jupyter-gpushare[{extras}]", file=sys.stderr)
        return 2
    return asyncio.run(_until_signal(runner.run(args.device, args.output, args.quantum)))


async def _until_signal(demo: Coroutine[Any, Any, int]) -> int:
    """Run a demo, and cancel it at the first SIGINT or SIGTERM, so that it ends its processes and removes its folder.

    Return the exit status of the demo, or 128 and the number of the signal.
    """
    task = asyncio.ensure_future(demo)
    received: list[signal.Signals] = []

    def on_signal(one: signal.Signals) -> None:
        if not received:
            print("jupyter gpushare demo: interrupted; its kernels and its coordinator end", file=sys.stderr)
            task.cancel()
        received.append(one)

    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, on_signal, one)
    try:
        status = await task
    except asyncio.CancelledError:
        if not received:
            raise
    return 128 + received[0] if received else status
