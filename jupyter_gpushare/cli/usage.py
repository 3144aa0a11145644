"""`jupyter gpushare usage --since 7d`: who has used the GPUs; oneself, or for admins everybody."""

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
COLUMNS = ("user", "tenant", "device", "device_name", *FIGURES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `usage` sub-command."""
    parser.add_argument("--since", default="7d", metavar="TIME", help="7d (the default), 12h, 2w, 2026-11-01 …")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON, see docs/reference/rest.md")
    form.add_argument("--csv", action="store_true", help="as comma-separated values, with a head")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """0, or 1 when no coordinator answers, 2 when it refuses or the time is none."""
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
        print("jupyter gpushare usage: the state store cannot be read, see `jupyter gpushare status`", file=sys.stderr)
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
    """As a table for a terminal, who has used most first, with a sum where there is more than one row."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    rows: list[dict[str, Any]] = sorted(usage["rows"], key=lambda row: -row["gpu_seconds"])
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(usage["since"]))
    table = Table(title=f"Since {began}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    tenants = any(row["tenant"] for row in rows)
    for column in ("user", *(["tenant"] if tenants else []), "device", *_COLUMN_TITLES):
        table.add_column(column, overflow="fold", justify="left" if column in COLUMNS else "right")
    for row in rows:
        who = [
            row["user"],
            *([row["tenant"] or ""] if tenants else []),
            f"{row['device_name']}\n{row['device']}".strip(),
        ]
        table.add_row(*map(escape, who), *_cells([row]))
    if len(rows) > 1:
        table.add_section()
        table.add_row("all", *([""] if tenants else []), "", *_cells(rows))
    return table if rows else f"Nobody has used a GPU since {began}."


_COLUMN_TITLES = ("had it", "worked", "waited", "waits", "turns", "moved out", "moved back")


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    sums = {name: sum(row[name] for row in rows) for name in FIGURES}
    return [
        *(units.format_duration(sums[name]) for name in FIGURES if name.endswith("_seconds")),
        *(str(sums[name]) for name in ("waits", "turns")),
        *(units.format_size(sums[name]) for name in FIGURES if name.endswith("_bytes")),
    ]
