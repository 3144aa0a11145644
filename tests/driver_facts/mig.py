"""MIG slices of the machine as NVML lists them; on the simulated driver by its stand-in for NVML."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from ..support.compile_cache import cached
from .harness import IS_GPU, ROOT

CONFIG = Path(__file__).parent / "mig.conf"
SOURCES = [ROOT / "native" / "simcudart" / "libraries" / name for name in ("nvml.c", "library.h")]


class Slice(NamedTuple):
    """A slice and its device, by their handles of NVML."""

    device: Any
    handle: Any


def load_nvml() -> Any:
    """Return the initialised module `pynvml`."""
    import pynvml

    if not IS_GPU:
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        made = cached(
            "libnvidia-ml.so.1", SOURCES, lambda out: [["cc", *flags, "-o", str(out), str(SOURCES[0]), "-ldl"]]
        )
        ctypes.CDLL(str(made))  # the name that pynvml loads then stands for this library
    pynvml.nvmlInit()
    return pynvml


def is_in_mig_mode(nvml: Any, device: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError_NotSupported:
        return False


def slices(nvml: Any) -> list[Slice]:
    """Return the slices of all devices in MIG mode, in the order of NVML."""
    found = []
    for number in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(number)
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device) if is_in_mig_mode(nvml, device) else 0):
            try:
                found.append(Slice(device, nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)))
            except nvml.NVMLError_NotFound:
                continue
    return found


def uuid_text(device: Any, function: str = "cuDeviceGetUuid_v2") -> str:
    """Return the UUID of a device of the driver in NVML's form, as a slice or as a whole device."""
    uuid = (ctypes.c_ubyte * 16)()
    assert ctypes.CDLL("libcuda.so.1")[function](uuid, int(device)) == 0
    digits, prefix = bytes(uuid).hex(), "MIG" if function.endswith("_v2") else "GPU"
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
