"""What the calls of this kernel have brought, as sentences: `%gpushare` and the widget say the same.

`how` is what the reader may do next, from where it is read: "; %gpushare release ends that".
"""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.units import format_duration, format_size

from .formatting import quota_line


def quota(now: dict[str, Any], changed: bool) -> str:
    line = ("Quota is now: " if changed else "Quota: ") + quota_line(now, now.get("device_memory", 0))
    return "\n".join([line, *(f"Note: {note}" for note in now.get("notes", []))])


def released(result: dict[str, Any]) -> str:
    """Of `Calls.release`."""
    if result["turn"]:
        return "The rest of this kernel's turn is given up" + (", and its hold has ended." if result["hold"] else ".")
    if result["hold"]:
        return "This kernel's hold has ended; it had no turn now."
    return "This kernel has no turn now, and holds nothing, so there is nothing to give up."


def evicted(moved: int) -> str:
    """Of `Calls.evict`."""
    if moved:
        return f"This kernel's memory leaves the GPU ({format_size(moved)}); it comes back with the next turn."
    return "This kernel has no memory on the GPU."


def hold_changed(result: dict[str, Any], how: str = "") -> str:
    """Of `Calls.hold`."""
    if result["hold_seconds_left"] is None:
        return "This kernel holds the GPU no longer."
    left = format_duration(result["hold_seconds_left"])
    if result["running"]:
        return f"This kernel keeps the GPU for {left}, working or not{how}."
    return f"Once this kernel has the GPU it keeps it, up to {left} from now{how}."


def suspended(changed: bool, how: str = "it is resumed") -> str:
    """Of `Calls.suspend`; `how`: until when."""
    state = "is suspended" if changed else "was suspended already"
    return f"This kernel {state}: its next GPU call waits until {how}."


def resumed(changed: bool) -> str:
    """Of `Calls.resume`."""
    return "This kernel takes part again." if changed else "This kernel was not suspended."
