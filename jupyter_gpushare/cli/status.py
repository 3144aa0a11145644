"""Command `jupyter gpushare status`, which shows the devices and the clients."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .. import units
from ..cluster import start_records
from ..kernel.display.formatting import limit_line, state_line
from ..wire import messages
from ..wire.client import Client, CoordinatorError, Unreachable
from . import without_coordinator

_LEGEND = (
    "~: an estimate; the driver does not report the place of unified memory, and memory of unknown device counts in "
    "equal parts on all devices of its process"
)
_CONTEXTS_LEGEND = (
    "contexts: device memory for contexts and code, beside the allocated memory; "
    "it leaves only with a move or a hibernation, and no quota counts it"
)
_ABSENCE_NOTE = (
    "no process of the client is connected: its kernel has ended or starts, or its program has not used the GPU yet; "
    "without a process, the client ends within about a minute, with its share"
)
_RETRY_SECONDS = 1.0  # between attempts to connect to a coordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON, see docs/reference/wire.md")
    parser.add_argument("--watch", action="store_true", help="show changes until interrupted")
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Print the status, and return 0, or 1 if no coordinator answers."""
    try:
        with Client(args.socket) as client:
            first = client.request(messages.Status())
        if args.watch:
            _watch(args.socket, args.json)
        else:
            _show(_with_starts(first), args.json)
    except (CoordinatorError, ValueError) as error:
        print(f"jupyter gpushare status: {error}", file=sys.stderr)
        if isinstance(error, Unreachable):
            if not args.json:
                for line in _start_lines(_waiting_starts()):
                    print(line)
            print(without_coordinator.describe_sharing(args.socket), file=sys.stderr)
        return 1
    return 0


def _show(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, indent=2))
        return
    from rich.console import Console

    Console().print(render(status))


def _with_starts(status: dict[str, Any]) -> dict[str, Any]:
    """Return the snapshot with the starts of the user's kernels that wait for a node with room."""
    return {**status, "starts": _waiting_starts()}


def _waiting_starts() -> list[dict[str, Any]]:
    """Return the waiting starts of all Jupyter servers of the user on this host."""
    return [start.view(start.session) for start in start_records.waiting()]


def _start_lines(starts: list[dict[str, Any]]) -> Iterator[str]:
    now = time.time()
    for start in starts:
        left = start["expected_wait"]
        place = f"#{start['position']}" + (f", about {_about(left)}" if left else "")
        waited = units.format_duration(math.floor(max(0.0, now - start["since"])))
        reason = start["message"] or "other starts have come first"
        line = f"{start['label']} waits for a node ({', '.join(start['nodes'])}): {place}; {waited} so far; {reason}"
        yield "".join(character if character.isprintable() else "?" for character in line)


def _about(seconds: float) -> str:
    """Return a duration in whole minutes, from one minute on."""
    return units.format_duration(60 * math.ceil(seconds / 60) if seconds > 60 else math.ceil(seconds))


def _snapshots(socket: str) -> Iterator[dict[str, Any] | str]:
    """Yield each new snapshot, and one message for each time without a coordinator. The iterator never ends."""
    problem = ""
    while True:
        try:
            with Client(socket) as client:
                for status in client.subscribe():
                    problem = ""
                    yield _with_starts(status)
        except CoordinatorError as error:
            if not problem:
                problem = str(error)
                yield problem
        time.sleep(_RETRY_SECONDS)


def _watch(socket: str, as_json: bool) -> None:
    if as_json:
        for status in _snapshots(socket):
            print(json.dumps({"unavailable": status} if isinstance(status, str) else status), flush=True)
    if not sys.stdout.isatty():
        _log(socket)
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        for status in _snapshots(socket):
            live.update(_waiting_text(status) if isinstance(status, str) else render(status))


def _waiting_text(problem: str) -> str:
    return f"{problem}; waiting for a coordinator"


def _log(socket: str) -> None:
    """Print the snapshots one after the other, for pipes and files. The function never returns."""
    from rich.console import Console

    console = Console()
    for status in _snapshots(socket):
        console.print(_waiting_text(status) if isinstance(status, str) else render(status), soft_wrap=True)
        console.print()
        sys.stdout.flush()


