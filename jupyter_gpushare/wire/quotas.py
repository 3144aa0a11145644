"""Quotas as people write and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import size_word

MEMORY_MODES = ("unified", "swap", "plain")  # as the shim knows them


def canonical_quota(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return quota words with `class` as `service`, in lower case. Raises ValueError where both are given."""
    if "class" in words and "service" in words:
        raise ValueError("class and service are two names of the same thing: give one of them")
    known = {"service" if word == "class" else word: value for word, value in words.items()}
    if isinstance(known.get("service"), str):
        known["service"] = known["service"].lower()
    return known


def format_quota(quota: Mapping[str, Any]) -> str:
    """Return a quota, or a part of one, as it may be typed: "share=0.5 memory=8GiB resident=none class=online"."""
    words = [f"{name}={quota[name]:g}" for name in ("share", "limit") if name in quota]
    for name in ("memory", "resident"):
        if name in quota:
            words.append(f"{name}={'none' if quota[name] is None else size_word(quota[name])}")
    return " ".join([*words, *([f"class={quota['service']}"] if "service" in quota else [])])
