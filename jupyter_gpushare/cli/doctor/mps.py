"""Checks of the compute mode of each device and of CUDA's Multi-Process Service (MPS)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from ...launch import mps
from .finding import Finding

COMPUTE_MODE = 20  # CUdevice_attribute
PROHIBITED, EXCLUSIVE_PROCESS = 2, 3  # CUcomputemode


def control_daemon(env: Mapping[str, str]) -> Iterator[Finding]:
    """Report the control daemon that programs with this environment connect to, and what MPS does not isolate."""
    daemon = mps.find_daemon(env)
    if daemon is None:
        return
    process = f"pid {daemon.pid}" if daemon.pid else "in another PID namespace"
    yield Finding(
        "warning",
        "MPS",
        f"a control daemon runs ({process}, {daemon.directory}), so clients that run together work at the same time "
        "instead of in time slices; a fatal fault of one client ends the GPU work of all clients of the MPS server, "
        "MPS itself limits no client's memory, a checkpoint may fail, and clients of another user may wait",
        "to keep new clients from MPS: jupyter gpushare config mps off (docs/how-to/policies.md)",
    )


def compute_mode(driver: Any, index: int, env: Mapping[str, str]) -> Iterator[Finding]:
    """Report a compute mode in which clients cannot share the device, by the driver's C interface."""
    device, value = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetAttribute(ctypes.byref(value), COMPUTE_MODE, device)
    mode, remedy = value.value, f"nvidia-smi -i {index} -c DEFAULT"
    if mode == PROHIBITED:
        message = "the compute mode is PROHIBITED, so no program can use the device"
        yield Finding("error", f"device {index}", message, remedy)
    elif mode == EXCLUSIVE_PROCESS and mps.find_daemon(env) is None:
        message = "the compute mode is EXCLUSIVE_PROCESS and no MPS control daemon runs, so only one client at a time "
        yield Finding("error", f"device {index}", message + "can have the device until its end", remedy)
