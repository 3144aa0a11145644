"""Policies compared on the same workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.errors import Refused
from ..core.policies import policy_of
from ..core.settings import AUTO, Settings
from .results import Results
from .simulation import Simulation
from .workload import Workload


@dataclass(frozen=True)
class Variant:
    """A policy with settings: `name` is what was asked for, such as "fcfs:idle_release=5"."""

    name: str
    settings: Settings


def variant(name: str, common: Mapping[str, str] | None = None) -> Variant:
    """`POLICY[:SETTING=VALUE,…]`, over `common` settings. Raises Refused for a name or value that is not allowed."""
    policy, _, own = name.partition(":")
    values = dict(common or {})
    for pair in filter(None, own.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise Refused(f"policy {name!r}: {pair!r} is not of the form setting=value")
        values[key.strip()] = value.strip()
    settings = changed(Settings(policy=policy), values)
    policy_of(settings)
    return Variant(name, settings)


def changed(settings: Settings, values: Mapping[str, str]) -> Settings:
    """`settings` with some replaced by what people wrote. Raises Refused."""
    known = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name != "policy"}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise Refused(f"setting {name!r} is unknown here: allowed are {', '.join(known)}")
        parsed[name] = _parsed(name, value, known[name])
    return replace(settings, **parsed)


def _parsed(name: str, value: str, present: object) -> object:
    if isinstance(present, bool):
        if value.lower() not in ("true", "false"):
            raise Refused(f"{name}={value!r} is neither true nor false")
        return value.lower() == "true"
    if name not in ("time_quantum", "idle_release") and isinstance(present, str):
        return value
    try:
        return int(value) if isinstance(present, int) else float(value)
    except ValueError:
        if value == AUTO and isinstance(present, str):
            return value
        raise Refused(f"{name}={value!r} is not a number") from None


def compare(
    make: Callable[[int], Workload],
    seeds: Iterable[int],
    variants: Iterable[Variant],
    seconds: float,
    watch: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run every variant on the workload of every seed; the figures of the seeds are put together.

    `watch` is told how much simulated time has passed since it was told last.
    """
    seeds, variants = list(seeds), list(variants)
    pooled = {one.name: Results() for one in variants}
    name = ""
    for seed in seeds:
        workload = make(seed)
        name = workload.name
        for one in variants:
            pooled[one.name] += run(workload, one.settings, seconds, watch)
    return {
        "seed": seeds[0] if len(seeds) == 1 else seeds,
        "trace": name,
        "seconds": seconds,
        "simulated": True,
        "policies": {name: results.as_json() for name, results in pooled.items()},
    }


def run(
    workload: Workload, settings: Settings, seconds: float, watch: Callable[[float], None] | None = None
) -> Results:
    told = 0.0

    def tell(now: float) -> None:
        nonlocal told
        if watch:
            watch(now - told)
            told = now

    results = Simulation(workload, settings).run(seconds, tell if watch else None)
    tell(seconds)
    return results
