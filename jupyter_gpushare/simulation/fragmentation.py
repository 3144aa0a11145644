"""How much of a cluster each placement strategy leaves unusable, on the openb trace (or any of its form).

The experiment of Weng et al. (USENIX ATC'23, section 6): requests are drawn at random from the trace, with
replacement, and placed until so many devices have been asked for as the cluster has (or more); nothing ends. What was
asked for and could not be placed is lost to fragmentation. Here only devices count; processors and host memory, which
the trace has as well, are taken to be enough.
"""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.base.errors import Refused
from ..core.placement import Placement, PlacementRequest, PlacementSettings
from ..core.placement.fragmentation_strategy import fragmentation

PODS = "openb_pod_list_default.csv"
NODES = "openb_node_list_gpu_node.csv"


class Trace(NamedTuple):
    """`pods`: thousandths of each device, and how many devices; `nodes`: devices of each."""

    pods: list[tuple[int, int]]
    nodes: list[int]


def read(path: Path) -> Trace:
    """The trace in the folder `path`: two files named as the published ones. Raises ValueError, or OSError."""
    pods = [_pod(row) for row in _rows(path / PODS, ("num_gpu", "gpu_milli"))]
    nodes = [_integer(row, "gpu") for row in _rows(path / NODES, ("gpu",))]
    return Trace([pod for pod in pods if pod[0] and pod[1]], [count for count in nodes if count])


def _rows(path: Path, columns: Sequence[str]) -> Iterable[dict[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        for column in columns:
            if column not in (reader.fieldnames or ()):
                raise ValueError(f"{path.name} has no column {column!r}: needed are {', '.join(columns)}")
        yield from reader


def _pod(row: dict[str, str]) -> tuple[int, int]:
    size = _integer(row, "gpu_milli")
    if size > 1000:
        raise ValueError(f"gpu_milli={size} is out of range: allowed are 0 to 1000")
    return size, _integer(row, "num_gpu")


def _integer(row: dict[str, str], column: str) -> int:
    value = row[column]
    if not value.isdecimal():
        raise ValueError(f"{column}={value!r} is not a whole number")
    return int(value)


def cluster(nodes: Sequence[int], strategy: str) -> Placement:
    """Nodes with so many devices each, empty."""
    topology = {f"n{n}": {"s": {"w": [f"{n}-{d}" for d in range(count)]}} for n, count in enumerate(nodes)}
    placement = Placement(PlacementSettings(strategy=strategy, topology=topology))
    for number, count in enumerate(nodes):
        for device in range(count):
            placement.add_device(f"{number}-{device}", "", 0)
    return placement


def measure(trace: Trace, strategy: str, seed: int, upto: float = 1.0) -> dict[str, Any]:
    """Ask for `upto` times the devices there are.

    `allocated`: the part of all devices that was given away; `failed`: the part of requests that found no place;
    `fragmented`: the part of all devices that the next request is expected not to be able to use; `microseconds`: mean
    time of one decision.
    """
    draw = random.Random(seed)
    placement = cluster(trace.nodes, strategy)
    capacity = 1000 * sum(trace.nodes)
    asked = given = failures = number = 0
    began = time.perf_counter()
    while asked < upto * capacity:
        size, gpus = draw.choice(trace.pods)
        number += 1
        asked += size * gpus
        try:
            placement.place(f"p{number}", PlacementRequest(gpus=gpus, share=size / 1000))
        except Refused:
            failures += 1
        else:
            given += size * gpus
    seconds = time.perf_counter() - began
    return {
        "requests": number,
        "allocated": round(given / capacity, 4),
        "failed": round(failures / number, 4),
        "fragmented": round(unusable_share(placement, trace) / capacity, 4),
        "microseconds": round(seconds / number * 1e6, 1),
    }


def unusable_share(placement: Placement, trace: Trace) -> float:
    """Thousandths that the next request, any of the trace, is expected not to be able to use."""
    nodes: dict[str, list[int]] = {}
    for book in placement.allocations.values():
        nodes.setdefault(book.node, []).append(book.free_thousandths)
    counts: dict[tuple[int, int], int] = {}
    for pod in trace.pods:
        counts[pod] = counts.get(pod, 0) + 1
    weights = [(pod, count / len(trace.pods)) for pod, count in counts.items()]
    states: dict[tuple[int, ...], int] = {}
    for free in nodes.values():
        key = tuple(sorted(free))
        states[key] = states.get(key, 0) + 1
    return sum(fragmentation(free, weights) * count for free, count in states.items())
