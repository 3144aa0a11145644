"""`jupyter gpushare simulate`: policies compared in virtual time, on generated or recorded notebooks."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import units
from ..config.arguments import count, number, size

if TYPE_CHECKING:
    from ..simulation.workloads.workload import DeviceModel, Workload

DEFAULT_DEVICES, DEFAULT_MEMORY_BYTES, DEFAULT_LINK_GB_PER_SECOND, DEFAULT_HOURS, DEFAULT_SEED = (
    1,
    80 * 10**9,
    50.0,
    24.0,
    1,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `simulate` sub-command."""
    add = parser.add_argument
    add(
        "--trace",
        default="notebooks:20",
        help="notebooks:N (generated), openb:PATH (Alibaba's pods, CSV), or a FILE of 'jupyter gpushare record'",
    )
    add(
        "--policy",
        action="append",
        metavar="NAME[:SETTING=VALUE,…]",
        help="repeat to compare, for example fcfs and fcfs:idle_release=5,cell_linger=60 (default: the default policy)",
    )
    add("--set", action="append", default=[], metavar="SETTING=VALUE", help="for all policies; repeatable")
    add("--load", type=number(0.001, 100), default=0.8, help="of notebooks:N: offered GPU load per device (0.8)")
    add("--devices", type=count(1, 10_000), help="how many (1, or what the trace has or needs)")
    add("--device-memory", type=size, help="of each device (80GB, or what the trace has)")
    add("--link", type=number(0.001, 10_000), help="GB/s of each device's link, each way (50)")
    add("--memory", type=number(0.001, 100), default=2.0, help="of notebooks:N together, over the devices' (2)")
    add(
        "--memory-mode",
        choices=["unified", "swap"],
        default="unified",
        help="unified: a turn is over when what must leave has left; swap: that leaves beside what comes",
    )
    add("--jobs", type=count(0, 100_000), default=0, help="endless training jobs beside notebooks:N (0)")
    add("--tenants", type=count(1, 100_000), default=1, help="how many users own notebooks:N (1)")
    add("--deaths", type=number(0, 10_000), default=0.0, help="how often a day a notebook's process dies (0)")
    add("--device-failures", type=number(0, 10_000), default=0.0, help="how often a day each device fails (0)")
    add("--longest-cell", type=number(0.02, 1000), default=2.0, help="hours; longer cells are cut there (2)")
    add("--hours", type=number(0.0001, 100_000), help="simulated hours (24, or as long as was recorded)")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=count(0, 1 << 62), action="append", help="repeat to put several together (1)")
    seeds.add_argument("--seeds", type=count(1, 10_000), help="so many seeds, from 1 on")
    add("--json", action="store_true", help="the figures as JSON, see docs/explanation/simulator.md")
    add("--html", metavar="FILE", help="write a report with plots there as well")


def main(args: argparse.Namespace) -> int:
    """0; 1 when the report cannot be written; 2 when the arguments or the trace are not allowed."""
    from ..simulation import experiment
    from ..simulation.reports import html_report, text_report

    try:
        settings, own = _split_settings(args.set)
        args.device_memory = own.get("device_memory", args.device_memory)
        variants = [experiment.parse_variant(name, settings) for name in args.policy or [experiment.DEFAULT_POLICY]]
        seeds = list(range(1, args.seeds + 1)) if args.seeds else args.seed or [DEFAULT_SEED]
        make, seconds, parameters = _workload_factory(args, own.get("inflight_window"))
        if args.html:
            html_report.require_plotly()
            open(args.html, "ab").close()  # found out now, not after hours
        with _progress_bar(len(seeds) * len(variants) * seconds) as watch:
            compared = experiment.compare(make, seeds, variants, seconds, watch, parameters)
    except (ValueError, argparse.ArgumentTypeError, html_report.PlotlyMissing, OSError) as error:
        return _report_failure(error, 2)
    if args.html:
        try:
            Path(args.html).write_text(
                html_report.render_page(compared.figures, compared.pooled, compared.timelines), "utf-8"
            )
        except OSError as error:
            return _report_failure(error, 1)
    if args.json:
        print(json.dumps(compared.figures))
    else:
        from rich.console import Console

        Console().print(text_report.render(compared.figures))
    return 0


