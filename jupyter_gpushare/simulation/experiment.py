"""Comparison of policies on the same workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.base.errors import Refused
from ..core.interface.settings import Settings, is_device_setting, parse_setting, with_device_setting
from ..core.placement import PlacementSettings
from ..core.queueing.policies import policy_of
from .clairvoyant import Clairvoyant
from .reports.report_data import TimelineData
from .reports.results import Results
from .simulation import Simulation
from .workloads.workload import Workload

DEFAULT_POLICY = Settings().policy
SERVERS = "servers"  # no cluster daemon: each server selects nodes by the nodes' snapshots
_NODES_BY = "nodes_by"  # name of the rule among the settings of a policy
RunOne = Callable[
    [Workload, "Variant", float, Callable[[float], None] | None, TimelineData | None], Results
]  # runs one simulation, as `run` does


@dataclass(frozen=True)
class Variant:
    """Policy with settings; `name` is the user's text, such as "fcfs:idle_release=5".

    The policy is that of `settings`, or the yardstick.
    `nodes_by` is SERVERS, or "": a cluster daemon with the strategy of `settings` selects the node of a client.
    """

    name: str
    settings: Settings
    is_clairvoyant: bool = False
    nodes_by: str = ""


def parse_variant(name: str, common: Mapping[str, str] | None = None) -> Variant:
    """Parse `POLICY[:SETTING=VALUE,…]`, with `common` settings below. Raises ValueError."""
    policy, _, own = name.partition(":")
    values = dict(common or {})
    for pair in filter(None, own.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"policy {name!r}: {pair!r} is not of the form setting=value")
        values[key.strip()] = value.strip()
    nodes_by = values.pop(_NODES_BY, "")
    if nodes_by not in ("", SERVERS):
        raise ValueError(f"policy {name!r}: {_NODES_BY}={nodes_by} is unknown: allowed is {SERVERS}")
    is_clairvoyant = policy == Clairvoyant.name
    try:
        settings = Settings() if is_clairvoyant else Settings(policy=policy)
        policy_of(settings)
    except Refused as error:
        raise ValueError(f"{error}, {Clairvoyant.name}") from None
    try:
        settings = with_settings(settings, values)
    except Refused as error:
        raise ValueError(str(error)) from None
    return Variant(name, settings, is_clairvoyant, nodes_by)


def with_settings(settings: Settings, values: Mapping[str, str]) -> Settings:
    """Return `settings` with some replaced by texts that a user wrote. Raises Refused."""
    own = ("policy", "devices")
    present = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in own}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if is_device_setting(name):
            parsed["devices"] = with_device_setting(parsed.get("devices", {}), name, value)
            continue
        if name not in present:
            raise Refused(
                f"setting {name!r} is unknown here: allowed are {', '.join(present)}, and devices.DEVICE.SETTING"
            )
        parsed[name] = _parse(name, value, present[name])
    return replace(settings, **parsed)


def _parse(name: str, value: str, present: object) -> object:
    return replace(present, strategy=value) if isinstance(present, PlacementSettings) else parse_setting(name, value)


@dataclass
class Comparison:
    """Results of a comparison by policy.

    `figures` are described in docs/explanation/simulator.md.
    `pooled` has the results of all seeds, and `timelines` has data of the first seed.
    """

    figures: dict[str, Any]
    pooled: dict[str, Results]
    timelines: dict[str, TimelineData]


def compare(
    make_workload: Callable[[int], Workload],
    seeds: Sequence[int],
    variants: Sequence[Variant],
    seconds: float,
    on_progress: Callable[[float], None] | None = None,
    parameters: Mapping[str, object] | None = None,
    run_one: RunOne | None = None,
) -> Comparison:
    """Run every variant on the workload of every seed, and pool the figures of all seeds.

    `on_progress` gets the simulated seconds since its last call, and the figures include `parameters`.
    `run_one` takes the place of `run`.
    """
    run_one = run_one or run
    began = time.perf_counter()
    pooled = {one.name: Results() for one in variants}
    timelines: dict[str, TimelineData] = {}
    name = ""
    for seed in seeds:
        workload = make_workload(seed)
        name = workload.name
        for one in variants:
            first = None if one.name in timelines else timelines.setdefault(one.name, TimelineData(seconds))
            pooled[one.name] += run_one(workload, one, seconds, on_progress, first)
    took = time.perf_counter() - began
    events = sum(results.events for results in pooled.values())
    figures = {
        "seed": seeds[0] if len(seeds) == 1 else list(seeds),
        "trace": name,
        "simulated": True,
        "seconds": seconds,
        "parameters": dict(parameters or {}),
        "policies": {name: results.as_json() for name, results in pooled.items()},
        "wall_seconds": round(took, 3),
        "events_per_second": round(events / took) if took else None,
    }
    return Comparison(figures, pooled, timelines)


def run(
    workload: Workload,
    variant: Variant,
    seconds: float,
    on_progress: Callable[[float], None] | None = None,
    timeline: TimelineData | None = None,
) -> Results:
    """Run one simulation, with `on_progress` as in `compare`. Raises ValueError for a device that does not exist."""
    reported = 0.0

    def report(now: float) -> None:
        nonlocal reported
        if on_progress:
            on_progress(now - reported)
            reported = now

    try:
        simulation = Simulation(workload, variant.settings, details=timeline, is_clairvoyant=variant.is_clairvoyant)
    except Refused as error:
        raise ValueError(str(error)) from None
    results = simulation.run(seconds, report if on_progress else None)
    report(seconds)
    return results
