"""Program with driver calls by NVIDIA's cuda-bindings: launches, copies, a graph, mapped and stream-ordered memory.

The program also runs on the simulated driver.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from measure import need, rate, report

need("cuda.bindings.driver")
tests = sys.modules["tests"] = types.ModuleType("tests")
tests.__path__ = [str(Path(__file__).resolve().parents[2])]

from tests.driver_facts.harness import MIB, Cuda  # noqa: E402
from tests.driver_facts.vmm import GRANULE, mapped  # noqa: E402

cuda = Cuda()
n = 128
a, b, c = (cuda.cuMemAlloc(4 * n * n) for _ in range(3))
cuda.launch("fill_f32", a, 2.0, n * n)
cuda.launch("fill_f32", b, 0.5, n * n)
cuda.launch("axpy_f32", a, b, 4.0, n * n)
cuda.launch("matmul_f32", c, a, b, n)
results = [cuda.read_f32(c, 0), cuda.read_f32(c, n * n - 1)]

stream = cuda.cuStreamCreate(1)
cuda.cuMemsetD8(c, 0, 4096)
cuda.cuCtxSynchronize()
cuda.cuStreamBeginCapture(stream, cuda.driver.CUstreamCaptureMode(1))
cuda.launch("work_f32", c, 16, 0, 0, stream=stream)
graph = cuda.cuGraphInstantiate(cuda.cuStreamEndCapture(stream), 0)
for _ in range(3):
    cuda.cuGraphLaunch(graph, stream)
cuda.cuStreamSynchronize(stream)
results.append(cuda.read_f32(c, 15))

address, _ = mapped(cuda, 2 * GRANULE)
cuda.launch("fill_f32", address, 6.0, 2 * GRANULE // 4)
results.append(cuda.read_f32(address, 2 * GRANULE // 4 - 1))

ordered = cuda.cuMemAllocAsync(MIB, stream)
cuda.launch("fill_f32", ordered, 7.0, MIB // 4, stream=stream)
data = bytearray(4)
cuda.cuMemcpyDtoHAsync(data, ordered, 4, stream)
cuda.cuMemFreeAsync(ordered, stream)
cuda.cuStreamSynchronize(stream)
results.append(memoryview(data).cast("f")[0])

free, total = (int(value) for value in cuda.cuMemGetInfo())
assert 0 < free <= total, (free, total)
report(results, rate(lambda: cuda.launch("work_f32", c, 16, 0, 0, stream=stream), cuda.cuCtxSynchronize, batch=200))
