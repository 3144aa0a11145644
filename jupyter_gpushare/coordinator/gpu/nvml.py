"""Which devices there are: from the simulated driver's description, from NVML, or from what processes report."""

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
    """The devices of the simulated driver, without starting it. Empty (and logged) where it is not built."""
    described = _call_simulated_driver("simcuda_describe")
    return [DeviceInfo(d["uuid"], d["name"], int(d["memory"]), simulated=True) for d in described]


def simulated_processes() -> dict[str, dict[int, int | None]]:
    """By simulated device: the processes there, with their bytes."""
    uuids = [info.uuid for info in simulated_devices()]
    found: dict[str, dict[int, int | None]] = {}
    for process in _call_simulated_driver("simcuda_processes"):
        found.setdefault(uuids[process["index"]], {})[process["pid"]] = process["memory"]
    return found


def _call_simulated_driver(function: str) -> list[dict[str, Any]]:
    """What a function of the simulated driver answers; nothing (and logged) where it is not built."""
    try:
        driver = ctypes.CDLL(str(SIMULATED_DRIVER_PATH))
        buffer = ctypes.create_string_buffer(1 << 16)
        code = driver[function](buffer, ctypes.c_size_t(len(buffer)))
        if code < 0:
            raise OSError(f"{function} returned {code}")
        told: list[dict[str, Any]] = json.loads(buffer.value)
    except (OSError, AttributeError, ValueError) as error:
        log.error("the simulated driver %s cannot be asked (%s): %s", SIMULATED_DRIVER_PATH, function, error)
        return []
    return told


class DeviceSample(NamedTuple):
    """Of one device; None: not known."""

    memory_used: int | None = None
    utilisation: float | None = None
    processes: dict[int, int | None] | None = None


_NO_SAMPLE = DeviceSample()


class Nvml:
    """NVML, if this host has it. No call raises: a host without NVML works from what processes report."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._samples: dict[str, DeviceSample] = {}
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception as error:  # ImportError, or any of NVML's own exceptions
            log.info("NVML is not available (%s); devices become known when processes report them", error)

    def devices(self) -> list[DeviceInfo]:
        """All whole GPUs. One that cannot be read is left out and logged."""
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
                log.warning("GPU %d cannot be read through NVML: %s", index, error)
        return found

    @property
    def handles(self) -> tuple[Any, dict[str, Any]]:
        """The library, or None, and what it knows each device by."""
        return self._nvml, self._handles

    def distance(self, one: str, other: str) -> int | None:
        """How far two devices are apart, as nvmlGpuTopologyLevel_t has it, or None if unknown."""
        if one not in self._handles or other not in self._handles:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(self._handles[one], self._handles[other]))
        except self._nvml.NVMLError:
            return None

    def sample(self) -> None:
        """Read what devices do, for the three methods below. It may hang where the driver does."""
        self._samples = {
            uuid: DeviceSample(self._memory_used(uuid), self._utilisation(uuid), self._processes(uuid))
            for uuid in self._handles
        }

    def discard_samples(self) -> None:
        """What has been read is too old."""
        self._samples = {}

    def memory_used(self, uuid: str) -> int | None:
        """Bytes in use on the device by everybody when it was read, or None if unknown."""
        return self._samples.get(uuid, _NO_SAMPLE).memory_used

    def utilisation(self, uuid: str) -> float | None:
        """The fraction of its last sample period (up to a second) in which the device worked; None if unknown."""
        return self._samples.get(uuid, _NO_SAMPLE).utilisation

    def processes(self, uuid: str) -> dict[int, int | None] | None:
        """The pids that compute on the device, with their bytes as far as they are known; None if they are not."""
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
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
            return {process.pid: process.usedGpuMemory for process in found}
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
