"""Utilisation of each device, from NVML or estimated from the busy time of processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...core import Scheduler
from ..clients.client_runtime import ClientRuntime
from ..gpu.nvml import Nvml

_SAMPLES = 3  # one a second


@dataclass(frozen=True)
class DeviceUtilisation:
    """Utilisation of one device from 0 to 1, over the last second or two; None: unknown."""

    fraction: float | None
    is_estimate: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return fields of a device in the snapshot."""
        return {"utilisation": self.fraction, "utilisation_is_estimate": self.is_estimate}


@dataclass(frozen=True)
class _Sample:
    at: float
    busy_seconds: dict[str, float]  # by client


class UtilisationSampler:
    """Sampler of all devices, with one sample a second."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)
        self._current: dict[str, DeviceUtilisation] = {}

    def sample(self, scheduler: Scheduler, runtimes: Iterable[ClientRuntime], now: float) -> None:
        self._samples.append(_Sample(now, {runtime.client_id: runtime.counters.gpu_ns / 1e9 for runtime in runtimes}))
        first, last = self._samples[0], self._samples[-1]
        elapsed = last.at - first.at
        # A process with several devices reports one sum, so each device may have worked all that time.
        busy_seconds = {
            client: seconds - first.busy_seconds.get(client, seconds)
            for client, seconds in last.busy_seconds.items()
            if client in scheduler.clients
        }
        self._current = {}
        for uuid, device in scheduler.devices.items():
            measured = None if device.info.simulated else self._nvml.utilisation(uuid)
            if measured is not None:
                self._current[uuid] = DeviceUtilisation(measured, False)
            elif elapsed > 0:
                busy = sum(busy_seconds.get(client, 0.0) for client in device.clients)
                self._current[uuid] = DeviceUtilisation(round(min(1.0, max(0.0, busy / elapsed)), 3))

    def of_device(self, uuid: str) -> DeviceUtilisation:
        return self._current.get(uuid, DeviceUtilisation(None))
