"""Quota options under the names of the protocol, quotas as text for users, and the names of memory modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import size_word

MEMORY_MODES = ("unified", "swap", "plain")  # in the order of the shim's numbers


def canonical_quota(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return quota options with `class` as `service`, in lower case. Raises ValueError if both are given."""
    if "class" in options and "service" in options:
        raise ValueError("class and service are two names of the same option: give one of them")
    fields = {"service" if name == "class" else name: value for name, value in options.items()}
    if isinstance(fields.get("service"), str):
        fields["service"] = fields["service"].lower()
    return fields


def format_quota(quota: Mapping[str, Any]) -> str:
    """Return a quota, or some of its fields, as users type it: "share=0.5 memory=8GiB resident=none class=online"."""
    options = [f"{name}={quota[name]:g}" for name in ("share", "limit") if name in quota]
    for name in ("memory", "resident"):
        if name in quota:
            options.append(f"{name}={'none' if quota[name] is None else size_word(quota[name])}")
    return " ".join([*options, *([f"class={quota['service']}"] if "service" in quota else [])])
