"""Report for a terminal: tables of the figures, and the text forms of numbers that the HTML report also uses."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from ..clairvoyant import Clairvoyant
from .results import LENGTH_CLASSES

_CELLS = (("wait_p50", "wait p50"), ("wait_p95", "p95"), ("wait_p99", "p99"))
_SLOWDOWNS = (("slowdown_p50", "slow p50"), ("slowdown_p95", "p95"))
NODES = "nodes"  # parameter of a simulation with nodes: their number
_MAX_NAME_CHARACTERS = 11  # of a policy's name in a table; longer names are numbered and listed below the table


def render(figures: dict[str, Any]) -> Group:
    """Return the tables of the figures of `experiment.compare`."""
    long = any(len(policy) > _MAX_NAME_CHARACTERS for policy in figures["policies"])
    names = {policy: f"#{n}" if long else policy for n, policy in enumerate(figures["policies"], start=1)}
    cells = _table("short: under 10 s of GPU time, medium: under 60 s; waits in seconds")
    cells.add_column("policy", no_wrap=True)
    cells.add_column("cells")
    for name in ("count", *(title for _, title in (*_CELLS, *_SLOWDOWNS)), "running"):
        cells.add_column(name, justify="right")
    totals = _table("slow: duration over that without other clients; running: at the end; used: of the devices' time")
    totals.add_column("policy", no_wrap=True)
    for name in ("GPU s per s", "used", "switches", "moved", "Jain", "longest wait", "unusable"):
        totals.add_column(name, justify="right")
    for policy, results in figures["policies"].items():
        for index, name in enumerate(LENGTH_CLASSES):
            one = results["cells"][name]
            row = [f"{one['count']:,}", *(format_number(one[key]) for key, _ in (*_CELLS, *_SLOWDOWNS))]
            cells.add_row(
                names[policy] if not index else "", name, *row, f"{one['unfinished']:,}", end_section=name == "long"
            )
        totals.add_row(
            names[policy],
            format_number(results["throughput"]),
            format_percent(results["utilisation"]),
            f"{results['switches']:,}",
            f"{results['bytes_moved'] / 1e12:,.2f} TB",
            format_number(results["jain"]),
            f"{format_number(results['longest_wait'])} s",
            format_percent(results["fragmentation"]),
        )
    mean = _table(
        "slowdown: one that takes under 1 s alone counts as 1 s long; "
        "wasted: no turn, and a client waits; awaited: for that device"
    )
    mean.add_column("policy", no_wrap=True)
    mean.add_column("mean bounded slowdown", justify="right")
    mean.add_column("wasted", justify="right")
    mean.add_column("awaited", justify="right")
    yardstick = _yardstick(figures)
    if yardstick:
        mean.add_column("over that of clairvoyant", justify="right")
    for policy, results in figures["policies"].items():
        own = results["mean_bounded_slowdown"]
        ratio = [format_number(own / yardstick if own else None)] if yardstick else []
        mean.add_row(
            names[policy], format_number(own), *(format_percent(results[key]) for key in ("wasted", "awaited")), *ratio
        )
    nodes = [_on_nodes(figures, names)] if NODES in figures["parameters"] else []
    legend = [f"{name}: {policy}" for policy, name in names.items() if name != policy]
    limits = [_limits(figures, names)] if any(one["limited"] for one in figures["policies"].values()) else []
    return Group(heading(figures), cells, totals, *limits, mean, *nodes, *legend)


def _limits(figures: dict[str, Any], names: dict[str, str]) -> Table:
    """Return the table of the time under each limit, with the client that was limited for longest."""
    table = _table("limit: seconds of work and waits under it, of all clients and of the longest limited one")
    table.add_column("policy", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for name in ("clients", "seconds", "longest"):
        table.add_column(name, justify="right")
    table.add_column("client")
    for policy, results in figures["policies"].items():
        by_reason: dict[str, dict[str, float]] = {}
        for client, found in results["limited"].items():
            for reason, seconds in found.items():
                by_reason.setdefault(reason, {})[client] = seconds
        for reason, clients in sorted(by_reason.items()):
            longest = max(clients, key=clients.__getitem__)
            totals = (f"{len(clients):,}", format_number(sum(clients.values())), format_number(clients[longest]))
            table.add_row(names[policy], reason, *totals, longest)
    return table


def _on_nodes(figures: dict[str, Any], names: dict[str, str]) -> Table:
    """Return the table that compares placements on nodes."""
    table = _table(
        "idle: without work; reserved: GPU hours if each client had its own GPUs; "
        "saved: reserved minus those of the nodes"
    )
    table.add_column("policy", no_wrap=True)
    for title in ("idle", "wait p50, short", "p95", "unusable", "refused", "reserved", "saved"):
        table.add_column(title, justify="right")
    for policy, results in figures["policies"].items():
        short, used = results["cells"]["short"], results["utilisation"]
        table.add_row(
            names[policy],
            format_percent(None if used is None else 1 - used),
            *(format_number(short[key]) for key in ("wait_p50", "wait_p95")),
            format_percent(results["fragmentation"]),
            f"{results['refused']:,}",
            *(format_number(results[f"{key}_gpu_hours"]) for key in ("reserved", "saved")),
        )
    return table


def _yardstick(figures: dict[str, Any]) -> float | None:
    """Return the mean bounded slowdown of the first clairvoyant policy, or None without one or without cells."""
    for policy, results in figures["policies"].items():
        if policy.partition(":")[0] == Clairvoyant.name:
            slowdown: float | None = results["mean_bounded_slowdown"]
            return slowdown
    return None


def _table(caption: str) -> Table:
    """Return an empty table that is narrow enough for all its columns in 80 characters."""
    return Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def heading(figures: dict[str, Any]) -> str:
    seeds = figures["seed"] if isinstance(figures["seed"], list) else [figures["seed"]]
    parameters = dict(figures["parameters"])
    items = [f"{figures['trace']}", f"{figures['seconds'] / 3600:g} simulated hours"]
    if "devices" in parameters:
        size, link = parameters.pop("device_memory") / 1e9, parameters.pop("link") / 1e9
        items.append(f"{parameters.pop('devices')} x {size:g} GB at {link:g} GB/s")
    items += [f"{name.replace('_', ' ')} {value}" for name, value in parameters.items()]
    items.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    return f"Simulated: {'; '.join(items)}"


def format_number(value: float | None) -> str:
    if value is None:
        return "–"
    if round(value, 4) == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4f}" if abs(value) < 0.001 else f"{value:.3g}"


def format_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
