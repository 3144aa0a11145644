"""Simulation of the nodes of a cluster: a node is selected for each client, and each node is simulated for itself.

The selection depends on the requests of clients and on their arrivals and departures, and not on turns.
So the clients of each node are known before its simulation, and the nodes are simulated in parallel processes.
The scheduler of a node places its clients on its own devices.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from random import Random

from ...core.base.errors import Refused
from ..experiment import Variant, run
from ..reports.report_data import TimelineData
from ..reports.results import Results
from ..workloads.node_list import Node
from ..workloads.workload import Participant, Workload
from .node_selection import node_selection


def draw_pods(pods: Sequence[Participant], memory: int, devices: int, load: float, seed: int) -> list[Participant]:
    """Return pods of a trace, drawn at random with replacement, that run from the beginning to the end.

    Together they ask for the fraction `load` of the devices, each of `memory` bytes, as in the experiments of Weng et
    al. (USENIX ATC'23).
    """
    rng = Random(f"pods {seed}")
    drawn: list[Participant] = []
    asked = 0
    while asked < load * devices * memory:
        pod = rng.choice(pods)
        asked += pod.memory
        drawn.append(replace(pod, id=f"{pod.id}-{len(drawn)}", arrives=0.0, departs=None))
    return drawn


def run_nodes(
    nodes: Sequence[Node],
    workload: Workload,
    variant: Variant,
    seconds: float,
    on_progress: Callable[[float], None] | None = None,
    timeline: TimelineData | None = None,
) -> Results:
    """Run one simulation of a workload whose devices are those of the nodes, in their order.

    The arguments are those of `experiment.run`; no timeline is made. Raises ValueError as `experiment.run` does.
    """
    workloads, refused = place_clients(
        nodes, workload, variant.nodes_by or variant.settings.placement.strategy, seconds
    )
    results = Results()
    jobs = [(one, variant, seconds) for one in workloads]
    context = multiprocessing.get_context("fork")  # the workloads have iterators, which cannot be sent
    with ProcessPoolExecutor(os.cpu_count(), context, _set_jobs, (jobs,)) as processes:
        for one in processes.map(_run_job, range(len(jobs))):
            results += one
            if on_progress:
                on_progress(seconds / len(jobs))
    results.seconds = seconds
    results.refused += refused
    return results


_jobs: list[tuple[Workload, Variant, float]] = []  # of a process of the pool


def _set_jobs(jobs: Sequence[tuple[Workload, Variant, float]]) -> None:
    _jobs[:] = jobs


def _run_job(number: int) -> Results:
    return run(*_jobs[number])


def place_clients(nodes: Sequence[Node], workload: Workload, rule: str, seconds: float) -> tuple[list[Workload], int]:
    """Return the workload of each node, and the number of refused clients.

    All clients that arrive within `seconds` are placed, in the order of arrivals and departures.
    """
    selection = node_selection(rule, {node.name: node.devices for node in nodes}, workload.devices[0].memory)
    clients: dict[str, list[Participant]] = {node.name: [] for node in nodes}
    refused = 0
    participants = workload.participants
    events = [(one.arrives, 1, number) for number, one in enumerate(participants)]
    events += [(one.departs, 0, number) for number, one in enumerate(participants) if one.departs is not None]
    for time, is_arrival, number in sorted(events):
        if time > seconds:
            break
        client = participants[number]
        if not is_arrival:
            selection.remove(client, time)
            continue
        try:
            clients[selection.place(client, time)].append(client)
        except Refused:
            refused += 1
    needs = workload.client_needs()
    made, first = [], 0
    for node in nodes:
        devices = workload.devices[first : first + node.devices]
        own = tuple(clients[node.name])
        made.append(replace(workload, name=node.name, devices=devices, participants=own, needs=needs))
        first += node.devices
    return made, refused
