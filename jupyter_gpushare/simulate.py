"""`jupyter gpushare simulate`: policies compared in virtual time, on generated or recorded notebooks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from .wire import text

DEFAULT_SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `simulate` sub-command."""
    add = parser.add_argument
    add("--trace", default="notebooks:20", help="notebooks:N (the generator)")
    add("--policy", action="append", metavar="NAME[:SETTING=VALUE,…]", help="repeat to compare (default: fcfs)")
    add("--set", action="append", default=[], metavar="SETTING=VALUE", help="a setting for all policies; repeatable")
    add("--load", type=_number(0.001, 100), default=0.8, help="offered GPU load, a fraction of each device (0.8)")
    add("--devices", type=_count(1, 10_000), default=1, help="how many (1)")
    add("--device-memory", type=_size, default=text.parse_size("80GB"), help="of each device (80GB)")
    add("--link", type=_number(0.001, 10_000), default=50.0, help="GB/s of each device's link, each way (50)")
    add("--memory", type=_number(0.001, 100), default=2.0, help="all notebooks' memory, over the devices' (2)")
    add("--memory-mode", choices=["unified", "swap"], default="unified", help="swap: memory leaves while other comes")
    add("--jobs", type=_count(0, 100_000), default=0, help="endless training jobs beside the notebooks (0)")
    add("--tenants", type=_count(1, 100_000), default=1, help="how many users own the clients (1)")
    add("--deaths", type=_number(0, 10_000), default=0.0, help="how often a day a client's process dies (0)")
    add("--longest-cell", type=_number(0.02, 1000), default=2.0, help="hours; longer cells are cut there (2)")
    add("--hours", type=_number(0.0001, 100_000), default=24.0, help="simulated hours (24)")
    add("--seed", type=_count(0, 1 << 62), action="append", help="repeat to put several together (default: 1)")
    add("--seeds", type=_count(1, 10_000), help="instead of --seed: so many, from 1 on")
    add("--json", action="store_true", help="the figures as JSON, see docs/simulator.md")


def main(args: argparse.Namespace) -> int:
    """0, or 2 when the arguments are not allowed."""
    from .simulation import experiment, notebooks
    from .simulation.workload import DeviceModel

    began = time.monotonic()
    try:
        count = _notebooks(args.trace)
        common = {}
        for pair in args.set:
            name, separator, value = pair.partition("=")
            if not separator:
                raise ValueError(f"--set {pair!r} is not of the form setting=value")
            common[name] = value
        variants = [experiment.variant(name, common) for name in args.policy or ["fcfs"]]
    except Exception as error:
        print(f"jupyter gpushare simulate: {error}", file=sys.stderr)
        return 2
    seeds = list(range(1, args.seeds + 1)) if args.seeds else args.seed or [DEFAULT_SEED]
    seconds = args.hours * 3600.0
    devices = (DeviceModel(args.device_memory, args.link * 1e9),) * args.devices

    def make(seed: int) -> Any:
        return notebooks.notebooks(
            count,
            load=args.load,
            seconds=seconds,
            devices=devices,
            seed=seed,
            jobs=args.jobs,
            oversubscription=args.memory,
            tenants=args.tenants,
            deaths=args.deaths,
            longest=args.longest_cell * 3600.0,
            overlap=args.memory_mode == "swap",
        )

    figures = experiment.compare(make, seeds, variants, seconds)
    figures["wall_seconds"] = round(time.monotonic() - began, 3)
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0


def _notebooks(trace: str) -> int:
    kind, _, number = trace.partition(":")
    if kind == "notebooks" and number.isdecimal() and 1 <= int(number) <= 100_000:
        return int(number)
    raise ValueError(f"--trace {trace!r} is unknown: allowed is notebooks:N with N from 1 to 100000")


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{word!r} is not a number from {least:g} to {most:g}")
        return value

    return number


def _count(least: int, most: int) -> Callable[[str], int]:
    def count(word: str) -> int:
        if not word.isdecimal() or not least <= int(word) <= most:
            raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from {least} to {most}")
        return int(word)

    return count


def _size(word: str) -> int:
    try:
        size = text.parse_size(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not above 0")
    return size
