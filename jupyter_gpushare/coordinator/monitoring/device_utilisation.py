"""How busy each device is: by NVML, or else estimated from what processes say of the time it worked for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...core import Scheduler
from ..clients.client_runtime import ClientRuntime
from ..gpu.nvml import Nvml

_SAMPLES = 3  # taken once a second


@dataclass(frozen=True)
class DeviceUtilisation:
    """Of one device: from 0 to 1, over the last second or two; None: not known."""

    fraction: float | None
    is_estimate: bool = True

    def as_json(self) -> dict[str, Any]:
        """Fields of a device in the snapshot."""
        return {"utilisation": self.fraction, "utilisation_is_estimate": self.is_estimate}


@dataclass(frozen=True)
class _Sample:
    at: float
    worked: dict[str, float]  # by client: seconds that devices have worked for it


class UtilisationSampler:
    """Looked at once a second, and read by whoever asks."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)
        self._current: dict[str, DeviceUtilisation] = {}

    def sample(self, scheduler: Scheduler, runtimes: Iterable[ClientRuntime], now: float) -> None:
        self._samples.append(_Sample(now, {runtime.client_id: runtime.counters.gpu_ns / 1e9 for runtime in runtimes}))
        first, last = self._samples[0], self._samples[-1]
        passed = last.at - first.at
        # A process with several devices tells one sum: each of them may have worked all that time.
        worked = {
            client: seconds - first.worked.get(client, seconds)
            for client, seconds in last.worked.items()
            if client in scheduler.clients
        }
        self._current = {}
        for uuid, device in scheduler.devices.items():
            measured = None if device.info.simulated else self._nvml.utilisation(uuid)
            if measured is not None:
                self._current[uuid] = DeviceUtilisation(measured, False)
            elif passed > 0:
                busy = sum(worked.get(client, 0.0) for client in device.clients)
                self._current[uuid] = DeviceUtilisation(round(min(1.0, max(0.0, busy / passed)), 3))

    def of_device(self, uuid: str) -> DeviceUtilisation:
        return self._current.get(uuid, DeviceUtilisation(None))
