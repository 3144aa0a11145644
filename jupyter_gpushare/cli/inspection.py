"""Report of `jupyter gpushare doctor --pid N` on a live process under the shim, from its page and its answers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..units import format_duration, format_size
from ..wire import messages
from ..wire import page as pages
from ..wire.client import Client, CoordinatorError, Unreachable

_PHASES = ("out", "in", "closing", "closing, open for single calls", "leaving")
_PAGE_LINK = "/memfd:gpushare-page"  # the link in /proc of the descriptor of a page
_NO_COORDINATOR_NOTE = (
    "The process has no connection to a coordinator that answers here, so these values are from its page. "
    "The allocations by kind and the unhooked functions are available only through a coordinator."
)


class NotInspected(Exception):
    """Process that cannot be inspected; the message gives the reason."""


def show(pid: int, socket: str, as_json: bool) -> int:
    """Print a report on the process `pid`. Return 0, or 1 if the process cannot be inspected."""
    try:
        found = inspect(pid, socket)
    except NotInspected as error:
        print(f"jupyter gpushare doctor: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for subject, text in report_lines(found):
            print(f"{subject:>14}  {text}" if subject else f"\n{text}")
    return 0


def inspect(pid: int, socket: str = "") -> dict[str, Any]:
    """Return the result of an Inspect request, or only the page with None for `coordinator`. Raise NotInspected."""
    if pid < 1:
        raise NotInspected(f"there is no process {pid}")
    try:
        with Client(socket, timeout=5) as client:
            found: dict[str, Any] = client.request(messages.Inspect(pid=pid))
            return found
    except Unreachable:
        pass
    except CoordinatorError as error:
        if error.reason != "unknown_process":
            raise NotInspected(str(error)) from error
    except ValueError as error:
        raise NotInspected(str(error)) from error
    try:
        page = read_page(pid)
    except FileNotFoundError:
        raise NotInspected(f"there is no process {pid}") from None
    except PermissionError:
        raise NotInspected(f"process {pid} belongs to another user") from None
    if page is None:
        raise NotInspected(
            f"process {pid} ({process_name(pid)}) does not share the GPU: the process does not run under the shim, "
            "or it has not used the GPU yet"
        )
    return {"pid": pid, "client": None, "label": None, "coordinator": None, "page": page, "details": None}


def read_page(pid: int) -> dict[str, dict[str, int]] | None:
    """Read the page of a process by the process's descriptor. Raise FileNotFoundError or PermissionError.

    The page must have the process's own id, because a coordinator has descriptors of all pages.
    """
    folder = Path(f"/proc/{pid}/fd")
    names = _namespace_pids(pid)
    for entry in folder.iterdir():
        try:
            if not os.readlink(entry).startswith(_PAGE_LINK):
                continue
            page = pages.Page(os.open(entry, os.O_RDWR | os.O_CLOEXEC))
        except (OSError, pages.BadPage):
            continue  # The process has closed the descriptor.
        values = page.values()
        page.close()
        if values["header"]["pid"] in names:
            return values
    return None


def _namespace_pids(pid: int) -> set[int]:
    """Return the ids of a process in all its namespaces; a page has the id in the innermost namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    inner = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return {pid, *map(int, inner)}


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def report_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield subjects and texts of the report; a text without a subject is a paragraph."""
    header, control, report = (found["page"][block] for block in ("header", "control", "report"))
    now = time.monotonic_ns()
    is_without_coordinator = found["coordinator"] is None
    yield "process", f"{found['pid']} ({process_name(found['pid'])}), page version {header['version']}"
    if not is_without_coordinator:
        yield "client", f"{found['client']}" + (f", {found['label']}" if found["label"] else "")
        yield "coordinator", f"pid {found['coordinator']['pid']}, at {found['coordinator']['socket']}"
    yield "phase", f"{_phase_name(_PHASES, report['turn_phase'])}, {report['waiting']} thread(s) wait at the gate"
    yield "turn", ", ".join(_turn(control, report, now))
    yield "limits", ", ".join(_limits(control))
    yield (
        "memory",
        f"{pages.memory_mode(report['memory_mode']) or 'mode unknown'}, "
        f"{format_size(report['allocated'])} allocated, "
        f"{format_size(report['resident'])} on the device{_estimate_mark(report)}, "
        f"{format_size(report['unmovable'])} unmovable, {report['refused_allocations']} allocation(s) refused",
    )
    yield (
        "host memory",
        f"{format_size(report['host_pinned'])} page-locked and "
        f"{format_size(report['host_pageable'])} pageable, for evicted memory",
    )
    yield (
        "moved",
        f"{format_size(report['evicted_bytes'])} evicted in {_seconds(report['evicted_ns'])}, "
        f"{format_size(report['restored_bytes'])} restored in {_seconds(report['restored_ns'])}",
    )
    yield (
        "work",
        f"{report['launches']} launches ({report['blocks']} blocks), {report['copies']} copies "
        f"({format_size(report['bytes_copied'])}), counted {_ago(report['sampled_ns'], now)}; "
        f"last submission {_ago(report['last_submission_ns'], now)}",
    )
    yield (
        "waits",
        f"{report['gate_waits']} call(s) at the gate for {_seconds(report['gate_wait_ns'])}; "
        f"{report['throttle_waits']} in the throttle for {_seconds(report['throttle_wait_ns'])}; "
        f"the last drain took {_seconds(report['drain_ns'])}, the longest {_seconds(report['drain_max_ns'])}",
    )
    if names := pages.bypassing_libraries(report["bypassing_libraries"]):
        yield "libraries", f"{', '.join(names)}, whose work may pass the gate"
    if is_without_coordinator:
        yield "", _NO_COORDINATOR_NOTE
    else:
        yield from _details(found["details"])


def _estimate_mark(report: dict[str, int]) -> str:
    return "" if pages.is_resident_exact(report["memory_mode"], report["uses_managed_memory"]) else " (an estimate)"


def _turn(control: dict[str, int], report: dict[str, int], now: int) -> Iterator[str]:
    if report["turn_phase"] != pages.OUT:
        source = "by a permit" if report["turn_epoch"] else "without a coordinator"
        yield f"number {report['turn_turn']:#x}, {source}, began {_ago(report['turn_entered_ns'], now)}"
    elif control["permit_flags"] & pages.MAY:
        yield f"permitted, {report['turn_refused_entries']} refused entries so far"
    yield f"quantum {_seconds(control['quantum_ns'])}"
    if control["permit_deadline_ns"]:
        yield f"ends in {_seconds(max(0, control['permit_deadline_ns'] - now))}"
    if control["permit_flags"] & pages.CONTENDED:
        yield "other clients wait"
    if control["queue_position"]:
        yield f"number {control['queue_position']} in the queue"


def _limits(control: dict[str, int]) -> Iterator[str]:
    yield f"{format_size(control['memory_limit'])} to allocate" if control["memory_limit"] else "no memory limit"
    yield (
        f"sees {format_size(control['memory_total'])} of device memory"
        if control["memory_total"]
        else "sees the whole device memory"
    )
    if control["memory_backing"] != pages.UNKNOWN:
        yield f"{format_size(control['memory_backing'])} can be backed by devices and host"
    if control["context_bytes"]:
        yield f"{format_size(control['context_bytes'])} of the device for contexts and code of all clients"
    for number in range(pages.layout()[1]["GPUSHARE_DEVICES"]):
        if (target := control[f"resident_target_{number}"]) != pages.UNKNOWN:
            yield f"{format_size(target)} may stay on device {number}"
    if limit := control["turn_limit"]:
        yield f"{format_size(limit)} may be on the devices in a turn"
    if control["evicted_limit"] != pages.UNKNOWN:
        yield f"{format_size(control['evicted_limit'])} may be off the device"
    if rate := control["budget_rate"]:
        amount = f"{rate / 1e7:g} % of the time" if control["budget_unit"] == pages.TIME else f"{rate} blocks a second"
        yield "stopped" if rate == pages.UNKNOWN else amount
    if control["window_ns"]:
        yield f"{_seconds(control['window_ns'])} of work in flight"


def _details(details: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if details is None:
        yield "", "The process does not answer: it is hibernated (jupyter gpushare status), or it is probably stopped."
        return
    for line in details["ledger"]:
        yield line["kind"], f"{line['number']}, {format_size(line['bytes'])}"
    if not details["ledger"]:
        yield "ledger", "no allocations"
    unhooked = details["unhooked"]
    yield "unhooked", ", ".join(unhooked) if unhooked else "the process has looked up no function unknown to the shim"


def _phase_name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"


def _seconds(nanoseconds: int) -> str:
    return format_duration(nanoseconds / 1e9)


def _ago(then: int, now: int) -> str:
    return f"{_seconds(max(0, now - then))} ago" if then else "never"
