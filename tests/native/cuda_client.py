"""Small CUDA program that a test controls: it reads Python code as lines of JSON and answers in JSON.

The program uses only the standard library, so that it starts quickly.
The program calls the driver's own entry points by ctypes, which finds them with `dlsym`.
Therefore no library stands between the test and the shim.
The program runs on any Python from 3.8 on.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from ctypes import byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

SIGNATURES = {"fill_f32": "pfu", "spin": "u", "work_f32": "puup", "wait_flag": "pi", "set_flag": "pi"}
KINDS = {"p": c_uint64, "u": c_uint64, "f": c_float, "i": c_uint32}


class Cuda:
    """Driver API as methods, such as `cuda.cuMemFree_v2(address)`, which return the result code. Handles are ints."""

    def __init__(self, start: bool = True) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.functions: dict[str, c_void_p] = {}
        self.flag = c_uint32()
        if start:
            self.start()

    def start(self) -> None:
        assert self.cuInit(0) == 0
        self.context = c_void_p()
        assert self.cuDevicePrimaryCtxRetain(byref(self.context), 0) == 0
        assert self.cuCtxSetCurrent(self.context) == 0
        self.module = c_void_p()
        ptx = Path(os.environ["TEST_PTX"]).read_bytes()
        assert self.cuModuleLoadData(byref(self.module), ptx) == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def function(self, name: str) -> c_void_p:
        if name not in self.functions:
            handle = c_void_p()
            assert self.cuModuleGetFunction(byref(handle), self.module, name.encode()) == 0
            self.functions[name] = handle
        return self.functions[name]

    def launch(self, name: str, *values: Any, stream: int = 0, call: Any = None, blocks: int = 1) -> int:
        kinds = SIGNATURES[name]
        assert len(kinds) == len(values)
        arguments = [KINDS[kinds[i]](value) for i, value in enumerate(values)]
        array = (c_void_p * len(arguments))(*(ctypes.cast(byref(a), c_void_p) for a in arguments))
        launch = call or self.cuLaunchKernel
        return launch(self.function(name), blocks, 1, 1, 1, 1, 1, 0, c_void_p(stream), array, None)

    def spin(self, milliseconds: float = 0.0, stream: int = 0) -> int:
        return self.launch("spin", int(milliseconds * 1e6), stream=stream)

    def hold(self, stream: int = 0) -> int:
        """Occupy the stream until the call of `release`, for at most a minute."""
        address = c_uint64()
        assert self.cuMemHostAlloc(byref(address), c_size_t(4), 0) == 0
        self.flag = c_uint32.from_address(address.value)
        self.flag.value = 0
        return self.launch("wait_flag", address.value, 1, stream=stream)

    def release(self) -> None:
        """Let the work of the last call of `hold` end."""
        self.flag.value = 1

    def alloc(self, size: int, name: str = "cuMemAlloc_v2", *more: Any) -> tuple[int, int]:
        address = c_uint64()
        return getattr(self, name)(byref(address), c_size_t(size), *more), address.value

    def free(self, address: int) -> int:
        return self.cuMemFree_v2(c_uint64(address))

    def info(self) -> tuple[int, int]:
        """Return the free and the total memory of the device, in bytes."""
        free, total = c_size_t(), c_size_t()
        assert self.cuMemGetInfo_v2(byref(free), byref(total)) == 0
        return free.value, total.value

    def make_current(self) -> int:
        """Make the context current in this thread."""
        return self.cuCtxSetCurrent(self.context)

    def stream(self, flags: int = 0) -> int:
        handle = c_void_p()
        assert self.cuStreamCreate(byref(handle), flags) == 0
        return handle.value or 0

    def attribute(self, number: int, address: int) -> tuple[int, int]:
        value = c_uint64(0xAAAA000000000000)
        return self.cuPointerGetAttribute(byref(value), number, c_uint64(address)), value.value & 0xFFFFFFFF


def in_thread(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def main(names: dict[str, Any]) -> None:
    """Run each line of standard input, which may use these names, and write its answer."""
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                answer: Any = eval(code, names)
            except SyntaxError:
                exec(code, names)
                answer = None
            print(json.dumps({"value": answer}, default=str), flush=True)
        except BaseException as error:
            print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)


if __name__ == "__main__":
    main({**globals(), "signal": signal, "time": time, "c_int": c_int})
