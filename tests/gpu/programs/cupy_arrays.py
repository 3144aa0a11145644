"""Program with CuPy: arrays from its own pool and from the driver's, a raw function, streams, pinned memory."""

from __future__ import annotations

from measure import need, rate, report

cupy, numpy = need("cupy", "numpy")

SOURCE = """
extern "C" __global__ void twice(float *x, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        x[i] *= 2;
}
"""
twice = cupy.RawKernel(SOURCE, "twice")
n = 1 << 20


def work() -> float:
    x = cupy.arange(n, dtype=cupy.float32) / n
    twice(((n + 255) // 256,), (256,), (x, numpy.int32(n)))
    matrix = x.reshape(1024, 1024)
    return float((matrix @ matrix.T).trace())


results = [work()]
cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
results.append(work())
with cupy.cuda.Stream(non_blocking=True) as stream:
    y = cupy.asarray(numpy.ones(n, dtype=numpy.float32))
    twice(((n + 255) // 256,), (256,), (y, numpy.int32(n)))
    results.append(float(y.sum()))
stream.synchronize()
x = cupy.ones(n, dtype=cupy.float32)
half = cupy.float32(0.5)


def step() -> None:
    global x
    x = (x + 1) * half


report(results, rate(step, cupy.cuda.Device().synchronize, batch=100))
