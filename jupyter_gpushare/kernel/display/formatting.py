"""Texts for the quotas and states of clients, as `%gpushare` displays them."""

from __future__ import annotations

import math
import time
from typing import Any, Iterable, Mapping

from jupyter_gpushare.units import format_duration, format_size


def quota_line(quota: Mapping[str, Any], device_memory: float = 0) -> str:
    """Return a quota as text.

    `{"share": 0.5, "memory": None, …}` gives "share 0.5, memory all of the device's (8 GiB)".
    `device_memory` is the memory of the client's devices in bytes, and 0 if it is unknown.
    """
    words = [f"{key} {quota[key]:g}" for key in ("share", "limit") if quota.get(key) is not None]
    all_memory = "all of the device's" + (f" ({format_size(device_memory)})" if device_memory else "")
    for key, unbounded in (("memory", all_memory), ("resident", "as much as fits")):
        if key in quota:
            words.append(f"{key} {unbounded if quota[key] is None else format_size(quota[key])}")
    if quota.get("service"):
        words.append(f"class {quota['service']}")
    return ", ".join(words)


def limit_line(client: Mapping[str, Any]) -> str:
    """Return what limits a client, with the time for which each limit has held; empty without a limit."""
    now = time.time()
    words = [
        f"{limit['text']} (for {format_duration(max(1, round(now - limit['since'])))})"
        for limit in client.get("limits", ())
        if "text" in limit  # a coordinator of an earlier version sends none
    ]
    return "; ".join(words) or str(client.get("limit_text") or "")


def state_line(client: Mapping[str, Any], devices: Iterable[Mapping[str, Any]] = (), elapsed: float = 0.0) -> str:
    """Return a client's `state_text` and its times, `elapsed` seconds after the snapshot.

    Without `devices`, the text lacks the remaining time of a turn.
    The lab extension has the same function (`sharing/clientState.ts`).
    """
    words = [str(client["state_text"])]

    def add(template: str, seconds: float | None) -> None:
        if seconds is not None and seconds > elapsed:
            words.append(template.format(format_duration(math.ceil(seconds - elapsed))))

    state, hold_left = client["state"], client.get("hold_seconds_left")
    grants = [grant for device in devices for grant in device.get("grants", []) if grant["client"] == client["id"]]
    turns_left = [grant["seconds_left"] for grant in grants if grant.get("seconds_left") is not None]
    idle = client.get("idle_seconds")
    if state == "waiting":
        add("about {}", client.get("expected_wait"))
    elif state == "running" and turns_left:
        add("up to {} left", min(turns_left))
    elif idle is not None and idle + elapsed >= 60:
        words.append(f"unused for {format_duration((idle + elapsed) // 60 * 60)}")
    add("{} left" if state == "held" else "held for {}", hold_left)
    evicted, suspended = client.get("evicted_in"), client.get("suspended_in")
    if client.get("idle_warned") and evicted is not None and (suspended is None or evicted < suspended):
        add("memory moves off in {}", evicted)
    elif client.get("idle_warned"):
        add("suspended in {}", suspended)
    return " · ".join(words)


def format_percent(fraction: float) -> str:
    """Return a fraction in percent, such as "40 %" for 0.401."""
    return f"{100 * fraction:.0f} %"
