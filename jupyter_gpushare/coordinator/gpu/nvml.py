"""Devices of the host from NVML: their distances, and samples of their memory, utilisation and processes."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ...core.base.device_info import DeviceInfo
from ...nvml_devices import NvmlDevice, devices_of_gpu, text

log = logging.getLogger(__name__)


class DeviceSample(NamedTuple):
    """Sample of one device; None: unknown."""

    memory_used: int | None = None
    utilisation: float | None = None
    processes: dict[int, int | None] | None = None


_NO_SAMPLE = DeviceSample()
_SAME_GPU = 0  # distance of two slices of one GPU (NVML_TOPOLOGY_INTERNAL)


class Nvml:
    """Access to NVML. No method raises; on a host without NVML, devices become known by the reports of processes."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: dict[str, NvmlDevice] = {}
        self._samples: dict[str, DeviceSample] = {}
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception as error:  # ImportError, or any of NVML's own exceptions
            log.info("waiting for processes to report devices, because NVML is not available: %s", error)

    def devices(self) -> list[DeviceInfo]:
        """Return all GPUs without MIG mode, and all MIG slices. A GPU that cannot be read is left out and logged."""
        found: list[DeviceInfo] = []
        for index in range(self._nvml.nvmlDeviceGetCount() if self._nvml else 0):
            try:
                found += [self._describe(device) for device in devices_of_gpu(self._nvml, index)]
            except self._nvml.NVMLError as error:
                log.warning("leaving out GPU %d, which NVML cannot read: %s", index, error)
        return found

    def _describe(self, device: NvmlDevice) -> DeviceInfo:
        uuid, name = (
            text(self._nvml.nvmlDeviceGetUUID(device.handle)),
            text(self._nvml.nvmlDeviceGetName(device.handle)),
        )
        memory = int(self._nvml.nvmlDeviceGetMemoryInfo(device.handle).total)
        self._devices[uuid] = device
        return DeviceInfo(uuid, name, memory, parent=device.gpu_uuid if device.instances else "")

    @property
    def handles(self) -> tuple[Any, dict[str, NvmlDevice]]:
        """Library `pynvml`, or None, and its devices by UUID."""
        return self._nvml, self._devices

    def distance(self, one: str, other: str) -> int | None:
        """Return the distance of two devices, or of the GPUs of slices, as nvmlGpuTopologyLevel_t; None if unknown."""
        if one not in self._devices or other not in self._devices:
            return None
        first, second = self._devices[one], self._devices[other]
        if first.gpu_uuid == second.gpu_uuid:
            return _SAME_GPU
        try:
            return int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(first.gpu, second.gpu))
        except self._nvml.NVMLError:
            return None

    def sample(self) -> None:
        """Take a sample of each device, for the three methods below. May hang with the driver."""
        self._samples = {
            uuid: DeviceSample(self._memory_used(uuid), self._utilisation(uuid), self._processes(uuid))
            for uuid in self._devices
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
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._devices[uuid].handle).used)
        except self._nvml.NVMLError:
            return None

    def _utilisation(self, uuid: str) -> float | None:
        try:
            return min(1.0, float(self._nvml.nvmlDeviceGetUtilizationRates(self._devices[uuid].handle).gpu) / 100)
        except self._nvml.NVMLError:  # a GPU in MIG mode and its slices have none
            return None

    def _processes(self, uuid: str) -> dict[int, int | None] | None:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._devices[uuid].handle)
            return {process.pid: process.usedGpuMemory for process in processes}
        except self._nvml.NVMLError:
            return None
