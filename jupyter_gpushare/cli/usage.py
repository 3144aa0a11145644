"""Command `jupyter gpushare usage`, which shows a user's own use of GPUs, and to admins the use of all users."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import units
from ..wire import messages
from ..wire.client import Client, CoordinatorError
from . import without_coordinator

FIGURES = ("gpu_seconds", "busy_seconds", "wait_seconds", "waits", "turns", "evicted_bytes", "restored_bytes")
COLUMNS = ("user", "tenant", "device", "device_name", *FIGURES, "orphans")
Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--since", default="7d", metavar="TIME", help="begin of the report: 7d (the default), 12h, 2w, 2026-11-01 …"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, see docs/reference/rest.md")
    form.add_argument("--csv", action="store_true", help="print comma-separated values with a header")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Print the usage, and return 0.

    The result is 1 if no coordinator answers, and 2 if the coordinator refuses or the time is invalid.
    """
    try:
        since = units.parse_since(args.since, time.time())
    except ValueError as error:
        print(f"jupyter gpushare usage: --since {error}", file=sys.stderr)
        return 2
    try:
        with Client(args.socket) as client:
            usage = client.request(messages.Usage(since=since))
    except (CoordinatorError, ValueError) as error:
        return without_coordinator.report_failure("usage", error, args.socket)
    if not usage["complete"]:
        print(
            "jupyter gpushare usage: the coordinator cannot read its state store, so usage is missing; "
            "'jupyter gpushare status' shows the reason",
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps(usage, indent=2))
    elif args.csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(usage["rows"])
    else:
        from rich.console import Console

        Console().print(render(usage))
    return 0


def render(usage: Mapping[str, Any]) -> Any:
    """Return a table for each device, and one for all devices if there are several, by descending GPU time."""
    from rich.console import Group

    rows = sorted(usage["rows"], key=lambda row: -row["gpu_seconds"])
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(usage["since"]))
    if not rows:
        return f"No use of a GPU that you may see is recorded since {since}."
    devices: dict[str, list[Row]] = {}
    for row in rows:
        devices.setdefault(f"{row['device_name']} {row['device']}".strip(), []).append(row)
    sums = {"All devices": rows} if len(devices) > 1 else {}
    tables = (_table(*group) for group in (*devices.items(), *sums.items()))
    return Group(f"Since {since}", *tables, *_orphan_lines(rows))


def _orphan_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each user with kernels that ended because no Jupyter server had adopted them."""
    from rich.markup import escape

    orphans: dict[str, int] = {}
    for row in rows:
        orphans[row["user"]] = orphans.get(row["user"], 0) + row.get("orphans", 0)
    return [
        f"{escape(user)}: kernels that ended because no Jupyter server adopted them: {count}"
        for user, count in orphans.items()
        if count
    ]


_COLUMN_TITLES = ("GPU time", "worked", "waited", "waits", "turns", "moved out", "moved back")


def _table(title: str, rows: Sequence[Row]) -> Any:
    """Return a table with a line for each user and tenant of `rows`, and a sum for several lines."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    users: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        users.setdefault((row["user"], row["tenant"] or ""), []).append(row)
    names = ("user", "tenant") if any(tenant for _, tenant in users) else ("user",)
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in (*names, *_COLUMN_TITLES):
        table.add_column(column, overflow="fold", justify="left" if column in names else "right")
    for user, parts in users.items():
        table.add_row(*map(escape, user[: len(names)]), *_cells(parts))
    if len(users) > 1:
        table.add_section()
        table.add_row("all", *[""] * (len(names) - 1), *_cells(rows))
    return table


def _cells(rows: Sequence[Row]) -> list[str]:
    sums = {name: sum(row[name] for row in rows) for name in FIGURES}
    return [
        *(units.format_duration(sums[name]) for name in FIGURES if name.endswith("_seconds")),
        *(str(sums[name]) for name in ("waits", "turns")),
        *(units.format_size(sums[name]) for name in FIGURES if name.endswith("_bytes")),
    ]
