"""Small CUDA program that a test controls: it reads lines of Python and answers with lines of JSON.

The program has the driver calls of `tests/native/cuda_client.py`, and `Busy`, a thread that keeps the device busy.
The program ends with its standard input.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
import time
from array import array as array_type
from ctypes import byref, c_char, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "native"))

from cuda_client import Cuda, main

LENGTH = 1024


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


class Busy:
    """Thread that launches work of `launch` seconds on an array of its own; each launch adds 1 to every element.

    The thread pauses for `pause` seconds after a launch, and waits for the device after every `sync_every` launches.
    With a `period`, a launch comes every `period` seconds by the clock, as requests come to a service.
    With a `burst`, the thread rests for `rest` seconds after each `burst` seconds.
    With `burst_launches`, the thread rests after each so many launches, however long these take.
    """

    def __init__(
        self,
        cuda: Cuda,
        launch: float = 0.002,
        sync_every: int = 4,
        pause: float = 0.0,
        stream: bool = False,
        period: float = 0.0,
        blocks: int = 1,
        burst: float = 0.0,
        rest: float = 0.0,
        burst_launches: int = 0,
    ) -> None:
        self.cuda = cuda
        self.launches = 0
        self.failure = ""
        self._launch, self._sync_every, self._pause, self._period = int(launch * 1e9), sync_every, pause, period
        self._blocks, self._burst, self._rest, self._burst_launches = blocks, burst, rest, burst_launches
        self._over = threading.Event()
        status, self._array = cuda.alloc(4 * LENGTH)
        check(status)
        self._stream = cuda.stream(1) if stream else 0
        check(cuda.launch("fill_f32", self._array, 0.0, LENGTH, stream=self._stream))
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.cuda.make_current()
            next_launch = time.monotonic()
            burst_end = next_launch + self._burst
            while not (self.launches and self._over.is_set()):  # at least once, however soon `stop` comes
                values = (self._array, LENGTH, self._launch, 0)
                check(self.cuda.launch("work_f32", *values, stream=self._stream, blocks=self._blocks))
                self.launches += 1
                if self.launches % self._sync_every == 0:
                    check(self.cuda.cuStreamSynchronize(c_void_p(self._stream)))
                if self._period:
                    next_launch += self._period
                    time.sleep(max(0.0, next_launch - time.monotonic()))
                if self._pause:
                    time.sleep(self._pause)
                if self._burst_launches and self.launches % self._burst_launches == 0:
                    time.sleep(self._rest)
                if self._burst and time.monotonic() >= burst_end:
                    time.sleep(self._rest)
                    burst_end = time.monotonic() + self._burst
            check(self.cuda.cuStreamSynchronize(c_void_p(self._stream)))
        except Exception as error:
            self.failure = repr(error)

    def stop(self) -> dict[str, Any]:
        """End the thread, and return the number of launches and the number of elements that differ from it."""
        self._over.set()
        self._thread.join()
        values = (c_char * (4 * LENGTH)).from_buffer(bytearray(4 * LENGTH))
        check(self.cuda.cuMemcpyDtoH_v2(values, c_uint64(self._array), 4 * LENGTH))
        found = memoryview(values).cast("B").cast("f")
        wrong = sum(value != float(self.launches) for value in found)
        return {"launches": self.launches, "wrong": wrong, "failure": self.failure}


class Flags:
    """File of 1024 words that several processes map as device memory, so that a launch can wait for another process."""

    def __init__(self, cuda: Cuda, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)
        self._buffer = (c_char * 4096).from_buffer(self._map)
        address = c_uint64()
        check(cuda.cuMemHostRegister_v2(self._buffer, 4096, 2))  # CU_MEMHOSTREGISTER_DEVICEMAP
        check(cuda.cuMemHostGetDevicePointer_v2(byref(address), self._buffer, 0))
        self._device = address.value

    def __getitem__(self, number: int) -> int:
        return self._device + 4 * number


if __name__ == "__main__":
    main(globals() | {"array_type": array_type, "c_size_t": c_size_t, "json": json, "os": os, "signal": signal})
