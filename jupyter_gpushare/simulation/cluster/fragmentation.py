"""Unusable part of a cluster by placement strategy, on the openb trace or a trace of the same form.

The experiment is that of Weng et al. (USENIX ATC'23, section 6).
Requests are drawn at random from the trace, with replacement, and placed.
The experiment ends when all requests together ask for as many devices as the cluster has; no request ends.
The requests that could not be placed are lost to fragmentation.
Only devices count: processors and host memory, which the trace has as well, are assumed to be sufficient.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...core.base.errors import Refused
from ...core.placement import Placement, PlacementRequest, PlacementSettings
from ...core.placement.fragmentation_strategy import fragmentation
from ..workloads.traces import csv_rows

PODS = "openb_pod_list_default.csv"
NODES = "openb_node_list_gpu_node.csv"


class Trace(NamedTuple):
    """Trace of a cluster.

    `pods` has the thousandths of each device and the number of devices, and `nodes` the number of devices of each node.
    """

    pods: list[tuple[int, int]]
    nodes: list[int]


def read(path: Path) -> Trace:
    """Read the trace in the folder `path`, two files with the published names. Raises ValueError, OSError."""
    pods = [pod for _, row in csv_rows(str(path / PODS), ("num_gpu", "gpu_milli")) if all(pod := _pod(row))]
    nodes = [count for _, row in csv_rows(str(path / NODES), ("gpu",)) if (count := _integer(row, "gpu"))]
    if not pods:
        raise ValueError(f"{PODS} has no pod that asks for a device")
    if not nodes:
        raise ValueError(f"{NODES} has no node with a device")
    return Trace(pods, nodes)


def _pod(row: Mapping[str, str | None]) -> tuple[int, int]:
    size = _integer(row, "gpu_milli")
    if size > 1000:
        raise ValueError(f"gpu_milli={size} is out of range: allowed are 0 to 1000")
    return size, _integer(row, "num_gpu")


def _integer(row: Mapping[str, str | None], column: str) -> int:
    """Return the value of a column. A row with too few values has None there."""
    value = row[column]
    if value is None:
        raise ValueError(f"a row has no value for {column}")
    if not value.isdecimal():
        raise ValueError(f"{column}={value!r} is not a whole number")
    return int(value)


def cluster(nodes: Sequence[int], strategy: str) -> Placement:
    """Return the placement of an empty cluster with these numbers of devices."""
    topology = {f"n{n}": {"s": {"w": [f"{n}-{d}" for d in range(count)]}} for n, count in enumerate(nodes)}
    placement = Placement(PlacementSettings(strategy=strategy, topology=topology))
    for number, count in enumerate(nodes):
        for device in range(count):
            placement.add_device(f"{number}-{device}", "", 0)
    return placement


def measure(trace: Trace, strategy: str, seed: int) -> dict[str, Any]:
    """Place requests for all devices of the cluster, and return the figures.

    `allocated` is the fraction of all devices that has been allocated, and `failed` the fraction of refused requests.
    `fragmented` is the fraction of all devices that the next request is expected to find unusable.
    `microseconds` is the mean time of one decision.
    """
    rng = random.Random(seed)
    placement = cluster(trace.nodes, strategy)
    capacity = 1000 * sum(trace.nodes)
    requested = allocated = failures = number = 0
    began = time.perf_counter()
    while requested < capacity:
        size, gpus = rng.choice(trace.pods)
        number += 1
        requested += size * gpus
        try:
            placement.place(f"p{number}", PlacementRequest(gpus=gpus, share=size / 1000))
        except Refused:
            failures += 1
        else:
            allocated += size * gpus
    seconds = time.perf_counter() - began
    return {
        "requests": number,
        "allocated": round(allocated / capacity, 4),
        "failed": round(failures / number, 4),
        "fragmented": round(unusable_share(placement, trace) / capacity, 4),
        "microseconds": round(seconds / number * 1e6, 1),
    }


def unusable_share(placement: Placement, trace: Trace) -> float:
    """Return the free thousandths that a random request of the trace is expected to find unusable."""
    nodes: dict[str, list[int]] = {}
    for device in placement.allocations.values():
        nodes.setdefault(device.node, []).append(device.free_thousandths)
    counts: dict[tuple[int, int], int] = {}
    for pod in trace.pods:
        counts[pod] = counts.get(pod, 0) + 1
    weights = [(pod, count / len(trace.pods)) for pod, count in counts.items()]
    states: dict[tuple[int, ...], int] = {}
    for free in nodes.values():
        key = tuple(sorted(free))
        states[key] = states.get(key, 0) + 1
    return sum(fragmentation(free, weights) * count for free, count in states.items())
