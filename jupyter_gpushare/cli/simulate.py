"""Command `jupyter gpushare simulate`, which compares policies in virtual time on generated or recorded notebooks."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import units
from ..config.arguments import count, describe_file_failure, number, size

if TYPE_CHECKING:
    from ..simulation.experiment import RunOne
    from ..simulation.workloads.workload import DeviceModel, Workload

DEFAULT_DEVICES = 1
MAX_GPUS = 8  # of a session of sessions:N, and its default number of devices
DEFAULT_MEMORY_BYTES = 80 * 10**9
DEFAULT_LINK_GB_PER_SECOND = 50.0
DEFAULT_HOURS = 24.0
DEFAULT_SEED = 1
NOTEBOOKS_PER_DEVICE = 20  # of notebooks on nodes, for --load and --memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add(
        "--trace",
        default="notebooks:20",
        help="workload: notebooks:N (generated), sessions:N (generated, of users who mostly think), openb:PATH "
        "(Alibaba's pods, CSV), or a FILE of 'record'",
    )
    add(
        "--policy",
        action="append",
        metavar="NAME[:SETTING=VALUE,…]",
        help="policy to compare, such as fcfs:idle_release=5,cell_linger=60, or clairvoyant, a yardstick that knows "
        "the length of each cell; repeatable (default: the default policy)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="setting for all policies, such as max_wait=60 or devices.0.policy=fcfs; repeatable",
    )
    add("--load", type=number(0.001, 100), default=0.8, help="offered GPU load per device, for notebooks:N (0.8)")
    add(
        "--nodes",
        metavar="FILE",
        help="simulate the nodes in this list (CSV with the columns sn, gpu) instead of one host; pods of openb:PATH "
        "are drawn until they ask for --load of the devices. The placement of a policy is also the cluster daemon's, "
        "or with nodes_by=servers each server selects the node",
    )
    add("--notebooks", type=count(0, 100_000), default=0, help="notebooks on --nodes, in addition to the pods (0)")
    add("--devices", type=count(1, 10_000), help="number of devices (1, or the number that the trace needs)")
    add("--device-memory", type=size, help="memory of each device (80GB, or the memory in the trace)")
    add("--link", type=number(0.001, 10_000), help="bandwidth of each device's link, in GB/s for each direction (50)")
    add(
        "--memory",
        type=number(0.001, 100),
        default=2.0,
        help="memory of all notebooks over the memory of all devices, for notebooks:N (2)",
    )
    add(
        "--memory-mode",
        choices=["unified", "swap"],
        default="unified",
        help="unified: eviction ends before the next turn begins; swap: eviction overlaps with restoring",
    )
    add(
        "--mps",
        action="store_true",
        help="a control daemon of CUDA's Multi-Process Service runs, so that under sharing=packed the share of a "
        "client also bounds its part of the device's threads",
    )
    add("--jobs", type=count(0, 100_000), default=0, help="endless training jobs in addition to notebooks:N (0)")
    add("--tenants", type=count(1, 100_000), default=1, help="number of users that own notebooks:N (1)")
    add("--deaths", type=number(0, 10_000), default=0.0, help="crashes of a notebook's process per day (0)")
    add("--device-failures", type=number(0, 10_000), default=0.0, help="failures of each device per day (0)")
    add("--reruns", type=number(0, 1), default=0.0, help="fraction of a notebook's cells that ran before (0)")
    add("--longest-cell", type=number(0.02, 1000), default=2.0, help="maximum length of a cell in hours (2)")
    add("--hours", type=number(0.0001, 100_000), help="simulated hours (24, or the length of the recording)")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seed", type=count(0, 1 << 62), action="append", help="seed of random numbers; repeat to pool seeds (1)"
    )
    seeds.add_argument("--seeds", type=count(1, 10_000), help="number of pooled seeds, from seed 1 on")
    add("--json", action="store_true", help="print the figures as JSON, see docs/explanation/simulator.md")
    add("--html", metavar="FILE", help="also write a report with plots to this file")


def main(args: argparse.Namespace) -> int:
    """Simulate and print the report.

    Return 0, or 1 if the report cannot be written, or 2 for invalid arguments or an invalid trace.
    """
    from ..simulation import experiment
    from ..simulation.reports import html_report, text_report

    try:
        settings, own = _split_settings(args.set)
        args.device_memory = own.get("device_memory", args.device_memory)
        variants = [experiment.parse_variant(name, settings) for name in args.policy or [experiment.DEFAULT_POLICY]]
        seeds = list(range(1, args.seeds + 1)) if args.seeds else args.seed or [DEFAULT_SEED]
        make, seconds, parameters = _workload_factory(args, own.get("inflight_window"))
        if args.mps:
            make, parameters["mps"] = _with_mps(make), True
        run_one = None
        if args.notebooks and not args.nodes:
            raise ValueError("--notebooks needs --nodes: notebooks on one host are --trace notebooks:N")
        if any(one.nodes_by for one in variants) and not args.nodes:
            raise ValueError("nodes_by needs --nodes: one host has no nodes to select")
        if args.nodes:
            make, run_one, parameters["devices"], parameters["nodes"] = _on_nodes(args, make, seconds)
        if args.html:
            html_report.require_plotly()
            open(args.html, "ab").close()  # fails before the simulation instead of after it
        with _progress_bar(len(seeds) * len(variants) * seconds) as advance:
            compared = experiment.compare(make, seeds, variants, seconds, advance, parameters, run_one)
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
    text = describe_file_failure(error) if isinstance(error, OSError) else error
    print(f"jupyter gpushare simulate: {text}", file=sys.stderr)
    return status


def _split_settings(pairs: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split the pairs of `--set` into settings of the core and settings of the simulator."""
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
    """Return a function from a seed to its workload, the simulated seconds, and parameters for the figures."""
    from dataclasses import replace

    from ..simulation.workloads import notebook_sessions, openb_trace, traces
    from ..simulation.workloads.workload import Costs, DeviceModel, Workload, with_outages

    costs = Costs() if window is None else replace(Costs(), drain=0.65 * window)
    overlap = args.memory_mode == "swap"
    memory, link = args.device_memory or DEFAULT_MEMORY_BYTES, (args.link or DEFAULT_LINK_GB_PER_SECOND) * 1e9
    kind, _, rest = args.trace.partition(":")
    if kind == "notebooks":
        notebook_count = _notebook_count(args.trace, rest)
        seconds = (args.hours or DEFAULT_HOURS) * 3600.0
        count = _devices_of_notebooks(notebook_count) if args.nodes else args.devices or DEFAULT_DEVICES
        devices = (DeviceModel(memory, link),) * count

        def make(seed: int) -> Workload:
            return replace(_notebooks(args, notebook_count, devices, seconds, seed), costs=costs, overlap=overlap)

        return (
            make,
            seconds,
            {"load": args.load, "jobs": args.jobs, "reruns": args.reruns, **_device_parameters(devices)},
        )
    if kind == "sessions":
        count = _notebook_count(args.trace, rest)
        seconds = (args.hours or notebook_sessions.HOURS) * 3600.0
        devices = (DeviceModel(memory, link),) * (args.devices or MAX_GPUS)

        def long_sessions(seed: int) -> Workload:
            failing = with_outages(devices, args.device_failures, seconds, seed)
            return notebook_sessions.generate_sessions(
                count, seconds=seconds, devices=failing, seed=seed, costs=costs, overlap=overlap
            )

        return long_sessions, seconds, _device_parameters(devices)
    if kind == "openb":
        seconds = (args.hours or DEFAULT_HOURS) * 3600.0
        trace = openb_trace.read(rest, seconds, memory)
    else:
        trace = traces.read(args.trace)
        seconds = args.hours * 3600.0 if args.hours else trace.seconds or DEFAULT_HOURS * 3600.0
    devices = tuple(
        DeviceModel(args.device_memory or d.memory, _link_bandwidth(args, d.link), parent=d.parent)
        for d in trace.devices
    )
    if args.devices or not devices:
        one = devices[0] if devices else DeviceModel(memory, link)
        devices = (one,) * (args.devices or traces.needed_devices(trace.participants, one.memory))

    def recorded(seed: int) -> Workload:
        failing_devices = with_outages(devices, args.device_failures, seconds, seed)
        return Workload(trace.name, failing_devices, trace.participants, costs, overlap)

    return recorded, seconds, _device_parameters(devices)


