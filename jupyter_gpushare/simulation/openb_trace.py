"""The openb trace of GPU pods (Alibaba clusterdata, cluster-trace-gpu-v2023), as clients."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

from ..core.base.quota import Quota
from .traces import InvalidTrace, Trace
from .workload import Cell, Participant

COLUMNS = ("name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time")
PERIOD_SECONDS = 60.0  # seconds: a pod of 300 GPU milli works 18 of them on the GPU, and then not
ONLINE_QOS = ("LS", "Guaranteed", "Burstable")  # the rest, best effort, is offline


def read(path: str, seconds: float, memory: int) -> Trace:
    """Pods with a GPU: `gpu_milli` is the part of each of its devices' memory (`memory` bytes) and time that it uses.

    Times are compressed so that all of it fits into `seconds`. Raises BadTrace, or OSError.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise InvalidTrace(
                f"{path}, line 1: columns {', '.join(missing)} are missing: needed are {', '.join(COLUMNS)}"
            )
        pods = [pod for number, row in enumerate(rows, start=2) if (pod := _parse_pod(path, number, row))]
    if not pods:
        raise InvalidTrace(f"{path}: no pod in it has a GPU")
    first, last = min(pod[3] for pod in pods), max(pod[4] for pod in pods)
    squeeze = seconds / max(1.0, last - first)
    participants = []
    for name, gpus, part, comes, leaves, service in pods:
        participants.append(
            Participant(
                name,
                (Cell(0.0, _DutyCycle(name, part)),),
                int(part * memory) * gpus,
                quota=Quota(service=service, memory=max(1, int(part * memory) * gpus)),
                gpus=gpus,
                arrives=(comes - first) * squeeze,
                departs=(leaves - first) * squeeze,
                kind="job",
            )
        )
    return Trace(f"openb:{Path(path).name}", tuple(participants))


def _parse_pod(path: str, number: int, row: dict[str, str]) -> tuple[str, int, float, float, float, str] | None:
    try:
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
        comes, leaves = float(row["creation_time"]), float(row["deletion_time"] or row["creation_time"])
        if not gpus:
            return None
        if not 0 < milli <= 1000 or not 1 <= gpus <= 64 or leaves < comes:
            raise ValueError(f"num_gpu={gpus}, gpu_milli={milli}, from {comes:g} to {leaves:g}")
    except (ValueError, TypeError) as error:
        allowed = "allowed are num_gpu from 0 to 64, gpu_milli from 1 to 1000, deletion not before creation"
        raise InvalidTrace(f"{path}, line {number}: {error} ({allowed})") from None
    return row["name"], gpus, milli / 1000, comes, leaves, "online" if row["qos"] in ONLINE_QOS else "offline"


class _DutyCycle:
    """Work for a part of each period, for ever; not all pods at the same moment."""

    def __init__(self, name: str, part: float) -> None:
        self._name = name
        self._part = part

    def __iter__(self) -> Iterator[float]:
        begin = Random(self._name).uniform(0, PERIOD_SECONDS)
        rest = PERIOD_SECONDS * (1 - self._part)
        return itertools.chain((begin,), itertools.cycle((PERIOD_SECONDS * self._part, rest)))
