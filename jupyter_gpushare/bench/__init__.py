"""`jupyter gpushare bench NAME`: the measurements that the README quotes. Times are medians, taken in one run."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from typing import Any

from ..config.arguments import count
from ..units import format_size

# name: (module, what it measures)
BENCHES = {
    "gate": ("gate", "nanoseconds per launch, bare and under an open gate"),
    "alloc": ("alloc", "nanoseconds per small allocation and its release, bare and under the shim"),
    "drain": ("drain", "from the end of a turn until its work has finished, two training loops side by side"),
    "overhead": ("overhead", "a training loop that is alone, bare and under the shim"),
    "handoff": ("handoff", "from the last launch of one client to the first of the next, nothing to move"),
    "swap": ("swap", "GB/s out of the device and back when turns change, against plain pinned copies"),
    "coexist": ("oversubscription", "two clients that together hold 1.8 times the device, against one after the other"),
    "fits": ("colocation", "two bursty clients that fit together, against nobody scheduling them"),
    "placement": ("placement", "what each placement strategy leaves unusable of a cluster, on the openb trace"),
    "scale": ("scale", "microseconds per decision with 10 to 10,000 clients, and events a second of a simulation"),
    "load": ("load", "many notebooks on several devices for ten minutes: deadlines missed, what the coordinator takes"),
    "panel": ("panel", "what an update of JupyterLab's panel costs a browser, and the extension's size"),
    "start": ("start", "how much longer a shared kernel takes to start"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `bench` sub-command."""
    parser.add_argument(
        "name", choices=list(BENCHES), help="; ".join(f"{n}: {what}" for n, (_, what) in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--device", choices=["sim", "gpu"], default="sim", help="the simulated device, or the real one")
    parser.add_argument("--threads", type=count(1, 64), default=4, help="gate: how many threads, beside one alone")
    parser.add_argument(
        "--policy", action="append", default=[], help="scale: which, repeatable; with settings as for simulate"
    )
    parser.add_argument("--clients", type=count(2, 10_000), default=200, help="load: how many notebooks")
    parser.add_argument("--devices", type=count(2, 64), default=4, help="load: on how many devices")
    parser.add_argument("--seconds", type=count(2, 86_400), default=600, help="load: for how long")
    parser.add_argument(
        "--rounds", type=count(0, 100_000), default=0, help="how often to repeat; 0: as the bench needs"
    )


def main(args: argparse.Namespace) -> int:
    """0, or 1 when the measurement could not be made."""
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
