"""Present limits on the launches, turns and memory of a client, as a field for programs and as a text for users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core import Scheduler
from ...core.interface.launch_budget import ADAPTIVE, BLOCKS, DEVICE_SECONDS, MEASURING, SHARE, SURPLUS
from ...core.state.model import Client
from ...core.views import present_limits
from ...units import format_duration, format_size
from ..clients.client_runtime import ClientRuntime

_AMOUNTS: dict[str, Callable[[float], str]] = {
    BLOCKS: lambda rate: f"{rate:,.0f} block{'s' * (rate != 1)}/s",
    DEVICE_SECONDS: lambda rate: f"{100 * rate:.3g} % of the device's time",
    present_limits.QUEUED_SECONDS: lambda seconds: f"{format_duration(seconds)} of work queued",
    present_limits.TURN_BYTES: lambda size: f"{format_size(int(size))} of its memory on the GPU in its turns",
    present_limits.BYTES: lambda size: f"{format_size(int(size))} of its memory stays on the GPU",
}
_REASONS = {
    MEASURING: "the speed of {} without offline clients is measured first",
    ADAPTIVE: "the speed of {} is kept",
    SHARE: "its share, colocated with {}",
    SURPLUS: "its share and idle time, colocated with {}",
    present_limits.OTHERS_WAIT: "other clients wait, or run beside it",
    present_limits.SPILLED: "the memory of online clients stays",
    present_limits.RESIDENT: "resident in its quota",
}
_NO_TURN_REASONS = {
    present_limits.SUSPENDED: "it is suspended",
    present_limits.TIME_LIMIT: "it has run for as long as the limit of its quota allows so far",
    present_limits.TAKEOVER: "its memory does not fit beside that of an online client, which would lose too much time",
    present_limits.ONLINE_FIRST: "an online client has its device, and online clients go first",
    present_limits.OTHER_COORDINATOR: "a client of another coordinator has its device",
    present_limits.SHORT_OF_ROOM: "memory of another client cannot leave its device",
}


def limits_field(scheduler: Scheduler, client: Client, runtime: ClientRuntime, now: float) -> list[dict[str, Any]]:
    """Return the field `limits` of a client in the snapshot, and record which limits are in force."""
    window = max((handle.page.control.window_ns for handle in runtime.processes.values()), default=0) / 1e9
    limits = list(present_limits.present_limits(scheduler, client, now, window))
    since = runtime.limit_times.update((limit.reason, limit.colocated_with) for limit in limits)
    return [
        {
            "rate": None if limit.rate is None else round(limit.rate, 6),
            "unit": limit.unit,
            "reason": limit.reason,
            "colocated_with": limit.colocated_with,
            "loss": None if limit.loss is None else round(limit.loss, 3),
            "since": since[limit.reason, limit.colocated_with],
        }
        for limit in limits
    ]


def describe_limit(limit: dict[str, Any], name_of: Callable[[str], str]) -> str:
    """Format the limit as a text. `name_of` returns the name of a client that the reader may see."""
    names = ", ".join(dict.fromkeys(map(name_of, limit["colocated_with"])))
    loss = "" if limit["loss"] is None else f"{100 * max(0.0, limit['loss']):.3g} %"
    if limit["reason"] == present_limits.PACKING:
        return f"no turn beside {names}: together they did {loss} less work than in turns"
    if limit["rate"] is None:
        return f"no turn: {_NO_TURN_REASONS[limit['reason']]}"
    reason = _REASONS[limit["reason"]].format(names)
    slowdown = f" ({loss} slower than without offline clients)" if loss else ""
    return f"at most {_AMOUNTS[limit['unit']](limit['rate'])}: {reason}{slowdown}"
