"""Program with CuPy: arrays from its own pool and from the driver's, a raw function, a stream and pinned memory."""

from __future__ import annotations

import cupy
import numpy

SOURCE = """
extern "C" __global__ void twice(float *x, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        x[i] *= 2;
}
"""

try:
    cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError as error:
    raise ImportError(f"CuPy finds no GPU: {error}") from None

twice = cupy.RawKernel(SOURCE, "twice")
n = 1 << 20
ones = numpy.ones(n, dtype=numpy.float32)
x = cupy.arange(n, dtype=cupy.float32) / n
ballast = cupy.zeros(1)
stream = cupy.cuda.Stream(non_blocking=True)
ordered = cupy.cuda.MemoryAsyncPool()  # memory of cuMemAllocAsync


def hold(size: int) -> None:
    """Allocate additional memory, so that two programs do not fit together."""
    global ballast
    ballast = cupy.ones(size // 4, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()


def step() -> float:
    global x
    twice(((n + 255) // 256,), (256,), (x, numpy.int32(n)))
    matrix = x.reshape(1024, 1024)
    trace = float((matrix @ matrix.T).trace())
    x = x / 2
    with cupy.cuda.using_allocator(ordered.malloc), stream:
        y = cupy.asarray(ones)  # CuPy copies through pinned memory
        twice(((n + 255) // 256,), (256,), (y, numpy.int32(n)))
        total = float(y.sum())
        del y
    stream.synchronize()
    x = (x + 1) / 2
    return trace + total


def ballast_extremes() -> list[float]:
    return [float(ballast.min()), float(ballast.max())]
