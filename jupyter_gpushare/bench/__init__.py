"""Command `jupyter gpushare bench NAME`, which runs one of the benches and prints its figures."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from typing import Any

from ..config.arguments import count
from ..units import format_size

# name: (module, description for --help)
BENCHES = {
    "gate": ("gate", "nanoseconds per launch, without the shim and with an open gate"),
    "alloc": ("alloc", "nanoseconds per small allocation and its release, without and with the shim"),
    "drain": ("drain", "time of a drain with two training loops that take turns"),
    "overhead": ("overhead", "speed of a training loop without other clients, without and with the shim"),
    "handoff": ("handoff", "time from the last launch of one client to the first of the next, without memory to move"),
    "swap": ("swap", "GB/s of eviction and restore at changes of turns, against plain pinned copies"),
    "coexist": ("oversubscription", "two clients with 1.8 times the device's memory, against one after the other"),
    "fits": ("colocation", "two bursty clients that fit together, against the same clients without a scheduler"),
    "placement": ("placement", "unusable part of a cluster by placement strategy, on the openb trace"),
    "scale": (
        "scale",
        "microseconds per decision with 10 to 10,000 clients and per placement on 1,000 nodes, speed of a simulation",
    ),
    "load": ("load", "missed deadlines and the coordinator's use of processor and memory, with many notebooks"),
    "panel": ("panel", "cost of an update of JupyterLab's panel in a browser, and the extension's size"),
    "start": ("start", "additional time until a shared kernel has started"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command `bench` to its parser."""
    parser.add_argument(
        "name", choices=list(BENCHES), help=" ".join(f"{n}: {what}." for n, (_, what) in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--device", choices=["sim", "gpu"], default="sim", help="the simulated device or the real GPU")
    parser.add_argument(
        "--threads", type=count(1, 64), default=4, help="gate: number of threads of the second measurement"
    )
    parser.add_argument(
        "--policy", action="append", default=[], help="scale: policy, repeatable, with settings as for simulate"
    )
    parser.add_argument("--clients", type=count(2, 10_000), default=200, help="load: number of notebooks")
    parser.add_argument("--devices", type=count(2, 64), default=4, help="load: number of devices")
    parser.add_argument("--seconds", type=count(2, 86_400), default=600, help="load: duration")
    parser.add_argument(
        "--rounds", type=count(0, 100_000), default=0, help="number of repetitions; 0: the bench's own number"
    )


def main(args: argparse.Namespace) -> int:
    """Run a bench, print its figures and return the exit status: 1 if the measurement has failed."""
    module = importlib.import_module(f".{BENCHES[args.name][0]}", __package__)
    try:
        load = {"clients": args.clients, "devices": args.devices, "seconds": float(args.seconds)}
        of = {"gate": {"threads": args.threads}, "scale": {"policies": args.policy}, "load": load}
        more: dict[str, Any] = of.get(args.name, {})
        figures = module.measure(args.device, args.rounds, **more)
    except (OSError, RuntimeError) as error:
        print(f"jupyter gpushare bench {args.name}: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(figures))
        return 0
    if hasattr(module, "format_figures"):
        print("\n".join(module.format_figures(figures)))
        return 0
    for name, value in figures.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        print(f"{name:>14}  {format_size(value) if name.endswith('_bytes') else shown}")
    where = "simulated driver" if args.device == "sim" else "real GPU"
    print(f"{'on':>14}  {platform.processor() or platform.machine()}, {where}")
    return 0
