"""Messages about the results of this kernel's calls, for `%gpushare` and the widget.

An argument `how` is the next step that the user can take in this front end, such as
"; %gpushare release ends the hold".
"""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.units import format_duration, format_size

from .formatting import limit_line, quota_line

MOVE_INTERRUPTED = (
    "The move of this kernel is withdrawn, unless the driver has begun it. "
    "%gpushare shows the state and the device of this kernel."
)


def quota(now: dict[str, Any], changed: bool) -> str:
    """Format the result of `ClientApi.quota`."""
    line = ("The quota is now: " if changed else "Quota: ") + quota_line(now, now.get("device_memory", 0))
    return "\n".join([line, *(f"Note: {note}" for note in now.get("notes", []))])


def limits(client: dict[str, Any], state: str) -> str:
    """Format the limits, the state, the quota and the notes of this kernel's client in the snapshot.

    The quota holds always, also where it limits nothing at the moment.
    """
    text = limit_line(client)
    first = f"This kernel is limited: {text}." if text else "No limit of launches or turns holds for this kernel now."
    bounds = f"Quota: {quota_line(client['quota'])}"
    return "\n".join([first, f"State: {state}", bounds, *(f"Note: {note}" for note in client.get("notes", []))])


def released(result: dict[str, Any]) -> str:
    """Format the result of `ClientApi.release`."""
    if result["turn"]:
        return "This kernel gives up the rest of its turn" + (", and its hold has ended." if result["hold"] else ".")
    if result["hold"]:
        return "The hold has ended. This kernel has no turn at present."
    return "This kernel has no turn and no hold, so there is nothing to give up."


def evicted(moved: int) -> str:
    """Format the result of `ClientApi.evict`, in bytes."""
    if moved:
        return f"The memory of this kernel ({format_size(moved)}) moves off the GPU and returns with the next turn."
    return "This kernel has no memory on the GPU that can leave."


def moved(device: str) -> str:
    """Format the result of `ClientApi.move`."""
    return f"This kernel is on device {device} now. Memory on the host returns with its next turn."


def hold_changed(result: dict[str, Any], how: str = "") -> str:
    """Format the result of `ClientApi.hold`."""
    if result["hold_seconds_left"] is None:
        return "This kernel no longer holds the GPU."
    left = format_duration(result["hold_seconds_left"])
    if result["running"]:
        return f"This kernel keeps the GPU for {left}, also between cells{how}."
    return f"When this kernel gets the GPU, it keeps the GPU up to {left} from now{how}."


def suspended(changed: bool, how: str = "you resume the kernel") -> str:
    """Format the result of `ClientApi.suspend`; `how` is the user's action that ends the wait."""
    state = "is suspended" if changed else "was suspended already"
    return f"This kernel {state}: its next GPU call waits until {how}."


def resumed(changed: bool) -> str:
    """Format the result of `ClientApi.resume`."""
    return "This kernel takes turns again." if changed else "This kernel was not suspended."
