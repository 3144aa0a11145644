"""Fake of the functions of nvidia-ml-py that the coordinator calls; the handle of a device is its UUID."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class FakeNvml:
    """Module pynvml with fake devices. `lost` has the errors of lost devices; `without` lack the optional counters."""

    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *uuids: str, without: tuple[str, ...] = ()) -> None:
        self.without = without
        self.lost: dict[str, int] = {}
        self.ecc = dict.fromkeys(uuids, 3)
        self.events: list[tuple[str, int]] = []
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
        return "Fake GPU"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._answer(handle, SimpleNamespace(total=8 << 30, used=1 << 30))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return self._answer(handle, [])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._unless_lacking(handle, SimpleNamespace(gpu=37, memory=12))

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        if handle not in self.ecc:
            raise self.NVMLError(3)
        return int(self._answer(handle, self.ecc[handle]))

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: object) -> None:
        self._unless_lacking(handle, None)

    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> Any:
        if not self.events:
            raise self.NVMLError(10)
        device, data = self.events.pop(0)
        return SimpleNamespace(device=device, eventData=data)


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
