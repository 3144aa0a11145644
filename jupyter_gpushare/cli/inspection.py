"""`jupyter gpushare doctor --pid N`: a live process under the shim, from its page and by what it says of itself."""

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
_PAGE_LINK = "/memfd:gpushare-page"  # what /proc says of the page's descriptor
_NO_COORDINATOR_NOTE = (
    "No coordinator that answers here is in contact with it: this is its page as it stands, read from the process "
    "itself. What it has allocated by kind, and unhooked entry points, it tells through its coordinator only."
)


class NotInspected(Exception):
    """The process cannot be looked into; the message says why."""


def show(pid: int, socket: str, as_json: bool) -> int:
    """Print what is known about the process `pid`. Returns 0, or 1 if that is nothing."""
    try:
        found = inspect(pid, socket)
    except NotInspected as error:
        print(f"jupyter gpushare doctor: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for subject, what in report_lines(found):
            print(f"{subject:>14}  {what}" if subject else f"\n{what}")
    return 0


def inspect(pid: int, socket: str = "") -> dict[str, Any]:
    """The result of an Inspect request, or what the page alone says: `coordinator` is then null.

    Raises NotInspected.
    """
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
            f"process {pid} ({process_name(pid)}) does not share the GPU: it does not run under the shim, "
            "or has not used the GPU yet"
        )
    return {"pid": pid, "client": None, "label": None, "coordinator": None, "page": page, "details": None}


def read_page(pid: int) -> dict[str, dict[str, int]] | None:
    """The page, from the process's own descriptor of it. Raises FileNotFoundError and PermissionError.

    A coordinator has descriptors of others' pages: the page must say that it is this process's.
    """
    folder = Path(f"/proc/{pid}/fd")
    names = _namespace_pids(pid)
    for entry in folder.iterdir():
        try:
            if not os.readlink(entry).startswith(_PAGE_LINK):
                continue
            page = pages.Page(os.open(entry, os.O_RDWR | os.O_CLOEXEC))
        except (OSError, pages.BadPage):
            continue  # closed meanwhile
        values = page.values()
        page.close()
        if values["header"]["pid"] in names:
            return values
    return None


def _namespace_pids(pid: int) -> set[int]:
    """Its process id here and in each namespace that it is in: a page has the innermost."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    inner = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return {pid, *map(int, inner)}


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def report_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What people read: subject and text; a text without subject is a paragraph of its own."""
    header, control, report = (found["page"][block] for block in ("header", "control", "report"))
    now = time.monotonic_ns()
    alone = found["coordinator"] is None
    yield "process", f"{found['pid']} ({process_name(found['pid'])}), page version {header['version']}"
    if not alone:
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
        f"{format_size(report['host_pageable'])} ordinary for what has left",
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
        f"{report['gate_waits']} call(s) waited, {_seconds(report['gate_wait_ns'])} in all; "
        f"{report['throttle_waits']} held back by the throttle, {_seconds(report['throttle_wait_ns'])}; "
        f"the last drain took {_seconds(report['drain_ns'])}, the longest {_seconds(report['drain_max_ns'])}",
    )
    if alone:
        yield "", _NO_COORDINATOR_NOTE
    else:
        yield from _details(found["details"])


def _estimate_mark(report: dict[str, int]) -> str:
    return "" if pages.is_resident_exact(report["memory_mode"], report["uses_managed_memory"]) else " (an estimate)"


def _turn(control: dict[str, int], report: dict[str, int], now: int) -> Iterator[str]:
    if report["turn_phase"] != pages.OUT:
        by = "by a permit" if report["turn_epoch"] else "without a coordinator"
        yield f"number {report['turn_turn']:#x}, {by}, began {_ago(report['turn_entered_ns'], now)}"
    elif control["permit_flags"] & pages.MAY:
        yield f"permitted, tried {report['turn_refused_entries']} time(s) in vain so far"
    yield f"quantum {_seconds(control['quantum_ns'])}"
    if control["permit_deadline_ns"]:
        yield f"ends in {_seconds(max(0, control['permit_deadline_ns'] - now))}"
    if control["permit_flags"] & pages.CONTENDED:
        yield "others wait"
    if control["queue_position"]:
        yield f"number {control['queue_position']} in the queue"


def _limits(control: dict[str, int]) -> Iterator[str]:
    yield f"{format_size(control['memory_limit'])} to allocate" if control["memory_limit"] else "no memory limit"
    yield (
        f"told to have {format_size(control['memory_total'])}"
        if control["memory_total"]
        else "told the device's memory"
    )
    if control["memory_backing"] != pages.UNKNOWN:
        yield f"{format_size(control['memory_backing'])} can still be backed"
    if control["resident_target"] != pages.UNKNOWN:
        yield f"{format_size(control['resident_target'])} may stay on the device"
    if rate := control["budget_rate"]:
        amount = f"{rate / 1e7:g} % of the time" if control["budget_unit"] == pages.TIME else f"{rate} blocks a second"
        yield "stopped" if rate == pages.UNKNOWN else amount
    if control["window_ns"]:
        yield f"{_seconds(control['window_ns'])} of work in flight"


def _details(details: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if details is None:
        yield "", "The process does not answer: it is stopped."
        return
    for line in details["ledger"]:
        yield line["kind"], f"{line['number']}, {format_size(line['bytes'])}"
    if not details["ledger"]:
        yield "ledger", "nothing is allocated"
    unhooked = details["unhooked"]
    yield "unhooked", ", ".join(unhooked) if unhooked else "no entry point that the shim does not know was asked for"


def _phase_name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"


def _seconds(nanoseconds: int) -> str:
    return format_duration(nanoseconds / 1e9)


def _ago(then: int, now: int) -> str:
    return f"{_seconds(max(0, now - then))} ago" if then else "never"