def render(status: dict[str, Any]) -> Any:
    """Return the snapshot as tables for a terminal."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    # A name such as "[/b].ipynb" must not become markup.
    labels = {client["id"]: escape(client_label(client)) for client in status["clients"]}
    devices = Table(title="Devices", title_justify="left")
    for column in ("device", "memory", "busy", "running", "queue"):
        devices.add_column(column, overflow="fold")
    waits = {client["id"]: client["expected_wait"] for client in status["clients"]}
    numbers = {device["uuid"]: str(number) for number, device in enumerate(status["devices"])}
    for device in status["devices"]:
        number = f"{numbers[device['uuid']]}: " if len(numbers) > 1 else ""
        soonest = min((waits[one] for one in device["queue"] if waits.get(one)), default=math.inf)
        running = [
            labels.get(grant["client"], "?")
            + (" holds the device" if grant.get("held") else "")
            + _time_left(grant["seconds_left"], soonest)
            for grant in device["grants"]
        ]
        devices.add_row(
            escape(
                f"{number}{device['name']}{' (simulated)' if device['simulated'] else ''}\n{device['uuid']}"
                + (f"\nMIG slice of {device['parent']}" if device.get("parent") else "")
                + (f"\nFAILED: {device['failed']}" if device.get("failed") else "")
                + _foreign_lines(device.get("foreign_processes", []))
                + "".join(f"\nlocked by {_owner(one)}" for one in device.get("locked_by", []))
                + (f"\nof tenant {device['guaranteed_to']}" if device.get("guaranteed_to") else "")
                + "".join(f"\n{name} {value}" for name, value in device.get("settings", {}).items())
            ),
            f"{_format_estimate(device['memory_used'], device.get('memory_used_is_estimate', False))} of "
            f"{units.format_size(device['memory_total'])}",
            _busy(device),
            "\n".join(running) or "no client",
            "\n".join(f"#{n} {labels.get(client, '?')}" for n, client in enumerate(device["queue"], 1)) or "empty",
        )
    config = status["config"]
    legend = [_LEGEND] if any(_estimated(client) for client in status["clients"]) else []
    if any(client.get("context_memory") for client in status["clients"]):
        legend.append(_CONTEXTS_LEGEND)
    quantum = config["time_quantum"]
    footer = f"policy {config['policy']}, quantum {quantum if isinstance(quantum, str) else f'{quantum:g} s'}"
    if config.get("simulate") or any(device["simulated"] for device in status["devices"]):
        footer += ", SIMULATED devices"
    notes = [
        f"{labels[client['id']]}: {escape(note)}"
        for client in status["clients"]
        for note in (
            client.get("progress_text"),
            limit_line(client),
            *client.get("notes", ()),
            _absence_note(client),
        )
        if note
    ]
    problems = [f"[yellow]warning: {escape(one)}[/]" for one in status["coordinator"].get("problems", ())]
    starts = [escape(line) for line in _start_lines(status.get("starts", []))]
    tables = _client_tables(status["clients"], labels, numbers)
    return Group(devices, *tables, *starts, *notes, *problems, *legend, footer)


def _client_tables(clients: list[dict[str, Any]], labels: dict[str, str], numbers: dict[str, str]) -> Iterator[Any]:
    """Yield a table of the turns and one of the memory, each for a terminal of 80 columns.

    `numbers` has the number of each device in the table of devices.
    """
    names = [labels[client["id"]] for client in clients]
    yield _table(
        "Clients",
        {
            "label": names,
            "state": [state_line(client) for client in clients],
            "quota": [_quota(client["quota"], client.get("labels", {})) for client in clients],
            "GPU time": [units.format_duration(client["gpu_seconds"]) for client in clients],
            "waited": [units.format_duration(client["wait_seconds"]) for client in clients],
            "turns": [str(client["turn_count"]) for client in clients],
        },
    )
    if clients:
        yield _table(
            "Memory",
            {
                "label": names,
                "device": [_devices(client, numbers) for client in clients],
                "allocated": [units.format_size(client["allocated"]) for client in clients],
                "on device": [_resident(client) for client in clients],
                "contexts": [_contexts(client) for client in clients],
                "on host": [_host(client) for client in clients],
            },
        )


def _table(title: str, columns: dict[str, list[str]]) -> Any:
    """Return a table in which amounts do not wrap. A column without a value for any client is absent."""
    from rich import box
    from rich.table import Table

    for name, placeholder in (("quota", "default"), ("device", "-"), ("contexts", "-"), ("on host", "-")):
        if name in columns and set(columns[name]) <= {placeholder}:
            del columns[name]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name not in ("label", "state", "quota"))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def client_label(client: Mapping[str, Any]) -> str:
    """Return the label of a client in a snapshot, or the user for a client of another user, which has no label."""
    if client["label"]:
        return str(client["label"])
    identity = str(client["id"])[:8]
    return identity if client.get("own", True) else f"{client['user']} ({identity})"


def is_connected(client: Mapping[str, Any]) -> bool:
    """Return whether a process or a kernel of the client is connected; processes of other users may be invisible."""
    return bool(client.get("processes") or client.get("kernel_pids"))


def _absence_note(client: Mapping[str, Any]) -> str:
    return "" if is_connected(client) or not client.get("own", True) else _ABSENCE_NOTE


def _foreign_lines(processes: list[dict[str, Any]]) -> str:
    """Return a line for each process that uses the device without sharing it."""
    words = []
    for process in processes:
        memory = process["memory"]
        words.append(f"\nnot sharing: {_owner(process)}{'' if memory is None else f', {units.format_size(memory)}'}")
    return "".join(words)


def _owner(process: dict[str, Any]) -> str:
    name = f"pid {process['pid']}" if process["pid"] else "a process without an id here"
    return f"{name} of {process['user']}" if process["user"] else name


def _busy(device: Mapping[str, Any]) -> str:
    """Return the utilisation of a device in the last one or two seconds."""
    busy = device.get("utilisation")
    return "?" if busy is None else f"{'~' if device['utilisation_is_estimate'] and busy else ''}{busy:.0%}"


def _devices(client: dict[str, Any], numbers: dict[str, str]) -> str:
    """Return the numbers of the devices of a client, or "-" without a device or on a host with one device."""
    found = [numbers[uuid] for uuid in client.get("devices", ()) if uuid in numbers]
    return ", ".join(sorted(found, key=int)) if found and len(numbers) > 1 else "-"


def _resident(client: dict[str, Any]) -> str:
    """Return the resident memory of a client: the sum, and the memory of each of several devices."""
    by_device = client.get("resident_by_device", {})
    lines = [_format_estimate(client["resident"], client.get("resident_is_estimate", True))]
    if len(by_device) > 1:
        is_estimate = client["resident_by_device_is_estimate"]
        lines += [f"{uuid}: {_format_estimate(size, is_estimate)}" for uuid, size in sorted(by_device.items())]
    return "\n".join(lines)


def _contexts(client: dict[str, Any]) -> str:
    """Return the context memory of a client, or "-" where there is none, or where it is unknown."""
    context = client.get("context_memory", 0)
    return units.format_size(context) if context else "-"


def _host(client: dict[str, Any]) -> str:
    """Return the host memory of a client's evicted memory, which is "-" in most memory modes."""
    pinned, pageable = client.get("host_pinned", 0), client.get("host_pageable", 0)
    words = [units.format_size(pageable)] if pageable else []
    return " + ".join(words + ([f"{units.format_size(pinned)} pinned"] if pinned else [])) or "-"


def _estimated(client: dict[str, Any]) -> bool:
    return bool(client.get("resident_is_estimate", True) or client.get("resident_by_device_is_estimate", True))


def _format_estimate(size: int, estimate: bool) -> str:
    return f"{'~' if estimate and size else ''}{units.format_size(size)}"


def _time_left(seconds: float | None, soonest: float) -> str:
    """Format the time until the deadline; "up to" marks a turn that should end before, after `soonest` seconds."""
    if seconds is None:
        return ""
    return f", {'up to ' if soonest + 1 < seconds else ''}{units.format_duration(seconds)} left"


def _quota(quota: dict[str, Any], labels: dict[str, str]) -> str:
    words = [f"{word}={name}" for word, name in labels.items()]
    if quota["share"]:
        words.append(f"share={quota['share']:g}")
    if quota["limit"] != 1:
        words.append(f"limit={quota['limit']:g}")
    for name in ("memory", "resident"):
        if quota[name] is not None:
            words.append(f"{name}={units.size_word(quota[name])}")
    if quota["service"] != "online":
        words.append(f"class={quota['service']}")
    return " ".join(words) or "default"
