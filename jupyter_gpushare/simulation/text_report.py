"""The figures as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from .results import LENGTH_CLASSES

_CELLS = (("wait_p50", "wait p50"), ("wait_p95", "p95"), ("wait_p99", "p99"))
_SLOWDOWNS = (("slowdown_p50", "slow p50"), ("slowdown_p95", "p95"))
_MAX_NAME_CHARACTERS = 11  # characters of a policy's name in a table; longer ones are numbered and explained below


def render(figures: dict[str, Any]) -> Group:
    """What `experiment.compare` returns."""
    long = any(len(policy) > _MAX_NAME_CHARACTERS for policy in figures["policies"])
    names = {policy: f"#{n}" if long else policy for n, policy in enumerate(figures["policies"], start=1)}
    cells = _table("short: under 10 s of GPU time, medium: under 60 s; waits in seconds")
    cells.add_column("policy", no_wrap=True)
    cells.add_column("cells")
    for name in ("count", *(title for _, title in (*_CELLS, *_SLOWDOWNS)), "running"):
        cells.add_column(name, justify="right")
    totals = _table("slow: how much longer than alone; running: not finished at the end; used: of the devices' time")
    totals.add_column("policy", no_wrap=True)
    for name in ("GPU s per s", "used", "switches", "moved", "Jain", "longest wait", "unusable"):
        totals.add_column(name, justify="right")
    for policy, of in figures["policies"].items():
        for index, name in enumerate(LENGTH_CLASSES):
            one = of["cells"][name]
            row = [f"{one['count']:,}", *(format_number(one[key]) for key, _ in (*_CELLS, *_SLOWDOWNS))]
            cells.add_row(
                names[policy] if not index else "", name, *row, f"{one['unfinished']:,}", end_section=name == "long"
            )
        totals.add_row(
            names[policy],
            format_number(of["throughput"]),
            format_percent(of["utilisation"]),
            f"{of['switches']:,}",
            f"{of['bytes_moved'] / 1e12:,.2f} TB",
            format_number(of["jain"]),
            f"{format_number(of['longest_wait'])} s",
            format_percent(of["fragmentation"]),
        )
    legend = [f"{name}: {policy}" for policy, name in names.items() if name != policy]
    return Group(heading(figures), cells, totals, *legend)


def _table(caption: str) -> Table:
    """Narrow enough for all its columns in 80 characters."""
    return Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def heading(figures: dict[str, Any]) -> str:
    seeds = figures["seed"] if isinstance(figures["seed"], list) else [figures["seed"]]
    how = dict(figures["parameters"])
    words = [f"{figures['trace']}", f"{figures['seconds'] / 3600:g} simulated hours"]
    if "devices" in how:
        size, link = how.pop("device_memory") / 1e9, how.pop("link") / 1e9
        words.append(f"{how.pop('devices')} x {size:g} GB at {link:g} GB/s")
    words += [f"{name.replace('_', ' ')} {value}" for name, value in how.items()]
    words.append(f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    return f"Simulated: {'; '.join(words)}"


def format_number(value: float | None) -> str:
    if value is None:
        return "–"
    if round(value, 4) == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4f}" if abs(value) < 0.001 else f"{value:.3g}"


def format_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
