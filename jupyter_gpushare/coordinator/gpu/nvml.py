"""Devices of the host from NVML: their distances, and samples of their memory, utilisation and processes."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ...core.base.device_info import DeviceInfo

log = logging.getLogger(__name__)


class DeviceSample(NamedTuple):
    """Sample of one device; None: unknown."""

    memory_used: int | None = None
    utilisation: float | None = None
    processes: dict[int, int | None] | None = None


_NO_SAMPLE = DeviceSample()


class Nvml:
    """Access to NVML. No method raises; on a host without NVML, devices become known by the reports of processes."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._samples: dict[str, DeviceSample] = {}
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception as error:  # ImportError, or any of NVML's own exceptions
            log.info("waiting for processes to report devices, because NVML is not available: %s", error)

    def devices(self) -> list[DeviceInfo]:
        """Return all whole GPUs. A GPU that cannot be read is left out and logged."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount() if self._nvml else 0):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = (
                    _text(self._nvml.nvmlDeviceGetUUID(handle)),
                    _text(self._nvml.nvmlDeviceGetName(handle)),
                )
                found.append(DeviceInfo(uuid, name, int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)))
                self._handles[uuid] = handle
            except self._nvml.NVMLError as error:
                log.warning("leaving out GPU %d, which NVML cannot read: %s", index, error)
        return found

    @property
    def handles(self) -> tuple[Any, dict[str, Any]]:
        """Library `pynvml`, or None, and its handle of each device by UUID."""
        return self._nvml, self._handles

    def distance(self, one: str, other: str) -> int | None:
        """Return the distance of two devices as nvmlGpuTopologyLevel_t, or None if unknown."""
        if one not in self._handles or other not in self._handles:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(self._handles[one], self._handles[other]))
        except self._nvml.NVMLError:
            return None

    def sample(self) -> None:
        """Take a sample of each device, for the three methods below. May hang with the driver."""
        self._samples = {
            uuid: DeviceSample(self._memory_used(uuid), self._utilisation(uuid), self._processes(uuid))
            for uuid in self._handles
        }

    def discard_samples(self) -> None:
        """Discard the samples because they are too old."""
        self._samples = {}

    def memory_used(self, uuid: str) -> int | None:
        """Return the bytes that all processes use on the device, as of the last sample, or None if unknown."""
        return self._samples.get(uuid, _NO_SAMPLE).memory_used

    def utilisation(self, uuid: str) -> float | None:
        """Return the fraction of NVML's last sample period (up to a second) with work on the device, or None."""
        return self._samples.get(uuid, _NO_SAMPLE).utilisation

    def processes(self, uuid: str) -> dict[int, int | None] | None:
        """Return the pids that compute on the device, with their bytes or None; None if the pids are unknown."""
        return self._samples.get(uuid, _NO_SAMPLE).processes

    def _memory_used(self, uuid: str) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid]).used)
        except self._nvml.NVMLError:
            return None

    def _utilisation(self, uuid: str) -> float | None:
        try:
            return min(1.0, float(self._nvml.nvmlDeviceGetUtilizationRates(self._handles[uuid]).gpu) / 100)
        except self._nvml.NVMLError:  # MIG slices have none
            return None

    def _processes(self, uuid: str) -> dict[int, int | None] | None:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
            return {process.pid: process.usedGpuMemory for process in processes}
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
