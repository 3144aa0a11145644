"""Present limits on the launches, turns and memory of a client, as a field for programs and as a text for users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core import Scheduler
from ...core.interface.launch_budget import ADAPTIVE, BLOCKS, DEVICE_SECONDS, MEASURING, SHARE, SURPLUS
from ...core.state.model import RUNNING, WAITING, Client
from ...units import format_duration, format_size
from ..clients.client_runtime import ClientRuntime

_AMOUNTS: dict[str, Callable[[float], str]] = {
    BLOCKS: lambda rate: f"{rate:,.0f} block{'s' * (rate != 1)}/s",
    DEVICE_SECONDS: lambda rate: f"{100 * rate:.3g} % of the device's time",
    "queued_seconds": lambda seconds: f"{format_duration(seconds)} of work queued",
    "turn_bytes": lambda size: f"{format_size(int(size))} of its memory on the GPU in its turns",
    "bytes": lambda size: f"{format_size(int(size))} of its memory on the GPU between its turns",
}
_REASONS = {
    MEASURING: "the speed of {} without other clients is measured first",
    ADAPTIVE: "the speed of {} is kept",
    SHARE: "its share, colocated with {}",
    SURPLUS: "its share and idle time, colocated with {}",
    "others_wait": "other clients wait, or run beside it",
    "spilled": "the memory of online clients stays",
    "resident": "resident in its quota",
}
_NO_TURN_REASONS = {
    "suspended": "it is suspended",
    "time_limit": "it has run for as long as the limit of its quota allows so far",
    "takeover": "its memory does not fit beside that of an online client, which would lose too much time",
    "other_coordinator": "a client of another coordinator has its device",
    "short_of_room": "memory of another client cannot leave its device",
}


def limits_field(scheduler: Scheduler, client: Client, runtime: ClientRuntime, now: float) -> list[dict[str, Any]]:
    """Return the field `limits` of a client in the snapshot, and record which limits are in force."""
    limits = _present_limits(scheduler, client, runtime, now)
    keys = [(limit["reason"], tuple(limit["colocated_with"])) for limit in limits]
    since = runtime.limit_times.update(keys)
    return [{**limit, "since": since[key]} for limit, key in zip(limits, keys, strict=True)]


def _present_limits(scheduler: Scheduler, client: Client, runtime: ClientRuntime, now: float) -> list[dict[str, Any]]:
    colocation = scheduler.turns.colocation
    limits = []
    if client.suspended:
        limits.append(_limit(None, None, "suspended"))
    elif client.phase == WAITING:
        if client.time_limit and client.time_limit.ready_at() > now:
            limits.append(_limit(None, None, "time_limit"))
        if client.service_rank and client.takeover_at > now:
            limits.append(_limit(None, None, "takeover"))
        if any(device.taken_by_other_since is not None for device in client.device_bindings):
            limits.append(_limit(None, None, "other_coordinator"))
        if client.is_short_of_room:
            limits.append(_limit(None, None, "short_of_room"))
        if failure := colocation.failed_packing(client, now):
            members, progress = failure
            limits.append(_limit(None, None, "packing", *sorted(members - {client.id}), loss=1.0 - progress))
    if budget := runtime.budget:
        loss = colocation.online_loss(client) if budget.reason == ADAPTIVE else None
        limits.append(_limit(budget.rate, budget.unit, budget.reason, *budget.colocated_with, loss=loss))
    window = max((handle.page.control.window_ns for handle in runtime.processes.values()), default=0)
    if window and client.phase == RUNNING and client.permit and client.permit.contended:
        limits.append(_limit(window / 1e9, "queued_seconds", "others_wait"))
    if client.turn_limit is not None and client.phase == RUNNING:
        limits.append(_limit(client.turn_limit, "turn_bytes", "spilled"))
    allocations = client.memory_use.allocated - client.memory_use.context  # no quota counts context memory
    if client.quota.resident is not None and allocations > client.quota.resident:
        limits.append(_limit(client.quota.resident, "bytes", "resident"))
    return limits


def _limit(
    rate: float | None, unit: str | None, reason: str, *colocated_with: str, loss: float | None = None
) -> dict[str, Any]:
    """Return one limit. A limit without a rate lets the client have no turn, or none beside `colocated_with`.

    `loss`: the measured part of the progress that is lost beside these clients.
    """
    rounded = None if rate is None else round(rate, 6)
    return {
        "rate": rounded,
        "unit": unit,
        "reason": reason,
        "colocated_with": colocated_with,
        "loss": None if loss is None else round(loss, 3),
    }


def describe_limits(limits: list[dict[str, Any]], name_of: Callable[[str], str]) -> str:
    """Format the limits as a text. `name_of` returns the name of a client that the reader may see."""
    return "; ".join(_describe(limit, name_of) for limit in limits)


def _describe(limit: dict[str, Any], name_of: Callable[[str], str]) -> str:
    names = ", ".join(dict.fromkeys(map(name_of, limit["colocated_with"])))
    loss = "" if limit["loss"] is None else f"{100 * max(0.0, limit['loss']):.3g} %"
    if limit["reason"] == "packing":
        return f"no turn beside {names}: together they did {loss} less work than in turns"
    if limit["rate"] is None:
        return f"no turn: {_NO_TURN_REASONS[limit['reason']]}"
    reason = _REASONS[limit["reason"]].format(names) + (f" ({loss} slower than alone)" if loss else "")
    return f"at most {_AMOUNTS[limit['unit']](limit['rate'])}: {reason}"
