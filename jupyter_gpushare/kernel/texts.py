"""Quotas, sizes, times and idleness as `%gpushare` writes them."""

from __future__ import annotations

import math
from typing import Any, Mapping


def quota_line(quota: Mapping[str, Any], device_memory: float = 0) -> str:
    """`{"share": 0.5, "memory": None, …}` -> "share 0.5, memory all of the device's (8 GiB)".

    `device_memory`: bytes that the client's devices have, 0 where that is not known.
    """
    words = [f"{key} {quota[key]:g}" for key in ("share", "limit") if quota.get(key) is not None]
    whole = "all of the device's" + (f" ({size(device_memory)})" if device_memory else "")
    for key, unbounded in (("memory", whole), ("resident", "as much as fits")):
        if key in quota:
            words.append(f"{key} {unbounded if quota[key] is None else size(quota[key])}")
    if quota.get("service"):
        words.append(f"class {quota['service']}")
    return ", ".join(words)


def size(amount: float) -> str:
    """Bytes: 1536 -> "1.5 KiB", 561048576 -> "535.1 MiB", as `format_size` of the coordinator writes them."""
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        parts = 1 if power == 0 else 10 if abs(amount) >= 10 * 1024**power else 100
        shown = round(amount * parts / 1024**power) / parts
        if abs(shown) < 1024 or unit == "TiB":
            break
    return f"{shown:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def seconds(amount: float) -> str:
    """0.25 -> "0.2 s", 75 -> "1 min 15 s", 300 -> "5 min"."""
    whole = round(amount)
    if amount < 10:
        return f"{amount:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")


def roughly(amount: float) -> str:
    """Seconds until something, in one unit, rounded up: 61 -> "61 s", 100 -> "2 min"."""
    whole = math.ceil(amount)
    if whole < 90:
        return f"{whole} s"
    minutes = math.ceil(whole / 60)
    return f"{minutes} min" if minutes < 90 else f"{math.ceil(minutes / 60)} h"


def idle(client: Mapping[str, Any], elapsed: float = 0.0) -> str:
    """What has become of a client that nobody uses, or is about to, `elapsed` seconds after the snapshot; "": nothing.

    JupyterLab says the same (`model/idleness.ts`).
    """
    if client.get("suspended_by_policy"):
        return "suspended for being idle · the next cell or GPU call resumes it"
    warned, evicted, suspended = client.get("idle_warned"), client.get("evicted_in"), client.get("suspended_in")
    if warned and evicted is not None and (suspended is None or evicted < suspended):
        return f"idle · memory moves off in {roughly(max(0.0, evicted - elapsed))}"
    if warned and suspended is not None:
        return f"idle · suspended in {roughly(max(0.0, suspended - elapsed))}"
    if client.get("evicted_by_policy"):
        return "idle · memory moved off until its next turn"
    return "idle for long" if warned and client.get("resident") else ""


def percent(fraction: float) -> str:
    """0.401 -> "40 %"."""
    return f"{100 * fraction:.0f} %"
