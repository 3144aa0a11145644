"""Costs of driver calls that the design relies on. Each value is the median of a few repetitions."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
BLOCK = 64 * MIB  # of the memory mode swap
REPETITIONS = 5
TO_HOST, TO_DEVICE = -1, 0


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


def _seconds(call: Callable[[], int]) -> float:
    began = time.perf_counter()
    _check(call())
    return time.perf_counter() - began


class Costs:
    """Measurements on a `Cuda` of `tests/native/cuda_client.py`."""

    def __init__(self, cuda: Any, size: int) -> None:
        self.cuda, self.size = cuda, size
        self._seconds: dict[str, list[float]] = {}

    def measure(self) -> dict[str, float]:
        """Return GB/s and microseconds by name, in the order of measurement."""
        for _ in range(REPETITIONS):
            self._prefetch()
            self._populate_by_prefetch()
            self._virtual_memory()
            self._pinned_memory()
        gigabytes = self.size / 1e9
        figures = {}
        for name, values in self._seconds.items():
            median = statistics.median(values)
            whole, unit = (gigabytes / median, "GB/s") if name.startswith("rate ") else (median * 1e6, "us")
            figures[f"{name.removeprefix('rate ')}, {unit}"] = round(whole, 3)
        return figures

    def _note(self, name: str, call: Callable[[], int]) -> float:
        taken = _seconds(call)
        self._seconds.setdefault(name, []).append(taken)
        return taken

    def _managed(self) -> c_uint64:
        memory = c_uint64()
        _check(self.cuda.cuMemAllocManaged(byref(memory), c_size_t(self.size), 1))
        return memory

    def _touch(self, memory: c_uint64) -> int:
        status = self.cuda.cuMemsetD32_v2(memory, 1, c_size_t(self.size // 4))
        return int(status or self.cuda.cuCtxSynchronize())

    def _prefetch(self) -> None:
        """Measure how long the call of a prefetch blocks, and how long the prefetch takes."""
        memory = self._managed()
        self._note("rate first touch", lambda: self._touch(memory))
        for way, device in (("to host", TO_HOST), ("to device", TO_DEVICE)):
            began = time.perf_counter()
            self._note(
                f"prefetch {way}, the call",
                lambda: self.cuda.cuMemPrefetchAsync(memory, c_size_t(self.size), device, None),  # noqa: B023
            )
            _check(self.cuda.cuCtxSynchronize())
            self._seconds.setdefault(f"rate prefetch {way}", []).append(time.perf_counter() - began)
        _check(self.cuda.cuMemFree_v2(memory))

    def _populate_by_prefetch(self) -> None:
        memory = self._managed()
        self._note(
            "rate populate by prefetch",
            lambda: (
                self.cuda.cuMemPrefetchAsync(memory, c_size_t(self.size), TO_DEVICE, None)
                or self.cuda.cuCtxSynchronize()
            ),
        )
        _check(self.cuda.cuMemFree_v2(memory))

    def _virtual_memory(self) -> None:
        """Measure each call that gives a block of the mode swap its memory, and takes the memory away."""
        properties, access = (c_int * 8)(1, 0, 1), (c_int * 3)(1, 0, 3)  # pinned memory of device 0; read and write
        address, handle, size = c_uint64(), c_uint64(), c_size_t(BLOCK)
        _check(self.cuda.cuMemAddressReserve(byref(address), size, c_size_t(0), c_uint64(0), c_uint64(0)))
        self._note("cuMemCreate", lambda: self.cuda.cuMemCreate(byref(handle), size, properties, c_uint64(0)))
        self._note("cuMemMap", lambda: self.cuda.cuMemMap(address, size, c_size_t(0), handle, c_uint64(0)))
        self._note("cuMemSetAccess", lambda: self.cuda.cuMemSetAccess(address, size, access, c_size_t(1)))
        self._note("cuMemUnmap", lambda: self.cuda.cuMemUnmap(address, size))
        self._note("cuMemRelease", lambda: self.cuda.cuMemRelease(handle))
        _check(self.cuda.cuMemAddressFree(address, size))

    def _pinned_memory(self) -> None:
        """Measure memory that the driver allocates, and memory of the program that the driver pins, with copies."""
        host, device, size = c_void_p(), c_uint64(), c_size_t(self.size)
        _check(self.cuda.cuMemAlloc_v2(byref(device), size))
        self._note("rate cuMemHostAlloc", lambda: self.cuda.cuMemHostAlloc(byref(host), size, ctypes.c_uint(1)))
        self._copies("memory of cuMemHostAlloc", host, device)
        self._note("rate cuMemFreeHost", lambda: self.cuda.cuMemFreeHost(host))
        buffer = (c_char * self.size).from_buffer(bytearray(self.size))
        ctypes.memset(buffer, 1, self.size)
        self._note(
            "rate cuMemHostRegister of touched memory",
            lambda: self.cuda.cuMemHostRegister_v2(buffer, size, ctypes.c_uint(1)),
        )
        self._copies("registered memory", buffer, device)
        self._note("rate cuMemHostUnregister", lambda: self.cuda.cuMemHostUnregister(buffer))
        _check(self.cuda.cuMemFree_v2(device))

    def _copies(self, kind: str, host: Any, device: c_uint64) -> None:
        size = c_size_t(self.size)
        self._note(f"rate copy to {kind}", lambda: self.cuda.cuMemcpyDtoH_v2(host, device, size))
        self._note(f"rate copy from {kind}", lambda: self.cuda.cuMemcpyHtoD_v2(device, host, size))