def _with_mps(make: Callable[[int], Workload]) -> Callable[[int], Workload]:
    from dataclasses import replace

    return lambda seed: replace(make(seed), mps=True)


def _notebooks(
    args: argparse.Namespace, number_of_notebooks: int, devices: tuple[DeviceModel, ...], seconds: float, seed: int
) -> Workload:
    """Return a workload with generated notebooks on these devices."""
    from ..simulation.workloads import synthetic_notebooks
    from ..simulation.workloads.workload import with_outages

    return synthetic_notebooks.generate_workload(
        number_of_notebooks,
        load=args.load,
        seconds=seconds,
        devices=with_outages(devices, args.device_failures, seconds, seed),
        seed=seed,
        jobs=args.jobs,
        oversubscription=args.memory,
        users=args.tenants,
        restarts_per_day=args.deaths,
        max_cell_seconds=args.longest_cell * 3600.0,
        reruns=args.reruns,
    )


def _devices_of_notebooks(number_of_notebooks: int) -> int:
    """Return the number of devices whose load and memory notebooks on nodes have."""
    return max(1, number_of_notebooks // NOTEBOOKS_PER_DEVICE)


def _on_nodes(
    args: argparse.Namespace, make: Callable[[int], Workload], seconds: float
) -> tuple[Callable[[int], Workload], RunOne, int, int]:
    """Return the workload's function for `--nodes`, the function that runs one, and the counts of devices and nodes."""
    import functools
    from dataclasses import replace

    from ..simulation.cluster import nodes as cluster
    from ..simulation.workloads import node_list
    from ..simulation.workloads.workload import with_outages

    if args.devices or args.html:
        raise ValueError(f"--{'devices' if args.devices else 'html'} is not allowed with --nodes")
    nodes = node_list.read(args.nodes)
    total = sum(node.devices for node in nodes)

    def on_nodes(seed: int) -> Workload:
        workload = make(seed)
        model = replace(workload.devices[0], outages=())
        participants = workload.participants
        if args.trace.startswith("openb:"):
            participants = tuple(cluster.draw_pods(participants, model.memory, total, args.load, seed))
        if args.notebooks:
            few = (model,) * _devices_of_notebooks(args.notebooks)
            participants += _notebooks(args, args.notebooks, few, seconds, seed).participants
        devices = with_outages((model,) * total, args.device_failures, seconds, seed)
        return replace(workload, devices=devices, participants=participants)

    return on_nodes, functools.partial(cluster.run_nodes, nodes), total, len(nodes)


def _link_bandwidth(args: argparse.Namespace, link: float | None) -> float:
    return float(args.link * 1e9 if args.link else link or DEFAULT_LINK_GB_PER_SECOND * 1e9)


def _device_parameters(devices: tuple[DeviceModel, ...]) -> dict[str, object]:
    return {"devices": len(devices), "device_memory": devices[0].memory, "link": devices[0].link}


def _notebook_count(trace: str, number: str) -> int:
    if number.isdecimal() and 1 <= int(number) <= 100_000:
        return int(number)
    raise ValueError(f"--trace {trace!r}: allowed is {trace.partition(':')[0]}:N with N from 1 to 100000")


@contextlib.contextmanager
def _progress_bar(total: float) -> Iterator[Callable[[float], None] | None]:
    """Show a progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda seconds: bar.advance(task, seconds)
