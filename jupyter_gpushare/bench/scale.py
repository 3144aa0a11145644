"""Cost of a decision with 10 to 10,000 clients and of placement on 1,000 nodes, and speed of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..simulation import experiment, scale
from ..simulation.cluster import placement_costs

PLACEMENT = "placement"  # among the policies


def measure(device: str, rounds: int, policies: Sequence[str] = ()) -> dict[str, Any]:
    """Return `{POLICY: {"one_device": [{"clients", "devices", "p50", "p99", "mean"}], "many_devices": …, …}}`.

    The figures are microseconds per decision, while nearly every client always waits for a device.
    `{"placement": …}` has those of `placement_costs.measure`.
    `rounds` is the number of measured decisions.
    Raises RuntimeError for an unknown policy and for the simulator's own.
    """
    try:
        variants = [experiment.parse_variant(name) for name in policies or [experiment.DEFAULT_POLICY]]
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    if any(one.is_clairvoyant for one in variants):
        raise RuntimeError("policy 'clairvoyant' exists in the simulator only: allowed are the policies of the setting")
    figures = {one.name: scale.measure(one, measured=rounds or scale.MEASURED_DECISIONS) for one in variants}
    return {**figures, PLACEMENT: placement_costs.measure()}


def format_figures(figures: dict[str, Any]) -> list[str]:
    """Format the figures as lines of text."""
    text = []
    placement = figures[PLACEMENT]
    for policy, costs in figures.items():
        if policy == PLACEMENT:
            continue
        text.append(f"{policy}: µs per decision, p50 / p99")
        for one, many in zip(costs["one_device"], costs["many_devices"], strict=True):
            devices = f"{many['devices']:,} device{'s' * (many['devices'] > 1)}"
            text.append(
                f"{one['clients']:>8,} clients   on one device {one['p50']:>7,.1f} / {one['p99']:<9,.1f}"
                f"{many['clients']:,} on {devices} {many['p50']:>7,.1f} / {many['p99']:,.1f}"
            )
        whole = costs["simulation"]
        text.append(
            f"   a whole simulation: {whole['events_per_second']:,} events a second ({whole['events']:,} events)"
        )
    text.append(
        f"placement: {placement['nodes']:,} nodes with {placement['devices']:,} devices, {placement['clients']:,} "
        "clients, p50 / p99 / max"
    )
    for strategy, costs in placement.items():
        if isinstance(costs, dict):
            text.append(f"   {strategy}")
            text += [
                f"{' '.join(words):>36}{one['p50']:>12,.3f} / {one['p99']:,.3f} / {one['max']:,.3f} {unit}"
                for (*words, unit), one in ((kind.split("_"), one) for kind, one in costs.items())
            ]
    return text