def _report_failure(error: Exception, status: int) -> int:
    if isinstance(error, OSError):
        error = OSError(f"{error.filename}: {error.strerror or error}")
    print(f"jupyter gpushare simulate: {error}", file=sys.stderr)
    return status


def _split_settings(pairs: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """What `--set` says to the core, and of the traits that are the simulator's own."""
    core: dict[str, str] = {}
    own: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.removeprefix("c.").removeprefix("GpuShare.").partition("=")
        if not separator or not name or not value:
            raise ValueError(f"--set {pair!r} is not of the form setting=value")
        if name == "device_memory":
            own[name] = units.parse_size(value)
        elif name == "inflight_window":
            own[name] = number(0.001, 10)(value)
        else:
            core[name] = value
    return core, own


def _workload_factory(
    args: argparse.Namespace, window: float | None
) -> tuple[Callable[[int], Workload], float, dict[str, object]]:
    """What makes the workload of a seed; for how many seconds; and what the figures say of it."""
    from dataclasses import replace

    from ..simulation.workloads import openb_trace, synthetic_notebooks, traces
    from ..simulation.workloads.workload import Costs, DeviceModel, Workload, with_outages

    costs = Costs() if window is None else replace(Costs(), drain=0.65 * window)
    overlap = args.memory_mode == "swap"
    memory, link = args.device_memory or DEFAULT_MEMORY_BYTES, (args.link or DEFAULT_LINK_GB_PER_SECOND) * 1e9
    kind, _, rest = args.trace.partition(":")
    if kind == "notebooks":
        notebook_count = _notebook_count(args.trace, rest)
        seconds = (args.hours or DEFAULT_HOURS) * 3600.0
        devices = (DeviceModel(memory, link),) * (args.devices or DEFAULT_DEVICES)

        def make(seed: int) -> Workload:
            return synthetic_notebooks.generate_workload(
                notebook_count,
                load=args.load,
                seconds=seconds,
                devices=with_outages(devices, args.device_failures, seconds, seed),
                seed=seed,
                jobs=args.jobs,
                oversubscription=args.memory,
                users=args.tenants,
                restarts_per_day=args.deaths,
                max_cell_seconds=args.longest_cell * 3600.0,
                costs=costs,
                overlap=overlap,
            )

        return make, seconds, {"load": args.load, "jobs": args.jobs, **_device_parameters(devices)}
    if kind == "openb":
        seconds = (args.hours or DEFAULT_HOURS) * 3600.0
        trace = openb_trace.read(rest, seconds, memory)
    else:
        trace = traces.read(args.trace)
        seconds = args.hours * 3600.0 if args.hours else trace.seconds or DEFAULT_HOURS * 3600.0
    devices = tuple(DeviceModel(args.device_memory or d.memory, _link_bandwidth(args, d.link)) for d in trace.devices)
    if args.devices or not devices:
        one = devices[0] if devices else DeviceModel(memory, link)
        devices = (one,) * (args.devices or traces.needed_devices(trace.participants, one.memory))

    def recorded(seed: int) -> Workload:
        broken = with_outages(devices, args.device_failures, seconds, seed)
        return Workload(trace.name, broken, trace.participants, costs, overlap)

    return recorded, seconds, _device_parameters(devices)


def _link_bandwidth(args: argparse.Namespace, link: float | None) -> float:
    return float(args.link * 1e9 if args.link else link or DEFAULT_LINK_GB_PER_SECOND * 1e9)


def _device_parameters(devices: tuple[DeviceModel, ...]) -> dict[str, object]:
    return {"devices": len(devices), "device_memory": devices[0].memory, "link": devices[0].link}


def _notebook_count(trace: str, number: str) -> int:
    if number.isdecimal() and 1 <= int(number) <= 100_000:
        return int(number)
    raise ValueError(f"--trace {trace!r}: allowed is notebooks:N with N from 1 to 100000")


@contextlib.contextmanager
def _progress_bar(total: float) -> Iterator[Callable[[float], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda seconds: bar.advance(task, seconds)
