"""Facts about MIG slices (see test_facts.py), which need a device in MIG mode with a slice.

No fact changes the mode or the slices of a card.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import mig
from .harness import CANNOT_RUN, IS_GPU, Cuda, environment, newest_observations, on_driver, start_test

on_slices = on_driver(GPUSHARE_SIM_CONFIG=str(mig.CONFIG))


def found_slices() -> tuple[Any, list[mig.Slice]]:
    """Return NVML and its slices. Without a slice on a GPU, the process ends."""
    nvml = mig.load_nvml()
    found = mig.slices(nvml)
    if not found:
        assert IS_GPU
        sys.exit(CANNOT_RUN)
    return nvml, found


@on_slices
def test_slices_are_listed_under_their_device(cuda: Cuda) -> None:
    """nvmlDeviceGetCount counts whole devices only. A device in MIG mode has its slices by index, with gaps, below
    nvmlDeviceGetMaxMigDeviceCount. A slice has a UUID that begins with MIG-, and a handle of its device.

    Source: NVML API, "Multi Instance GPU Management"; MIG User Guide, "MIG Device Names" (nvidia-smi -L);
    pkg/nvlib/device/device.go of NVIDIA/go-nvlib (gaps). Not yet seen on a GPU.
    """
    nvml, found = found_slices()
    devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    uuids = [nvml.nvmlDeviceGetUUID(device) for device in devices]
    assert all(uuid.startswith("GPU-") for uuid in uuids) and not any(map(nvml.nvmlDeviceIsMigDeviceHandle, devices))
    for one in found:
        uuid = nvml.nvmlDeviceGetUUID(one.handle)
        assert uuid.startswith("MIG-") and nvml.nvmlDeviceIsMigDeviceHandle(one.handle)
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one.handle)
        assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(one.device)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        whole = nvml.nvmlDeviceGetMemoryInfo(one.device).total if not IS_GPU else 1 << 63
        assert 0 < nvml.nvmlDeviceGetMemoryInfo(one.handle).total < whole
        assert nvml.nvmlDeviceGetComputeRunningProcesses(one.handle) is not None
    assert len({nvml.nvmlDeviceGetUUID(one.handle) for one in found}) == len(found)


@on_slices
def test_slices_of_a_device_differ_by_their_instances(cuda: Cuda) -> None:
    """The numbers of GPU instance and compute instance together name a slice of a device, as in events of NVML.

    Source: NVML API, nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId, nvmlEventData_t. Not yet seen on a
    GPU.
    """
    nvml, found = found_slices()
    names = {
        (
            nvml.nvmlDeviceGetUUID(one.device),
            nvml.nvmlDeviceGetGpuInstanceId(one.handle),
            nvml.nvmlDeviceGetComputeInstanceId(one.handle),
        )
        for one in found
    }
    assert len(names) == len(found)


@on_slices
def test_a_device_in_mig_mode_has_no_utilisation(cuda: Cuda) -> None:
    """NVML has no utilisation of a device in MIG mode, and none of its slices. (So the coordinator estimates it.)

    Source: NVML API, nvmlDeviceGetUtilizationRates. Not yet seen on a GPU.
    """
    nvml, found = found_slices()
    for handle in found[0]:
        with pytest.raises(nvml.NVMLError):
            nvml.nvmlDeviceGetUtilizationRates(handle)


@on_slices
def test_a_process_sees_one_slice_and_no_whole_device(cuda: Cuda) -> None:
    """Where a slice is visible, the driver lists one slice and no other device. cuDeviceGetUuid_v2 has the UUID of the
    slice, and cuDeviceGetUuid the UUID of the whole device. (By these the shim names a slice.)

    Source: MIG User Guide, "CUDA Device Enumeration"; CUDA driver API, cuDeviceGetUuid_v2. Not yet seen on a GPU.
    """
    nvml, found = found_slices()
    assert int(cuda.cuDeviceGetCount()) == 1
    uuids = {nvml.nvmlDeviceGetUUID(one.handle): nvml.nvmlDeviceGetUUID(one.device) for one in found}
    uuid = mig.uuid_text(cuda.device)
    assert uuids.get(uuid) == mig.uuid_text(cuda.device, "cuDeviceGetUuid")
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        assert uuid == next(iter(uuids)), "the first slice"
    assert (
        int(cuda.cuDeviceTotalMem(cuda.device))
        <= nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid)).total
    )


def list_choices(cuda: Cuda) -> None:
    """Print values of CUDA_VISIBLE_DEVICES, each with the UUID of the slice that must be visible."""
    nvml, found = found_slices()
    uuids = [nvml.nvmlDeviceGetUUID(one.handle) for one in found]
    last = found[-1]
    device = nvml.nvmlDeviceGetUUID(last.device)
    first = next(uuid for uuid, one in zip(uuids, found, strict=True) if nvml.nvmlDeviceGetUUID(one.device) == device)
    for uuid in uuids:
        print(uuid, uuid)
    print(f"{uuids[-1]},{uuids[0]}", uuids[-1])
    print(device, first)


def visible_slice(cuda: Cuda) -> None:
    assert int(cuda.cuDeviceGetCount()) == 1
    print(mig.uuid_text(cuda.device))


def test_visible_devices_name_a_slice(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES takes the UUID of a slice as NVML has it. Of several slices the driver lists the first, and
    the UUID of a device in MIG mode stands for its first slice.

    Source: MIG User Guide, "CUDA Device Enumeration" (a process picks the first available compute instance). Not yet
    seen on a GPU.
    """

    def output_of(test: Any, **more: str) -> str:
        variables = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(mig.CONFIG), **more)
        with start_test(test, variables) as process:
            try:
                output, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if IS_GPU and process.returncode == CANNOT_RUN:
            pytest.skip("this machine has no MIG slice")
        assert process.returncode == 0, newest_observations(tmp_path)
        return output

    choices = [line.split() for line in output_of(list_choices).splitlines()]
    assert len(choices) > 2
    for choice, uuid in choices:
        assert output_of(visible_slice, CUDA_VISIBLE_DEVICES=choice) == uuid + "\n", choice
