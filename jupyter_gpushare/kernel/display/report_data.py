"""Data of `%gpushare status` on one client and the devices, from the coordinator's snapshot."""

from __future__ import annotations

import math
from typing import Any

from jupyter_gpushare.units import format_duration, format_size

from .formatting import format_percent, limit_line, quota_line, state_line

# Seconds by which two ages may be out of order, because a snapshot has the uptime in tenths of a second.
_ROUNDING = 0.1


PROBLEM_HEADING = "GPU sharing does not work:"


class ReportData:
    """State of one client and of the devices.

    `snapshot` is the coordinator's snapshot (docs/reference/wire.md), and empty if no coordinator has answered.
    `own` is the client's part of the snapshot, and None if the snapshot lacks the client.
    `problem` is a sentence on a fault of GPU sharing, or "".
    `age` is the time since this program started, and `elapsed` the time since the snapshot, both in seconds.
    The report adds `elapsed` to the times of the snapshot.
    """

    def __init__(
        self,
        snapshot: dict[str, Any] | None,
        client: str,
        problem: str = "",
        age: float = 0.0,
        program: str = "kernel",
        elapsed: float = 0.0,
    ) -> None:
        self.snapshot = snapshot or {}
        self.client = client
        self.problem = problem
        self.program = program  # the word for the client: "kernel" or "program"
        self._age = age
        self._elapsed = elapsed
        self._clients = {one["id"]: one for one in self.snapshot.get("clients", [])}

    @property
    def own(self) -> dict[str, Any] | None:
        return self._clients.get(self.client)

    @property
    def devices(self) -> list[dict[str, Any]]:
        return list(self.snapshot.get("devices", []))

    @property
    def own_memory(self) -> int:
        """Bytes of the devices of this client, or of all devices while the client has none."""
        names = self.own.get("devices") if self.own else None
        return sum(one.get("memory_total") or 0 for one in self.devices if not names or one["uuid"] in names)

    @property
    def state(self) -> str:
        """State of this client with its times; the snapshot must have the client."""
        assert self.own is not None
        return state_line(self.own, self.devices, self._elapsed)

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values about this client, in the order of the display."""
        client = self.own
        if client is None:
            if self.client and self.snapshot:
                return [("state", "not yet known to the coordinator")]
            return [] if self.client or self.problem else [("state", f"this {self.program} does not share its GPU")]
        turns = f"{client['turn_count']} {'turn' if client['turn_count'] == 1 else 'turns'}"
        is_running, is_waiting = client["phase"] in ("running", "draining", "overrun"), client["phase"] == "waiting"
        used = format_duration(client["gpu_seconds"] + is_running * self._elapsed)
        waited = format_duration(client["wait_seconds"] + is_waiting * self._elapsed)
        times = f"{used} in {turns}, waited {waited}"
        uptime = self.snapshot.get("coordinator", {}).get("uptime_seconds", self._age)
        # A coordinator does not have the figures of an earlier coordinator.
        is_newer = uptime < self._age - _ROUNDING
        since = f", since the coordinator started {format_duration(uptime)} ago" if is_newer else ""
        rows = [
            (self.program, self.client_label(self.client, mark=False)),
            ("state", self.state),
            ("quota", quota_line(client.get("quota", {}), self.own_memory)),
            *([("device", ", ".join(names))] if (names := self._own_device_names(client)) else []),
            ("memory", memory_line(client)),
            ("GPU time", times + since),
        ]
        if limits := limit_line(client):
            rows.insert(3, ("limited", limits))
        if client.get("progress_text"):
            rows.insert(2, ("progress", str(client["progress_text"])))
        return rows + [("note", str(note)) for note in client.get("notes", [])]

    def _own_device_names(self, client: dict[str, Any]) -> list[str]:
        """Return the numbers and names of the client's devices; none on a host with one device."""
        used = client.get("devices") or ()
        devices = enumerate(self.devices if len(self.devices) > 1 else ())
        return [f"{number} ({device_name(device)})" for number, device in devices if device["uuid"] in used]

    def turns(self, device: dict[str, Any]) -> list[tuple[str, str, str, str]]:
        """Return position, state, name and times of the clients that have a turn, then of the queue in its order."""
        waits = [self._clients.get(identity, {}).get("expected_wait") for identity in device["queue"]]
        soonest = min((wait for wait in waits if wait), default=math.inf)
        rows = []
        for grant in device["grants"]:
            left = grant["seconds_left"]
            time = f"for {self._countdown(grant['granted_seconds'] + self._elapsed)}"
            if left is not None:
                # The deadline gives the time left. "Up to" marks a turn that should end before its deadline.
                time += f", {'up to ' if soonest + 1 < left else ''}{self._countdown(left - self._elapsed)} left"
            rows.append(("", "held" if grant["held"] else "running", self.client_label(grant["client"]), time))
        for position, (identity, wait) in enumerate(zip(device["queue"], waits), 1):
            time = f"in about {self._countdown(wait - self._elapsed)}" if wait and wait > self._elapsed else ""
            rows.append((f"#{position}", "waiting", self.client_label(identity), time))
        return rows or [("", "free", "no client runs or waits", "")]

    @staticmethod
    def _countdown(seconds: float) -> str:
        return format_duration(math.ceil(max(0.0, seconds)))

    def client_label(self, identity: str, mark: bool = True) -> str:
        """Return a client's label, or the user for a client of another user, because that label is private."""
        client = self._clients.get(identity, {})
        name = str(client.get("label") or "")
        if not name and not client.get("own", True):
            name = str(client.get("user") or "")
        name = name or identity
        return name + f" (this {self.program})" if mark and identity == self.client else name


def memory_line(client: dict[str, Any]) -> str:
    about = "about " if client.get("resident_is_estimate") and client["resident"] else ""
    words = [f"{format_size(client['allocated'])} allocated", f"{about}{format_size(client['resident'])} on the device"]
    if client.get("context_memory"):
        words.append(f"{format_size(client['context_memory'])} more for contexts and code")
    host = client.get("host_pinned", 0) + client.get("host_pageable", 0)
    return ", ".join(words + ([f"{format_size(host)} on the host"] if host else []))


def device_name(device: dict[str, Any]) -> str:
    name = str(device.get("name") or device.get("uuid"))
    if device.get("simulated") and "simulated" not in name.lower():
        name += " (simulated)"
    return name


def device_line(device: dict[str, Any]) -> str:
    used = f"{format_size(device.get('memory_used') or 0)} of {format_size(device.get('memory_total') or 0)} in use"
    words = [device_name(device), used]
    if device.get("utilisation") is not None:
        about = "about " if device.get("utilisation_is_estimate") else ""
        words.append(f"{about}{format_percent(device['utilisation'])} busy")
    if device.get("failed"):
        words.append(f"out of use: {device['failed']}")
    return " · ".join(words)
