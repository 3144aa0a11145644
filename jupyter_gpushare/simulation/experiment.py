"""Policies compared on the same workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.base.errors import Refused
from ..core.interface.settings import Settings, parse_setting
from ..core.placement import PlacementSettings
from ..core.queueing.policies import policy_of
from .report_data import TimelineData
from .results import Results
from .simulation import Simulation
from .workload import Workload

DEFAULT_POLICY = Settings().policy


@dataclass(frozen=True)
class Variant:
    """A policy with settings: `name` is what was asked for, such as "fcfs:idle_release=5"."""

    name: str
    settings: Settings


def parse_variant(name: str, common: Mapping[str, str] | None = None) -> Variant:
    """`POLICY[:SETTING=VALUE,…]`, over `common` settings. Raises ValueError for a name or value that is not allowed."""
    policy, _, own = name.partition(":")
    values = dict(common or {})
    for pair in filter(None, own.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"policy {name!r}: {pair!r} is not of the form setting=value")
        values[key.strip()] = value.strip()
    try:
        settings = with_settings(Settings(policy=policy), values)
        policy_of(settings)
    except Refused as error:
        raise ValueError(str(error)) from None
    return Variant(name, settings)


def with_settings(settings: Settings, values: Mapping[str, str]) -> Settings:
    """`settings` with some replaced by what people wrote. Raises Refused."""
    known = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name != "policy"}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise Refused(f"setting {name!r} is unknown here: allowed are {', '.join(known)}")
        parsed[name] = _parse(name, value, known[name])
    return replace(settings, **parsed)


def _parse(name: str, value: str, present: object) -> object:
    return replace(present, strategy=value) if isinstance(present, PlacementSettings) else parse_setting(name, value)


@dataclass
class Comparison:
    """`figures` of docs/explanation/simulator.md; `pooled` results by policy, of all seeds; `details` of the first."""

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
) -> Comparison:
    """Run every variant on the workload of every seed; the figures of the seeds are put together.

    `watch` is told how much simulated time has passed since it was told last. `parameters` are told with the figures.
    """
    began = time.perf_counter()
    pooled = {one.name: Results() for one in variants}
    details: dict[str, TimelineData] = {}
    name = ""
    for seed in seeds:
        workload = make_workload(seed)
        name = workload.name
        for one in variants:
            first = None if one.name in details else details.setdefault(one.name, TimelineData(seconds))
            pooled[one.name] += run(workload, one.settings, seconds, on_progress, first)
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
    return Comparison(figures, pooled, details)


def run(
    workload: Workload,
    settings: Settings,
    seconds: float,
    on_progress: Callable[[float], None] | None = None,
    timeline: TimelineData | None = None,
) -> Results:
    """One simulation. `watch` as for `compare`."""
    told = 0.0

    def tell(now: float) -> None:
        nonlocal told
        if on_progress:
            on_progress(now - told)
            told = now

    results = Simulation(workload, settings, details=timeline).run(seconds, tell if on_progress else None)
    tell(seconds)
    return results
