"""Command `jupyter gpushare demo`: real notebooks in real kernels share one device, or two nodes, with a report."""

from __future__ import annotations

import argparse
import asyncio
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command `demo` to its parser."""
    parser.add_argument("--device", choices=["sim", "gpu"], default="sim", help="the simulated device or the real GPU")
    parser.add_argument("--output", default="demo-report", help="directory of report.html and report.json")
    parser.add_argument("--slurm", action="store_true", help="share two simulated nodes of a Slurm on this machine")
    parser.add_argument(
        "--quantum", type=float, help="seconds of a turn while other clients wait (default: as in the shipped settings)"
    )


def main(args: argparse.Namespace) -> int:
    """Run the demo and return the exit status: 0 if results are right and turns never overlapped, else 1."""
    if args.slurm and (args.device != "sim" or args.quantum is not None):
        print("jupyter gpushare demo: --slurm has simulated devices and the shipped quantum only", file=sys.stderr)
        return 2
    try:
        if args.slurm:
            from . import cluster_demo

            return asyncio.run(cluster_demo.run(args.output))
        from . import runner
    except ImportError as error:
        extras = "cluster,demo" if args.slurm else "demo"
        print(f"jupyter gpushare demo: {error}; install jupyter-gpushare[{extras}]", file=sys.stderr)
        return 2
    return asyncio.run(runner.run(args.device, args.output, args.quantum))
