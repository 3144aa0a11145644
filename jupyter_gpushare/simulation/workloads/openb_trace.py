"""Reader of the openb trace (Alibaba clusterdata, cluster-trace-gpu-v2023), which converts GPU pods to participants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

from ...core.base.quota import Quota
from .traces import InvalidTrace, Trace, csv_rows
from .workload import Cell, Participant

COLUMNS = ("name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time")
PERIOD_SECONDS = 60.0  # a pod of 300 GPU milli works on the GPU for 18 s of each period
ONLINE_QOS = ("LS", "Guaranteed", "Burstable")  # pods of the other class, best effort, are offline


def read(path: str, seconds: float, memory: int) -> Trace:
    """Read the pods with a GPU, with times compressed to `seconds` in all. Raises InvalidTrace, OSError.

    A pod uses the fraction `gpu_milli` of the time and of the memory (`memory` bytes) of each of its devices.
    """
    pods = [pod for number, row in csv_rows(path, COLUMNS) if (pod := _parse_pod(path, number, row))]
    if not pods:
        raise InvalidTrace(f"{path}: no pod of the trace has a GPU")
    first, last = min(pod[3] for pod in pods), max(pod[4] for pod in pods)
    squeeze = seconds / max(1.0, last - first)
    participants = []
    for name, gpus, fraction, arrives, departs, service in pods:
        participants.append(
            Participant(
                name,
                (Cell(0.0, _DutyCycle(name, fraction)),),
                int(fraction * memory) * gpus,
                quota=Quota(service=service, memory=max(1, int(fraction * memory) * gpus)),
                gpus=gpus,
                arrives=(arrives - first) * squeeze,
                departs=(departs - first) * squeeze,
                kind="job",
            )
        )
    return Trace(f"openb:{Path(path).name}", tuple(participants))


def _parse_pod(path: str, number: int, row: dict[str, str]) -> tuple[str, int, float, float, float, str] | None:
    try:
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
        created, deleted = float(row["creation_time"]), float(row["deletion_time"] or row["creation_time"])
        if not gpus:
            return None
        if not 0 < milli <= 1000 or not 1 <= gpus <= 64 or not _is_period(created, deleted):
            raise ValueError(f"num_gpu={gpus}, gpu_milli={milli}, from {created:g} to {deleted:g}")
    except (ValueError, TypeError) as error:
        allowed = (
            "allowed are num_gpu from 0 to 64, gpu_milli from 1 to 1000, finite times, deletion not before creation"
        )
        raise InvalidTrace(f"{path}, line {number}: {error} ({allowed})") from None
    return row["name"], gpus, milli / 1000, created, deleted, "online" if row["qos"] in ONLINE_QOS else "offline"


def _is_period(begin: float, end: float) -> bool:
    return math.isfinite(end - begin) and begin <= end


class _DutyCycle:
    """Endless phases with work for a fraction of each period; pods begin at different moments."""

    def __init__(self, name: str, fraction: float) -> None:
        self._name = name
        self._fraction = fraction

    def __iter__(self) -> Iterator[float]:
        begin = Random(self._name).uniform(0, PERIOD_SECONDS)
        rest = PERIOD_SECONDS * (1 - self._fraction)
        return itertools.chain((begin,), itertools.cycle((PERIOD_SECONDS * self._fraction, rest)))
