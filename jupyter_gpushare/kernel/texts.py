"""Quotas, sizes and times as `%gpushare` writes them."""

from __future__ import annotations

from typing import Any


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


def percent(fraction: float) -> str:
    """0.401 -> "40 %"."""
    return f"{100 * fraction:.0f} %"
