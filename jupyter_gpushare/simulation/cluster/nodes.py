"""Simulation of the nodes of a cluster: clients are placed on nodes, and each node is simulated for itself.

Placement depends on the requests of clients and on their arrivals and departures, and not on turns.
So the clients of each node are known before its simulation, and the nodes are simulated in parallel processes.
The placement chooses a node by the devices of the whole cluster.
The scheduler of that node then places the client on its own devices, with the same strategy.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from random import Random

from ...core.base.errors import Refused
from ...core.placement import Placement, PlacementRequest, PlacementSettings
from ..experiment import Variant, run
from ..free_capacity import FreeCapacity
from ..reports.report_data import TimelineData
from ..reports.results import Results
from ..workloads.node_list import Node
from ..workloads.workload import Participant, Workload


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
    cluster = NodeWorkloads(nodes, workload, variant.settings.placement)
    cluster.place_all(seconds)
    results = Results()
    jobs = [(one, variant, seconds) for one in cluster.workloads() if one.participants]
    context = multiprocessing.get_context("fork")  # the workloads have iterators, which cannot be sent
    with ProcessPoolExecutor(os.cpu_count(), context, _set_jobs, (jobs,)) as processes:
        for one in processes.map(_run_job, range(len(jobs))):
            results += one
            if on_progress:
                on_progress(seconds / len(jobs))
    results.device_seconds = seconds * len(workload.devices)
    results.seconds = seconds
    results.refused += cluster.refused
    results.free, results.unusable = cluster.capacity.free, cluster.capacity.unusable
    return results


_jobs: list[tuple[Workload, Variant, float]] = []  # of a process of the pool


def _set_jobs(jobs: Sequence[tuple[Workload, Variant, float]]) -> None:
    _jobs[:] = jobs


def _run_job(number: int) -> Results:
    return run(*_jobs[number])


class NodeWorkloads:
    """Workload of each node, by a placement of all clients on the devices of the nodes."""

    def __init__(self, nodes: Sequence[Node], workload: Workload, settings: PlacementSettings) -> None:
        self.refused = 0
        self._nodes = nodes
        self._workload = workload
        self._clients: list[list[Participant]] = [[] for _ in nodes]
        self._memory = workload.devices[0].memory
        needs = (participant.memory / participant.gpus / self._memory for participant in workload.participants)
        self.capacity = FreeCapacity(needs, len(workload.devices))
        topology = {node.name: {"s": {"w": [f"{node.name}/{n}" for n in range(node.devices)]}} for node in nodes}
        self._placement = Placement(replace(settings, topology=topology))
        self._places: dict[str, tuple[int, int]] = {}  # node and device by the id of a device
        for number, node in enumerate(nodes):
            for device in range(node.devices):
                uuid = f"{node.name}/{device}"
                self._placement.add_device(uuid, "", workload.devices[len(self._places)].memory)
                self._places[uuid] = number, len(self._places)

    def place_all(self, seconds: float) -> None:
        """Place all clients that arrive within `seconds`, in the order of arrivals and departures."""
        participants = self._workload.participants
        events = [(one.arrives, 1, number) for number, one in enumerate(participants)]
        events += [(one.departs, 0, number) for number, one in enumerate(participants) if one.departs is not None]
        for time, is_arrival, number in sorted(events):
            if time > seconds:
                break
            self._arrive(participants[number], time) if is_arrival else self._depart(participants[number], time)
        self.capacity.advance(seconds)

    def workloads(self) -> list[Workload]:
        """Return the workload of each node."""
        made, first = [], 0
        for node, clients in zip(self._nodes, self._clients, strict=True):
            devices = self._workload.devices[first : first + node.devices]
            made.append(replace(self._workload, name=node.name, devices=devices, participants=tuple(clients)))
            first += node.devices
        return made

    def _arrive(self, client: Participant, time: float) -> None:
        quota = client.quota
        request = PlacementRequest(
            gpus=client.gpus, share=quota.share or 0.0, memory=client.memory or None, service=quota.service or "online"
        )
        try:
            devices = self._placement.place(client.id, request)
        except Refused:
            self.refused += 1
            return
        self._clients[self._places[devices[0]][0]].append(client)
        self._count(client, devices, 1, time)

    def _depart(self, client: Participant, time: float) -> None:
        placed = self._placement.placed.get(client.id)
        if placed:
            self._placement.remove(client.id)
            self._count(client, placed.devices, -1, time)

    def _count(self, client: Participant, devices: Sequence[str], sign: int, time: float) -> None:
        need = sign * client.memory / client.gpus / self._memory
        for device in devices:
            self.capacity.update(self._places[device][1], need, time)
