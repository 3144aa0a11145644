"""Devices of the host from NVML and from the description of the simulated driver."""

from __future__ import annotations

import ctypes
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from ...core.base.device_info import DeviceInfo

SIMULATED_DRIVER_PATH = Path(__file__).resolve().parents[2] / "native" / "simcuda" / "libcuda.so.1"

log = logging.getLogger(__name__)


def simulated_devices() -> list[DeviceInfo]:
    """Return the devices of the simulated driver, without its start; none, with a log record, if it is not built."""
    devices = _call_simulated_driver("simcuda_describe")
    return [DeviceInfo(d["uuid"], d["name"], int(d["memory"]), simulated=True) for d in devices]


def simulated_processes() -> dict[str, dict[int, int | None]]:
    """Return the processes on each simulated device, with their memory in bytes."""
    uuids = [info.uuid for info in simulated_devices()]
    processes: dict[str, dict[int, int | None]] = {}
    for process in _call_simulated_driver("simcuda_processes"):
        processes.setdefault(uuids[process["index"]], {})[process["pid"]] = process["memory"]
    return processes


def _call_simulated_driver(function: str) -> list[dict[str, Any]]:
    """Return the result of a function of the simulated driver; empty, with a log record, if the driver is not built."""
    try:
        driver = ctypes.CDLL(str(SIMULATED_DRIVER_PATH))
        buffer = ctypes.create_string_buffer(1 << 16)
        code = driver[function](buffer, ctypes.c_size_t(len(buffer)))
        if code < 0:
            raise OSError(f"{function} returned {code}")
        result: list[dict[str, Any]] = json.loads(buffer.value)
    except (OSError, AttributeError, ValueError) as error:
        log.error("cannot call %s of the simulated driver %s: %s", function, SIMULATED_DRIVER_PATH, error)
        return []
    return result


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
