"""What admins set, in `jupyter_gpushare_config.py` or `jupyter_server_config.py` (`c.GpuShare.…`)."""

from __future__ import annotations

import math
from typing import Any

from traitlets import Bool, Dict, Enum, Float, TraitError, Unicode, validate
from traitlets.config import Configurable

from .wire import address, text


class GpuShare(Configurable):
    """Sharing one host's GPUs among notebook kernels."""

    time_quantum = Float(
        30.0,
        help="Seconds that one client may keep the GPU while others wait (0.001 to 86400). "
        "Without waiters there is no end.",
    ).tag(config=True)

    policy = Unicode("fcfs", help="Who is next: 'fcfs' (first come, first served).").tag(config=True)

    idle_release = Float(
        0.25,
        help="Seconds without GPU work, within a cell, after which the GPU passes to those who wait (0.001 to 86400).",
    ).tag(config=True)

    cell_linger = Float(
        0.05,
        help="Seconds after the end of a cell before the GPU passes on, because 'Run All' sends the next one at once "
        "(0 to 60).",
    ).tag(config=True)

    inflight_window = Float(
        0.02,
        help="Seconds of GPU work that a client may have outstanding while others wait, so that the end of its turn "
        "isn't held up by what it has queued (0.001 to 10; 0: no bound). A single launch may take longer.",
    ).tag(config=True)

    default_quota = Dict(
        help="Quota of a client that asks for nothing else, for example {'memory': '8GiB', 'limit': 0.9}. "
        "Keys: share, limit, memory, resident, service.",
    ).tag(config=True)

    device_memory = Unicode(
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

    pinned_memory = Unicode(
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
    def _check_duration(self, proposal: dict[str, Any]) -> float:
        return _in_range(proposal, 0.001, 86400.0)

    @validate("cell_linger")
    def _check_linger(self, proposal: dict[str, Any]) -> float:
        return _in_range(proposal, 0.0, 60.0)

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


def _in_range(proposal: dict[str, Any], lowest: float, highest: float) -> float:
    value = float(proposal["value"])
    if not math.isfinite(value) or not lowest <= value <= highest:
        raise TraitError(
            f"GpuShare.{proposal['trait'].name} must be from {lowest:g} to {highest:g} seconds, not {value:g}"
        )
    return value
