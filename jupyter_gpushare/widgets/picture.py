"""What a view shows of a snapshot, in words and figures, without any markup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..kernel.texts import idle, quota_line
from ..wire.text import format_size

Json = Mapping[str, Any]

_PHASES = {
    "draining": "turn ending",
    "overrun": "turn overrun: it has not left the GPU",
    "suspended": "suspended: GPU calls wait until it is resumed",
}


class Turn(NamedTuple):
    """Who has a device ("running", "held" between cells), or waits for it ("#1"), and for how long about."""

    place: str
    name: str
    time: str
    own: bool


class Memory(NamedTuple):
    """Of one device, in bytes; `about`: partly an estimate."""

    own: int
    others: int
    free: int
    total: int
    about: bool


class Device(NamedTuple):
    name: str
    memory: Memory
    turns: tuple[Turn, ...]


class Picture(NamedTuple):
    """Of one client at one moment. `details` are pairs of what and how much."""

    phase: str
    headline: str
    details: tuple[tuple[str, str], ...]
    devices: tuple[Device, ...]
    notes: tuple[str, ...]
    simulated: bool


def of(status: Json, client_id: str, elapsed: float) -> Picture | None:
    """`elapsed` seconds after the snapshot; None while the coordinator doesn't know the client."""
    clients = {client["id"]: client for client in status["clients"]}
    client = clients.get(client_id)
    if client is None:
        return None
    devices = [device for device in status["devices"] if device["uuid"] in client["devices"]] or status["devices"]
    return Picture(
        phase=client["phase"],
        headline=_headline(client, devices, elapsed),
        details=_details(client, elapsed),
        devices=tuple(_device(device, clients, client, elapsed) for device in devices),
        notes=tuple(str(note) for note in client.get("notes") or ()),
        simulated=any(device["simulated"] for device in devices),
    )


def duration(seconds: float) -> str:
    """Whole, rounded up, as times that are waited for should be: 11.2 -> "12 s", 100 -> "1 min 40 s"."""
    whole = max(0, math.ceil(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _headline(client: Json, devices: list[Json], elapsed: float) -> str:
    phase = str(client["phase"])
    words = [idle(client, elapsed) or _PHASES.get(phase, phase)]
    if phase == "waiting":
        if client["queue_position"]:
            words.append(f"#{client['queue_position']} in queue")
        # A wait that has already lasted longer than expected promises nothing.
        if client["expected_wait"] and client["expected_wait"] > elapsed:
            words.append(f"about {duration(client['expected_wait'] - elapsed)}")
    own = [grant for device in devices for grant in device["grants"] if grant["client"] == client["id"]]
    left = [grant["seconds_left"] for grant in own if grant["seconds_left"] is not None]
    if phase == "running" and left:
        words.append(f"{duration(min(left) - elapsed)} left")
    held = client.get("hold_seconds_left")
    if held is not None and held > elapsed:
        if phase == "running" and all(grant.get("held") for grant in own) and own:
            del words[0]  # no cell runs
        words.append(f"held for {duration(held - elapsed)}")
    return " · ".join(words)


def _details(client: Json, elapsed: float) -> tuple[tuple[str, str], ...]:
    about = "about " if client.get("resident_is_estimate") and client["resident"] else ""
    memory = [f"{format_size(client['allocated'])} allocated", f"{about}{format_size(client['resident'])} on the GPU"]
    host = client.get("host_pinned", 0) + client.get("host_pageable", 0)
    if host:
        memory.append(f"{format_size(host)} of the host for the rest")
    runs = client["phase"] in ("running", "draining", "overrun")
    used = client["gpu_seconds"] + (elapsed if runs else 0)
    waited = client["wait_seconds"] + (elapsed if client["phase"] == "waiting" else 0)
    turns = f"{client['quanta']} {'turn' if client['quanta'] == 1 else 'turns'}"
    return (
        ("Quota", quota_line(client["quota"])),
        ("Memory", ", ".join(memory)),
        ("So far", f"{duration(used)} on the GPU in {turns}, {duration(waited)} waiting"),
    )


def _device(device: Json, clients: dict[str, Any], own: Json, elapsed: float) -> Device:
    name = str(device["name"] or device["uuid"])
    if device["simulated"] and "simulated" not in name.lower():
        name += " (simulated)"
    if device.get("failed"):
        name += f" (out of use: {device['failed']})"
    turns = []
    waits = [clients.get(waiting, {}).get("expected_wait") for waiting in device["queue"]]
    soonest = min((wait for wait in waits if wait), default=math.inf)
    for grant in device["grants"]:
        left = grant["seconds_left"]
        time = f"for {duration(grant['held_seconds'] + elapsed)}"
        if left is not None:
            # The time left is until the deadline; where less is expected, it says so.
            time += f", {'up to ' if soonest + 1 < left else ''}{duration(left - elapsed)} left"
        how = "held" if grant.get("held") else "running"
        turns.append(Turn(how, _name(grant["client"], clients, own), time, grant["client"] == own["id"]))
    for place, (waiting, wait) in enumerate(zip(device["queue"], waits, strict=True), start=1):
        time = f"in about {duration(wait - elapsed)}" if wait and wait > elapsed else ""
        turns.append(Turn(f"#{place}", _name(waiting, clients, own), time, waiting == own["id"]))
    return Device(name, _memory(device, own), tuple(turns))


def _memory(device: Json, own: Json) -> Memory:
    total, used = device["memory_total"], device["memory_used"] or 0
    here = own.get("resident_by_device", {}).get(device["uuid"], 0)
    mine = min(here, total)
    others = min(max(0, used - mine), total - mine)
    about = bool(device.get("memory_used_is_estimate") or (mine and own.get("resident_by_device_is_estimate")))
    return Memory(mine, others, total - mine - others, total, about)


def _name(client_id: str, clients: dict[str, Any], own: Json) -> str:
    """Of others' clients only the tenant is told."""
    if client_id == own["id"]:
        return "this kernel"
    client = clients.get(client_id)
    if client is None:
        return "another client"
    if client.get("own", client["tenant"] == own["tenant"]):
        return str(client["label"] or client_id)
    return f"a client of {client['tenant']}"
