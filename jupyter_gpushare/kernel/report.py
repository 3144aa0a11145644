"""What `%gpushare` displays, as text and as HTML, from the coordinator's snapshot."""

from __future__ import annotations

from html import escape
from typing import Any

_LEFT = 'style="text-align:left"'


class Report:
    """The state of one client and of the devices. `snapshot` is None when no coordinator answered."""

    def __init__(self, snapshot: dict[str, Any] | None, client: str, problem: str = "") -> None:
        self._snapshot = snapshot or {}
        self._client = client
        self._problem = problem
        self._clients = {one["id"]: one for one in self._snapshot.get("clients", [])}

    def __repr__(self) -> str:
        lines = ["Sharing isn't working: " + self._problem] if self._problem else []
        lines += [f"{name:<9} {value}" for name, value in self._own()]
        for device in self._snapshot.get("devices", []):
            lines += ["", _device_line(device)]
            lines += [f"  {place:<3} {state:<8} {name}" for place, state, name in self._turns(device)]
        return "\n".join(lines).strip()

    def _repr_html_(self) -> str:
        parts = []
        if self._problem:
            parts.append(f"<p><strong>Sharing isn't working:</strong> {escape(self._problem)}</p>")
        own = self._own()
        if own:
            parts.append(f"<table>{''.join(_row(name, [value]) for name, value in own)}</table>")
        for device in self._snapshot.get("devices", []):
            rows = "".join(_row(place, [state, name]) for place, state, name in self._turns(device))
            parts.append(f"<table><caption {_LEFT}>{escape(_device_line(device))}</caption>{rows}</table>")
        return f'<div class="gpushare-report">{"".join(parts)}</div>'

    def _own(self) -> list[tuple[str, str]]:
        client = self._clients.get(self._client)
        if client is None:
            if self._client and self._snapshot:
                return [("state", "not yet known to the coordinator")]
            return [] if self._client or self._problem else [("state", "this kernel isn't shared")]
        turns = f"{seconds(client['gpu_seconds'])} in {client['quanta']} turns"
        rows = [
            ("kernel", client.get("label") or client["id"]),
            ("state", self._state(client)),
            ("quota", quota_line(client.get("quota", {}))),
            ("memory", _memory(client)),
            ("GPU time", f"{turns}, waited {seconds(client['wait_seconds'])}"),
        ]
        return rows + [("note", str(note)) for note in client.get("notes", [])]

    def _state(self, client: dict[str, Any]) -> str:
        phase = str(client.get("phase", "idle"))
        if phase == "waiting":
            return _waiting(client)
        if phase == "suspended":
            return "suspended · GPU calls wait until %gpushare resume"
        if client.get("hold_seconds_left") is not None:
            return f"{phase} · held for {seconds(client['hold_seconds_left'])}"
        for device in self._snapshot.get("devices", []):
            for grant in device.get("grants", []):
                if grant["client"] == client["id"] and grant.get("seconds_left") is not None:
                    return f"{phase} · {seconds(grant['seconds_left'])} left"
        return phase

    def _turns(self, device: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Who runs, then who waits, in order."""
        rows = [("", "running", self._name(grant["client"])) for grant in device.get("grants", [])]
        queue = enumerate(device.get("queue", []), 1)
        rows += [(f"#{place}", "waiting", self._name(client)) for place, client in queue]
        return rows or [("", "free", "nobody runs or waits")]

    def _name(self, client: str) -> str:
        name = str(self._clients.get(client, {}).get("label") or client)
        return name + " (this kernel)" if client == self._client else name


def quota_line(quota: dict[str, Any]) -> str:
    """`{"share": 0.5, "memory": None, …}` -> "share 0.5, memory unlimited"."""
    words = [f"{key} {quota[key]:g}" for key in ("share", "limit") if quota.get(key) is not None]
    for key in ("memory", "resident"):
        if key in quota:
            words.append(f"{key} {'unlimited' if quota[key] is None else size(quota[key])}")
    if quota.get("service"):
        words.append(str(quota["service"]))
    return ", ".join(words)


def size(amount: float) -> str:
    """Bytes: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024.0
    return f"{amount:.4g} TiB"


def seconds(amount: float) -> str:
    """0.25 -> "0.2 s", 75 -> "1 min 15 s"."""
    whole = round(amount)
    if amount < 10:
        return f"{amount:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _memory(client: dict[str, Any]) -> str:
    about = "about " if client.get("resident_is_estimate") and client["resident"] else ""
    words = [f"{size(client['allocated'])} allocated", f"{about}{size(client['resident'])} on the device"]
    host = client.get("host_pinned", 0) + client.get("host_pageable", 0)
    return ", ".join(words + ([f"{size(host)} of the host for the rest"] if host else []))


def _waiting(client: dict[str, Any]) -> str:
    words = ["waiting"]
    if client.get("queue_position"):
        words.append(f"#{client['queue_position']} in queue")
    if client.get("expected_wait") is not None:
        words.append(f"about {seconds(client['expected_wait'])}")
    return " · ".join(words)


def _device_line(device: dict[str, Any]) -> str:
    name = str(device.get("name") or device.get("uuid"))
    if device.get("simulated") and "simulated" not in name.lower():
        name += " (simulated)"
    return f"{name} · {size(device.get('memory_used') or 0)} of {size(device.get('memory_total') or 0)} in use"


def _row(name: str, values: list[str]) -> str:
    cells = "".join(f"<td {_LEFT}>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row" {_LEFT}>{escape(name)}</th>{cells}</tr>'
