"""What admins set, in `jupyter_gpushare_config.py` or `jupyter_server_config.py` (`c.GpuShare.…`)."""

from __future__ import annotations

import math
from typing import Any

from traitlets import Bool, Dict, Enum, Float, TraitError, Unicode, Union, validate

from .config_users import ManyUsers
from .wire import address, text

_RANGES = {
    "cell_linger": (0.0, 60.0),
    "min_quantum": (0.001, 30.0),
    "max_wait": (1.0, 86400.0),
    "max_hold": (0.0, 86400.0),
    "overrun_patience": (0.0, 86400.0),
    "usage_kept": (1.0, 36500.0),
}


class Number(Float):  # type: ignore[type-arg]
    """traitlets takes True for 1.0."""

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, bool):
            raise TraitError(f"GpuShare.{self.name} must be a number, not {value}")
        return super().validate(obj, value)


class Size(Unicode):  # type: ignore[type-arg]
    """Text such as "16GiB"; a number of bytes too, as people write it in a configuration file."""

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        elif not isinstance(value, str):
            raise TraitError(f"GpuShare.{self.name}: {value!r} is not a size (examples: 8GiB, 512MiB)")
        return super().validate(obj, value)


class GpuShare(ManyUsers):
    """Sharing one host's GPUs among notebook kernels."""

    time_quantum = Union(
        [Number(), Unicode()],
        default_value="auto",
        help="Seconds that a turn lasts while others wait (0.001 to 86400), or 'auto': from 0.1 (see min_quantum) to "
        "30 seconds, so that switching costs 5 % of the time. The policy 'interactive' lets a turn go on while all who "
        "wait have used the GPU for longer, and ends it earlier for who has used it for less. Without waiters there is "
        "no end.",
    ).tag(config=True)

    policy = Unicode(
        "interactive",
        help="Who is next: 'interactive' (short cells overtake long ones), 'fair' (by the shares in quotas), its "
        "presets 'best_effort', 'fixed_share', 'burst_share' and 'weighted', or 'fcfs' (first come, first served). "
        "See docs/policies.md.",
    ).tag(config=True)

    sharing = Enum(
        ("exclusive", "auto", "packed"),
        "auto",
        help="Whether clients run at the same time: 'exclusive' (never), 'auto' (if their memory fits together, as "
        "long as that is faster than turns), 'packed' (whenever their memory fits together).",
    ).tag(config=True)

    tuning = Bool(
        False,
        help="Whether the scheduler tries how much time switching may take, where time_quantum is 'auto', and how long "
        "it waits for more work, where idle_release is 'auto', and keeps what makes people wait least.",
    ).tag(config=True)

    min_quantum = Number(
        0.1,
        help="Seconds that a turn lasts at least while it is used (0.001 to 30); online clients do not wait for it.",
    ).tag(config=True)

    max_wait = Number(
        300.0,
        help="Seconds after which a waiting client goes first, whatever it has used before (1 to 86400).",
    ).tag(config=True)

    max_hold = Number(600.0, help="Seconds that a client may keep the GPU between cells with `hold` (0 to 86400).").tag(
        config=True
    )

    idle_release = Union(
        [Number(), Unicode()],
        default_value="auto",
        help="Seconds without GPU work, within a cell, after which the GPU passes to those who wait (0.001 to 86400), "
        "or 'auto': about as long as passing it on and getting it back takes.",
    ).tag(config=True)

    cell_linger = Number(
        0.05,
        help="Seconds after the end of a cell before the GPU passes on, because 'Run All' sends the next one at once "
        "(0 to 60).",
    ).tag(config=True)

    idle_warn = Union(
        [Number(), Unicode()],
        default_value="auto",
        help="Seconds for which nobody has used a client after which its user is told (1 to 604800; 0: never), or "
        "'auto': ten minutes before anything is done about it.",
    ).tag(config=True)

    idle_evict = Union(
        [Number(), Unicode()],
        default_value="auto",
        help="Seconds for which nobody has used a client after which its memory leaves the GPU, until its next turn "
        "(1 to 604800; 0: never), or 'auto': half an hour, where the GPU has too little memory for all who share it.",
    ).tag(config=True)

    idle_suspend = Number(
        0.0,
        help="Seconds for which nobody has used a client after which it is suspended, until its next cell or GPU call "
        "(1 to 604800; 0: never).",
    ).tag(config=True)

    overrun = Enum(
        ("wait", "join", "interrupt"),
        "wait",
        help="What becomes of a turn that is over and whose work on the GPU does not end while others wait: 'wait' "
        "(for its end), 'join' (after overrun_patience those whose memory fits run beside it), 'interrupt' (then its "
        "kernel is asked, once, to interrupt its cell). No process is ever ended.",
    ).tag(config=True)

    overrun_patience = Number(
        30.0,
        help="Seconds from when a turn is reported not to end, which is some 10 seconds after it should have, until "
        "what overrun says is done about it (0 to 86400).",
    ).tag(config=True)

    inflight_window = Number(
        0.02,
        help="Seconds of GPU work that a client may have outstanding while others wait, so that the end of its turn "
        "isn't held up by what it has queued (0.001 to 10; 0: no bound). A single launch may take longer.",
    ).tag(config=True)

    exempt_launches = Number(
        0.0,
        help="Seconds: launches of functions that take less pass by the rate that holds an offline client back beside "
        "online ones (0 to 0.1; 0: none do). Endless short launches then pass too.",
    ).tag(config=True)

    placement = Enum(
        ("spread", "pack", "fgd"),
        "spread",
        help="Which device a new client gets, where there are several: 'spread' (with the fewest clients), 'pack' "
        "(with the least room that is enough), 'fgd' (where the least becomes unusable for later ones).",
    ).tag(config=True)

    oversubscription = Number(
        0.0,
        help="How often a device's memory may be promised to clients that ask for a share of it with `memory` (1 or "
        "more; 0: no bound). Devices on which it fits are preferred in any case.",
    ).tag(config=True)

    tenants = Dict(
        help="Groups of users with ceilings and devices of their own, by name, for example {'students': {'groups': "
        "['students'], 'share': 1.5, 'limit': 0.5, 'memory': '8GiB', 'max_clients': 20, 'cells': {'socket': 1}}}. "
        "See docs/policies.md.",
    ).tag(config=True)

    topology = Unicode(
        "",
        help="A JSON file that says which devices are behind which PCIe switch on which socket; empty: as NVML says. "
        "See docs/policies.md.",
    ).tag(config=True)

    metrics = Unicode(
        "",
        help="Where the coordinator itself tells Prometheus its metrics, as /metrics: '127.0.0.1:9400', '[::1]:9400', "
        "'unix:/path', or, for other hosts to read it, 'open:0.0.0.0:9400'. Empty: nowhere. See docs/metrics.md.",
    ).tag(config=True)

    usage_kept = Number(
        400.0, help="Days for which the coordinator remembers who used the GPUs (1 to 36500); the last month by hours."
    ).tag(config=True)

    default_quota = Dict(
        help="Quota of a client that asks for nothing else, for example {'memory': '8GiB', 'limit': 0.9}. "
        "Keys: share, limit, memory, resident, service (or class).",
    ).tag(config=True)

    device_memory = Size(
        "",
        help="What each device is taken to hold at most, for example '16GiB'; empty: all of it. "
        "A part of a card can so be kept out of sharing.",
    ).tag(config=True)

    memory_mode = Enum(
        text.MEMORY_MODES,
        "unified",
        help="How clients that do not say otherwise hold device memory: 'unified' (may exceed the device), 'swap' "
        "(copied out and in with the turns, at the speed of the link), 'plain' (never moved; for programs that pass "
        "device memory between processes). See docs/memory.md.",
    ).tag(config=True)

    pinned_memory = Size(
        "",
        help="Host memory that each process in memory mode 'swap' may pin for what it has moved off the device, for "
        "example '8GiB': copies to it are as fast as the link is. Empty: none, but for two small buffers.",
    ).tag(config=True)

    simulate = Bool(
        False,
        help="Use the simulated CUDA driver instead of a real one. Every view says so; no GPU is touched.",
    ).tag(config=True)

    coordinator = Unicode(
        "", help="Socket address of the coordinator, /path or unix:/path; empty: found or started by itself."
    ).tag(config=True)

    @validate("time_quantum", "idle_release")
    def _check_duration(self, proposal: dict[str, Any]) -> float | str:
        return _is_auto(proposal) or _in_range(proposal, 0.001, 86400.0)

    @validate("idle_warn", "idle_evict", "idle_suspend")
    def _check_idle(self, proposal: dict[str, Any]) -> float | str:
        if proposal["trait"].name != "idle_suspend" and _is_auto(proposal):
            return "auto"
        return float(proposal["value"]) and _in_range(proposal, 1.0, 604800.0, "seconds, or 0 for never")

    @validate("cell_linger", "min_quantum", "max_wait", "max_hold", "overrun_patience")
    def _check_range(self, proposal: dict[str, Any]) -> float:
        return _in_range(proposal, *_RANGES[proposal["trait"].name])

    @validate("usage_kept")
    def _check_days(self, proposal: dict[str, Any]) -> float:
        return _in_range(proposal, *_RANGES["usage_kept"], unit="days")

    @validate("oversubscription")
    def _check_oversubscription(self, proposal: dict[str, Any]) -> float:
        value = float(proposal["value"])
        if value and not (math.isfinite(value) and 1 <= value <= 1000):
            raise TraitError(f"GpuShare.oversubscription must be from 1 to 1000, or 0 for no bound, not {value:g}")
        return value

    @validate("exempt_launches")
    def _check_exempt(self, proposal: dict[str, Any]) -> float:
        return _in_range(proposal, 0.0, 0.1)

    @validate("inflight_window")
    def _check_window(self, proposal: dict[str, Any]) -> float:
        return float(proposal["value"]) and _in_range(proposal, 0.001, 10.0)

    @validate("device_memory", "pinned_memory")
    def _check_size(self, proposal: dict[str, Any]) -> str:
        value = str(proposal["value"])
        name = proposal["trait"].name
        try:
            if value and text.parse_size(value) <= 0:
                empty = "the whole device" if name == "device_memory" else "none"
                raise ValueError(f"{value!r} is not above 0 (examples: 16GiB; empty for {empty})")
        except ValueError as error:
            raise TraitError(f"GpuShare.{name}: {error}") from None
        return value

    @validate("metrics")
    def _check_metrics(self, proposal: dict[str, Any]) -> str:
        value = str(proposal["value"])
        try:
            if value:
                address.metrics_address(value)
        except address.BadAddress as error:
            raise TraitError(f"GpuShare.metrics: {error}") from None
        return value

    @validate("coordinator")
    def _check_address(self, proposal: dict[str, Any]) -> str:
        value = str(proposal["value"])
        try:
            return address.socket_path(value) if value else ""
        except address.BadAddress as error:
            raise TraitError(f"GpuShare.coordinator: {error}") from None

    def argv(self) -> list[str]:
        """Options for a coordinator with these settings, as far as they differ from the defaults."""
        options = []
        for name, trait in sorted(self.traits(config=True).items()):
            value = getattr(self, name)
            if name == "coordinator" or value == trait.default():
                continue
            options.append(f"--GpuShare.{name}={value!r}" if isinstance(value, dict) else f"--GpuShare.{name}={value}")
        return options


def _is_auto(proposal: dict[str, Any]) -> str:
    """The word "auto", if it is that; else "", and the proposal is a number. Raises TraitError for another word."""
    if isinstance(proposal["value"], str):
        word = proposal["value"].strip().lower()
        if word == "auto":
            return word
        try:
            proposal["value"] = float(word)
        except ValueError:
            name = proposal["trait"].name
            raise TraitError(
                f"GpuShare.{name} must be a number of seconds or 'auto', not {proposal['value']!r}"
            ) from None
    return ""


def _in_range(proposal: dict[str, Any], lowest: float, highest: float, unit: str = "seconds") -> float:
    value = float(proposal["value"])
    if not math.isfinite(value) or not lowest <= value <= highest:
        name = proposal["trait"].name
        raise TraitError(f"GpuShare.{name} must be from {lowest:g} to {highest:g} {unit}, not {value:g}")
    return value
