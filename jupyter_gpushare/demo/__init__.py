"""Command `jupyter gpushare demo`: three real notebooks in three real kernels share one device, with a report."""

from __future__ import annotations

import argparse
import asyncio
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command `demo` to its parser."""
    parser.add_argument("--device", choices=["sim", "gpu"], default="sim", help="the simulated device or the real GPU")
    parser.add_argument("--output", default="demo-report", help="directory of report.html and report.json")
    parser.add_argument(
        "--quantum", type=float, help="seconds of a turn while other clients wait (default: as in the shipped settings)"
    )


def main(args: argparse.Namespace) -> int:
    """Run the demo and return the exit status: 0 if results are right and turns never overlapped, else 1."""
    try:
        from . import runner
    except ImportError as error:
        print(f"jupyter gpushare demo: {error}; install jupyter-gpushare[demo]", file=sys.stderr)
        return 2
    return asyncio.run(runner.run(args.device, args.output, args.quantum))
