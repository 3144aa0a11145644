"""Cost of a decision with 10 to 10,000 clients, and events a second of a simulation, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..simulation import experiment, scale


def measure(device: str, rounds: int, policies: Sequence[str] = ()) -> dict[str, Any]:
    """Return `{POLICY: {"one_device": [{"clients", "devices", "p50", "p99", "mean"}], "many_devices": …, …}}`.

    The figures are microseconds per decision, while nearly every client always waits for a device.
    `rounds` is the number of measured decisions.
    Raises RuntimeError for an unknown policy and for the simulator's own.
    """
    try:
        variants = [experiment.parse_variant(name) for name in policies or [experiment.DEFAULT_POLICY]]
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    if any(one.is_clairvoyant for one in variants):
        raise RuntimeError("policy 'clairvoyant' exists in the simulator only: allowed are the policies of the setting")
    return {one.name: scale.measure(one, measured=rounds or scale.MEASURED_DECISIONS) for one in variants}


def format_figures(figures: dict[str, Any]) -> list[str]:
    """Format the figures as lines of text."""
    text = []
    for policy, costs in figures.items():
        text.append(f"{policy}: µs per decision, p50 / p99")
        for one, many in zip(costs["one_device"], costs["many_devices"], strict=True):
            devices = f"{many['devices']:,} device{'s' * (many['devices'] > 1)}"
            text.append(
                f"{one['clients']:>8,} clients   on one device {one['p50']:>7,.1f} / {one['p99']:<9,.1f}"
                f"on {devices} {many['p50']:>7,.1f} / {many['p99']:,.1f}"
            )
        whole = costs["simulation"]
        text.append(
            f"   a whole simulation: {whole['events_per_second']:,} events a second ({whole['events']:,} events)"
        )
    return text
