"""Report of `%gpushare status` as HTML, with a card for this client and a card for each device."""

from __future__ import annotations

from html import escape
from typing import Any

from jupyter_gpushare.units import format_size

from .html import COLOURS, Part, bar, card, dot, element, grid, muted
from .report_data import PROBLEM_HEADING, ReportData, device_line, memory_line

_STRONG = "font-weight:600"


def page(report: ReportData) -> str:
    parts = []
    if report.problem:
        alert = element("strong", "", f"{PROBLEM_HEADING} ") + escape(report.problem)
        parts.append(card(element("div", "", alert, role="alert")))
    if report.rows():
        parts.append(card(_client(report)))
    parts += [card(_device(report, device)) for device in report.devices]
    return element("div", "display:flow-root", "".join(parts))


def _client(report: ReportData) -> str:
    client = report.own
    facts = dict(report.rows())
    if client is None:
        return grid([(name, escape(value)) for name, value in facts.items()])
    phase = str(client.get("phase", "idle"))
    head = element("span", _STRONG + ";overflow-wrap:anywhere", escape(facts.pop("kernel")))
    head += element(
        "span", "white-space:nowrap", dot(COLOURS.get(phase, COLOURS["idle"])) + escape(f"GPU: {facts.pop('state')}")
    )
    notes = [("note", escape(str(note))) for note in client.get("notes", [])]
    facts.pop("note", None)
    rows = [(name, escape(value)) for name, value in facts.items() if name != "memory"]
    rows.insert(0, ("memory", _memory(report, client)))
    flex = "display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 16px;margin-bottom:6px"
    return element("div", flex, head) + grid(rows + notes)


def _memory(report: ReportData, client: dict[str, Any]) -> str:
    """Return a bar of the allocated memory, as part of the memory quota or else of the client's devices."""
    line = memory_line(client)
    limit = client.get("quota", {}).get("memory") or report.own_memory
    if not limit:
        return escape(line)
    resident = client["resident"]
    evicted = max(0, client["allocated"] - resident - client.get("unmade", 0))
    parts = [
        Part(resident / limit, COLOURS["own"], f"on the device: {format_size(resident)}"),
        Part(evicted / limit, "rgba(47,127,209,.5)", f"moved out: {format_size(evicted)}"),
    ]
    text = f"{line}; may allocate {format_size(limit)}"
    return bar(parts, text) + element("div", "margin-top:2px", escape(text))


def _device(report: ReportData, device: dict[str, Any]) -> str:
    head = element("div", _STRONG, escape(device_line(device)))
    total = device.get("memory_total") or 0
    body = _stacked(report, device, total) if total else ""
    for position, state, name, time in report.turns(device):
        state_cell = element(
            "span",
            "display:inline-block;width:8em;white-space:nowrap",
            dot(COLOURS[state]) + escape(f"{state} {position}"),
        )
        more = muted(f" · {time}") if time else ""
        body += element("div", "overflow-wrap:anywhere", state_cell + escape(name) + more)
    return head + body


def _stacked(report: ReportData, device: dict[str, Any], total: int) -> str:
    """Return a bar of each client's memory on the device, of context memory, and of memory of other programs."""
    amounts = []
    for client in report.snapshot.get("clients", []):
        resident = client.get("resident_by_device", {}).get(device["uuid"], 0)
        if resident:
            amounts.append((client["id"] != report.client, -resident, client["id"]))
    parts: list[Part] = []
    other_colours: list[str] = []  # two colours in turn, so that neighbouring clients differ
    own = known = 0
    for is_other, negative, identity in sorted(amounts):
        known -= negative
        own += 0 if is_other else -negative
        colour = COLOURS[f"others{len(other_colours) % 2}" if is_other else "own"]
        other_colours += [colour] if is_other else []
        parts.append(Part(-negative / total, colour, f"{report.client_label(identity)}: {format_size(-negative)}"))
    used = device.get("memory_used") or 0
    contexts = min(device.get("context_memory", 0), max(0, used - known))
    other = used - known - contexts
    if contexts:
        parts.append(Part(contexts / total, COLOURS["contexts"], f"contexts and code: {format_size(contexts)}"))
    if other > 0:
        parts.append(Part(other / total, COLOURS["idle"], f"not of any client: {format_size(other)}"))
    label = ", ".join(part.title for part in parts) or "nothing is on the device"
    sums = [
        ([COLOURS["own"]], f"this {report.program}", own),
        (other_colours[:2], "other clients", known - own),
        ([COLOURS["contexts"]], "contexts and code", contexts),
        ([COLOURS["idle"]], "other programs", other),
    ]
    legend = [
        "".join(map(dot, colours)) + escape(f"{owner} {format_size(amount)}")
        for colours, owner, amount in sums
        if amount > 0
    ]
    legend.append(escape(f"free {format_size(max(0, total - max(used, known)))}"))
    spans = "".join(element("span", "margin-right:14px;white-space:nowrap", one) for one in legend)
    return element("div", "margin:4px 0 8px", bar(parts, label) + element("div", "margin-top:2px", spans))
