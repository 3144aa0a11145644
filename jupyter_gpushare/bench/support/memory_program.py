"""Program of the benches that allocates device memory and works on it.

The program reads commands from standard input, one a line, and answers each with a line of JSON:

    hold BYTES PIECE                allocate BYTES in arrays of PIECE bytes
    sweep SECONDS                   make one launch on each array, with SECONDS of device time in all, and wait for it
    job SECONDS SWEEP PAUSE         repeat sweeps of SWEEP seconds and pauses until SECONDS of device time
    copies BYTES TIMES              return bytes a second of pinned copies: `{"to_host", "to_device"}`
    mappings BYTES TIMES            return the seconds of each call that makes or removes a mapping of BYTES

Times in commands are device time, which the simulated device scales; times in answers are real seconds.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ...launch.kernel_env import native_part


class MemoryProgram:
    """Context with arrays on the first device. A public method is a command of the program."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._arrays: list[int] = []
        self._piece = 0
        context, module, self._work = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.cuda.cuInit(0))
        self._check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(self.cuda.cuCtxSetCurrent(context))
        self._check(self.cuda.cuModuleLoadData(ctypes.byref(module), native_part("builtins.ptx").read_bytes()))
        self._check(self.cuda.cuModuleGetFunction(ctypes.byref(self._work), module, b"work_f32"))

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"CUDA error {status}")

    def hold(self, size: int, piece: int) -> dict[str, Any]:
        self._piece = piece
        for _ in range(size // piece):
            address = ctypes.c_uint64()
            self._check(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(piece)))
            self._arrays.append(address.value)
        return {"arrays": len(self._arrays)}

    def sweep(self, seconds: float) -> dict[str, Any]:
        each = ctypes.c_uint64(int(seconds / len(self._arrays) * 1e9))
        length, none = ctypes.c_uint64(self._piece // 4), ctypes.c_uint64(0)
        for array in self._arrays:
            pointers = [ctypes.byref(value) for value in (ctypes.c_uint64(array), length, each, none)]
            arguments = (ctypes.c_void_p * 4)(*(ctypes.cast(pointer, ctypes.c_void_p) for pointer in pointers))
            self._check(self.cuda.cuLaunchKernel(self._work, 1024, 1, 1, 256, 1, 1, 0, None, arguments, None))
            self._check(self.cuda.cuCtxSynchronize())
        return {}

    def job(self, seconds: float, sweep: float, pause: float) -> dict[str, Any]:
        began = time.monotonic()
        for _ in range(max(1, round(seconds / sweep))):
            self.sweep(sweep)
            if pause:
                time.sleep(pause)
        return {"began": began, "ended": time.monotonic()}

    def copies(self, size: int, times: int) -> dict[str, Any]:
        """Measure pinned copies with memory that is allocated and freed here."""
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        self._check(self.cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(size), 1))
        self._check(self.cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)))
        length = ctypes.c_size_t(size)
        speeds = {}
        calls: dict[str, Callable[[], int]] = {
            "to_device": lambda: int(self.cuda.cuMemcpyHtoDAsync_v2(device, host, length, None)),
            "to_host": lambda: int(self.cuda.cuMemcpyDtoHAsync_v2(host, device, length, None)),
        }
        for name, call in calls.items():
            taken = []
            for _ in range(times):
                began = time.monotonic()
                self._check(call() or self.cuda.cuCtxSynchronize())
                taken.append(time.monotonic() - began)
            speeds[name] = size / min(taken)
        self._check(self.cuda.cuMemFree_v2(device) or self.cuda.cuMemFreeHost(host))
        return speeds

    def mappings(self, size: int, times: int) -> dict[str, Any]:
        """Measure the calls that mode `swap` makes for each block: the least time of each."""
        address, handle, length, none = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(size), ctypes.c_uint64(0)
        properties = (ctypes.c_uint32 * 8)(1, 0, 1, 0)  # pinned, on device 0
        access = (ctypes.c_uint32 * 3)(1, 0, 3)  # device 0, read and write
        self._check(self.cuda.cuMemAddressReserve(ctypes.byref(address), length, ctypes.c_size_t(0), none, none))
        calls: dict[str, Callable[[], int]] = {
            "create": lambda: int(self.cuda.cuMemCreate(ctypes.byref(handle), length, properties, none)),
            "map": lambda: int(self.cuda.cuMemMap(address, length, ctypes.c_size_t(0), handle, none)),
            "access": lambda: int(self.cuda.cuMemSetAccess(address, length, access, ctypes.c_size_t(1))),
            "unmap": lambda: int(self.cuda.cuMemUnmap(address, length)),
            "release": lambda: int(self.cuda.cuMemRelease(handle)),
        }
        least = dict.fromkeys(calls, float("inf"))
        for _ in range(times):
            for name, call in calls.items():
                began = time.monotonic()
                self._check(call())
                least[name] = min(least[name], time.monotonic() - began)
        self._check(self.cuda.cuMemAddressFree(address, length))
        return least


def main() -> None:
    program = MemoryProgram()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        values = [int(text) if text.isdigit() else float(text) for text in arguments]
        print(json.dumps(getattr(program, name)(*values)), flush=True)


if __name__ == "__main__":
    main()
