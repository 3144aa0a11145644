"""Quotas, sizes, times and idleness as `%gpushare` writes them."""

from __future__ import annotations

import math
from typing import Any, Mapping


def quota_line(quota: dict[str, Any]) -> str:
    """`{"share": 0.5, "memory": None, …}` -> "share 0.5, memory unlimited"."""
    words = [f"{key} {quota[key]:g}" for key in ("share", "limit") if quota.get(key) is not None]
    for key in ("memory", "resident"):
        if key in quota:
            words.append(f"{key} {'unlimited' if quota[key] is None else size(quota[key])}")
    if quota.get("service"):
        words.append(f"class {quota['service']}")
    return ", ".join(words)


def size(amount: float) -> str:
    """Bytes: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024.0
    return f"{amount:.4g} TiB"


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
