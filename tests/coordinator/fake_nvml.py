"""Fake of the functions of nvidia-ml-py that the coordinator calls; the handle of a device is its UUID."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ANY_INSTANCE = 0xFFFFFFFF  # of an event that belongs to no instance alone


class FakeNvml:
    """Module pynvml with fake devices. `lost` has the errors of lost devices; `without` lack the optional counters.

    `slices` has the MIG slices of each device in MIG mode, in which None is an index without a slice. The slices of a
    device are GPU instances from 1 on with compute instance 0.
    """

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(
        self, *uuids: str, without: tuple[str, ...] = (), slices: Mapping[str, tuple[str | None, ...]] | None = None
    ) -> None:
        self.slices = slices or {}
        self.parents = {uuid: gpu for gpu, of_gpu in self.slices.items() for uuid in of_gpu if uuid}
        self.without = (*without, *self.slices, *self.parents)
        self.levels: dict[tuple[str, str], int] = {}
        self.registered: list[str] = []
        self.pids: dict[str, tuple[int, ...]] = {}  # of the processes on a device
        self.lost: dict[str, int] = {}
        self.ecc = dict.fromkeys(uuids, 3)
        self.events: list[tuple[Any, ...]] = []  # device and Xid, with the instances of a slice
        self.nvmlDeviceGetCount = uuids.__len__
        self.nvmlDeviceGetHandleByIndex = uuids.__getitem__

    def _answer(self, handle: str, value: Any) -> Any:
        if handle in self.lost:
            raise self.NVMLError(self.lost[handle])
        return value

    def _unless_lacking(self, handle: str, value: Any) -> Any:
        if handle in self.without:
            raise self.NVMLError(3)
        return self._answer(handle, value)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "Fake GPU MIG 1g.2gb" if handle in self.parents else "Fake GPU"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        total = (2 if handle in self.parents else 8) << 30
        return self._answer(handle, SimpleNamespace(total=total, used=1 << 30))

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle not in self.slices:
            raise self.NVMLError(3)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return len(self.slices[handle])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        found = self.slices[handle][index]
        if found is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        self._answer(handle, None)
        return 1 + [one for one in self.slices[self.parents[handle]] if one].index(handle)

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        if one in self.parents or other in self.parents:
            raise self.NVMLError(2)
        return self.levels[min(one, other), max(one, other)]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        if handle in self.slices:
            raise self.NVMLError(4)  # no permission
        return self._answer(handle, [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids.get(handle, ())])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._unless_lacking(handle, SimpleNamespace(gpu=37, memory=12))

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        if handle not in self.ecc:
            raise self.NVMLError(3)
        return int(self._answer(handle, self.ecc[handle]))

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: object) -> None:
        if handle in self.parents:
            raise self.NVMLError(2)
        self._answer(handle, None)
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> Any:
        if not self.events:
            raise self.NVMLError(10)
        device, data, *instances = self.events.pop(0)
        gpu_instance, compute_instance = instances or (ANY_INSTANCE, ANY_INSTANCE)
        return SimpleNamespace(
            device=device, eventData=data, gpuInstanceId=gpu_instance, computeInstanceId=compute_instance
        )


class FileDrivenNvml(FakeNvml):
    """Module pynvml with one device, whose state a file contains: `well`, `gone`, `lost` or `hangs`."""

    def __init__(self, file: str, uuid: str) -> None:
        super().__init__(uuid)
        self._file = Path(file)

    def _answer(self, handle: str, value: Any) -> Any:
        while (state := self._file.read_text()) == "hangs":
            time.sleep(0.01)
        self.lost = {} if state == "well" else {handle: 15 if state == "lost" else 999}
        return super()._answer(handle, value)
