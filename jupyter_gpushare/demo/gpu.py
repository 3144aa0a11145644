"""Functions of the demo's notebooks on one GPU, through the CUDA driver API.

The same code runs on a real driver, which compiles `builtins.ptx`, and on the simulated driver, which has built-in
functions of these names.
In every `work` launch, the device records the times at which the launch began and ended.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
from cuda.bindings import driver

from ..launch.kernel_env import native_part

_BLOCK_THREADS = 256
_MAX_LAUNCHES = 1 << 16


class CudaError(RuntimeError):
    """Error of a driver call. The message is the name of the status."""


def checked(answer: tuple[Any, ...]) -> Any:
    """Return the result of a driver call without its status. Raises CudaError."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(status.name)
    return values[0] if len(values) == 1 else values


class Array:
    """Array of `length` float32 numbers in device memory."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pointer = int(checked(driver.cuMemAlloc(length * 4)))

    def numpy(self) -> Any:
        """Return a copy on the host, float32 of shape (length,)."""
        copy = np.empty(self.length, dtype=np.float32)
        checked(driver.cuMemcpyDtoH(copy.ctypes.data, self.pointer, copy.nbytes))
        return copy

    def wrong(self, expected: float) -> int:
        """Return the number of elements that differ from `expected`."""
        return int(np.count_nonzero(self.numpy() != np.float32(expected)))

    def free(self) -> None:
        checked(driver.cuMemFree(self.pointer))


class Gpu:
    """First device of this process, with the functions of the demo."""

    def __init__(self) -> None:
        checked(driver.cuInit(0))
        self._device = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(self._device))))
        self.name = checked(driver.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        module = checked(driver.cuModuleLoadData(native_part("builtins.ptx").read_bytes() + b"\0"))
        self._functions = {
            name: checked(driver.cuModuleGetFunction(module, name.encode()))
            for name in ("fill_f32", "axpy_f32", "work_f32")
        }
        self._stamps = int(checked(driver.cuMemAlloc(_MAX_LAUNCHES * 16)))
        self._launches = 0

    def full(self, length: int, value: float) -> Array:
        """Return a new array of `length` elements, all equal to `value`."""
        array = Array(length)
        self._launch("fill_f32", length, (array.pointer, value, length), (_POINTER, ctypes.c_float, ctypes.c_uint64))
        return array

    def axpy(self, y: Array, x: Array, a: float) -> None:
        """Add `a * x` to `y`."""
        arguments = (y.pointer, x.pointer, a, y.length)
        self._launch("axpy_f32", y.length, arguments, (_POINTER, _POINTER, ctypes.c_float, ctypes.c_uint64))

    def work(self, array: Array, seconds: float, launch: float = 0.02) -> int:
        """Keep the device busy for about `seconds`, and return the number of launches.

        Each launch takes about `launch` seconds and adds 1 to every element.
        """
        launches = max(1, round(seconds / launch))
        if self._launches + launches > _MAX_LAUNCHES:
            raise CudaError(f"{_MAX_LAUNCHES} launches of work are the maximum of this notebook: restart its kernel")
        types = (_POINTER, ctypes.c_uint64, ctypes.c_uint64, _POINTER)
        for number in range(launches):
            stamps = self._stamps + 16 * self._launches
            self._launch("work_f32", array.length, (array.pointer, array.length, int(launch * 1e9), stamps), types)
            self._launches += 1
            if number % 4 == 3:  # as training loops do to read a result
                self.synchronize()
        self.synchronize()
        return launches

    def synchronize(self) -> None:
        checked(driver.cuCtxSynchronize())

    def report(self, wrong: int) -> None:
        """Print the device's time stamps of each launch of work and the number of wrong elements, for the demo."""
        stamps = np.empty((self._launches, 2), dtype=np.uint64)
        if self._launches:
            checked(driver.cuMemcpyDtoH(stamps.ctypes.data, self._stamps, stamps.nbytes))
        print("REPORT " + json.dumps({"device": self.name, "wrong": wrong, "spans_ns": stamps.tolist()}))

    def _launch(self, name: str, threads: int, values: tuple[Any, ...], types: tuple[Any, ...]) -> None:
        blocks = min((threads + _BLOCK_THREADS - 1) // _BLOCK_THREADS, 1024)
        checked(
            driver.cuLaunchKernel(self._functions[name], blocks, 1, 1, _BLOCK_THREADS, 1, 1, 0, 0, (values, types), 0)
        )


_POINTER = ctypes.c_void_p
