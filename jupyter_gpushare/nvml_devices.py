"""Devices of a GPU by NVML's handles: the GPU itself, or its slices if it is in MIG mode.

Each function gets the initialised module `pynvml` and raises its exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

log = logging.getLogger(__name__)


class NvmlDevice(NamedTuple):
    """Device by NVML's handle. A MIG slice has the handle and the UUID of its GPU, and the numbers of its instances."""

    handle: Any
    gpu: Any
    gpu_uuid: str
    instances: tuple[int, int] | None = None  # GPU instance and compute instance


def devices_of_gpu(nvml: Any, index: int) -> list[NvmlDevice]:
    """Return the GPU, or its slices, because a process can use only the slices of a GPU in MIG mode.

    A slice that cannot be read, and a GPU in MIG mode without slices, are left out and logged.
    """
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = text(nvml.nvmlDeviceGetUUID(gpu))
    if not _is_in_mig_mode(nvml, gpu):
        return [NvmlDevice(gpu, gpu, uuid)]
    slices = list(_slices(nvml, gpu, uuid))
    if not slices:
        log.warning("leaving out GPU %d (%s), which is in MIG mode and has no slice", index, uuid)
    return slices


def _is_in_mig_mode(nvml: Any, gpu: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # the GPU or its driver does not support the mode
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(nvml: Any, gpu: Any, gpu_uuid: str) -> Iterator[NvmlDevice]:
    # An index without a slice has either error. Source: pkg/nvlib/device/device.go of NVIDIA/go-nvlib.
    absent = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            instances = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        except nvml.NVMLError as error:
            if error.value not in absent:
                log.warning("leaving out MIG slice %d of %s, which NVML cannot read: %s", index, gpu_uuid, error)
            continue
        yield NvmlDevice(handle, gpu, gpu_uuid, instances)


def text(value: str | bytes) -> str:
    """Return a text of NVML, which older versions of `pynvml` return as bytes."""
    return value.decode() if isinstance(value, bytes) else value
