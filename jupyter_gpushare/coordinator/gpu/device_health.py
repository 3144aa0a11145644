"""Failures of devices that NVML reports: lost devices, uncorrectable memory errors, and hardware errors (Xid)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...nvml_devices import NvmlDevice, text

_ANY_INSTANCE = 0xFFFFFFFF  # of an event that concerns no instance alone (nvmlEventData_t)

# Errors of the hardware or its firmware, after which the device needs an administrator. Source: NVIDIA, "XID Errors".
# Other numbers, such as 13, 31 and 43, are faults of a program.
HARDWARE_XIDS = {
    48: "uncorrectable memory error",
    62: "internal microcontroller halted",
    64: "failed to remap a memory row",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "firmware does not respond",
    120: "firmware failed",
    140: "unrecovered memory error",
    143: "firmware did not start",
}


class DeviceHealth:
    """Health of each device at the last poll. No method raises; without NVML all devices are healthy."""

    def __init__(self, nvml: Any, devices: Mapping[str, NvmlDevice]) -> None:
        """Register for events. `nvml` is the initialised module `pynvml`, or None; `devices` are by UUID."""
        self._nvml = nvml
        self._devices = devices
        self._reported: dict[str, str] = {}
        self._permanent_failures: dict[str, str] = {}  # failures until a reset of the device
        self._error_counts: dict[str, int] = {}  # uncorrectable memory errors at the first poll
        self._events: Any = None
        if nvml is not None and devices:
            self._register_events()

    def poll(self) -> list[tuple[str, str]]:
        """Return (UUID, failure) of each device whose failure has changed; an empty failure means that it works."""
        if self._nvml is None:
            return []
        self._read_events()
        changes = []
        for uuid in self._devices:
            reason = self._permanent_failures.get(uuid) or self._problem(uuid)
            if reason != self._reported.get(uuid, ""):
                self._reported[uuid] = reason
                changes.append((uuid, reason))
        return changes

    def _problem(self, uuid: str) -> str:
        nvml, handle = self._nvml, self._devices[uuid].handle
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            lost = (nvml.NVML_ERROR_GPU_IS_LOST, getattr(nvml, "NVML_ERROR_RESET_REQUIRED", -1))
            return f"lost ({error})" if getattr(error, "value", None) in lost else self._reported.get(uuid, "")
        try:
            kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            errors = int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))
        except nvml.NVMLError:
            return ""  # the device has no such counter
        if errors > self._error_counts.setdefault(uuid, errors):
            self._permanent_failures[uuid] = "uncorrectable memory error"
        return self._permanent_failures.get(uuid, "")

    # --- events

    def _register_events(self) -> None:
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            logging.getLogger(__name__).info("cannot receive hardware errors of devices: %s", error)
            return
        # Events of slices come from their GPU. Source: internal/rm/health.go of NVIDIA/k8s-device-plugin.
        for gpu in {device.gpu_uuid: device.gpu for device in self._devices.values()}.values():
            try:
                nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
            except nvml.NVMLError as error:
                logging.getLogger(__name__).info("cannot receive hardware errors of one device: %s", error)

    def _read_events(self) -> None:
        nvml = self._nvml
        for _ in range(64 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # no event
                return
            description = HARDWARE_XIDS.get(int(event.eventData))
            try:
                gpu_uuid = text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:
                continue
            for uuid, device in self._devices.items() if description else ():
                if device.gpu_uuid == gpu_uuid and _concerns(event, device):
                    self._permanent_failures[uuid] = f"Xid {int(event.eventData)}: {description}"


def _concerns(event: Any, device: NvmlDevice) -> bool:
    """Return whether an event of a GPU concerns the GPU or this slice: an event without instances concerns all."""
    of_event = (event.gpuInstanceId, event.computeInstanceId)
    return device.instances is None or all(
        number in (_ANY_INSTANCE, own) for number, own in zip(of_event, device.instances, strict=True)
    )
