"""What a view shows of a snapshot, in words and figures, without any markup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..kernel.texts import quota_line, state_line
from ..units import format_duration, format_size

Json = Mapping[str, Any]


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
        headline=state_line(client, devices, elapsed),
        details=_details(client, elapsed),
        devices=tuple(_device(device, clients, client, elapsed) for device in devices),
        notes=tuple(str(note) for note in client.get("notes") or ()),
        simulated=any(device["simulated"] for device in devices),
    )


def _countdown(seconds: float) -> str:
    """Return seconds that pass while they are shown, rounded up to whole ones."""
    return format_duration(math.ceil(max(0.0, seconds)))


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
        ("So far", f"{_countdown(used)} on the GPU in {turns}, {_countdown(waited)} waiting"),
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
        time = f"for {_countdown(grant['held_seconds'] + elapsed)}"
        if left is not None:
            # The time left is until the deadline; where less is expected, it says so.
            time += f", {'up to ' if soonest + 1 < left else ''}{_countdown(left - elapsed)} left"
        how = "held" if grant.get("held") else "running"
        turns.append(Turn(how, _name(grant["client"], clients, own), time, grant["client"] == own["id"]))
    for place, (waiting, wait) in enumerate(zip(device["queue"], waits, strict=True), start=1):
        time = f"in about {_countdown(wait - elapsed)}" if wait and wait > elapsed else ""
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
