"""Program with one operation of each of these: cuBLAS, cuDNN, cuFFT, a CUDA graph and Triton.

Each operation waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

if not torch.cuda.is_available():
    raise ImportError("PyTorch finds no GPU")

square = torch.randn(256, 256, device="cuda")
images = torch.randn(8, 16, 32, 32, device="cuda")
filters = torch.randn(16, 16, 3, 3, device="cuda")


def _graph() -> Callable[[], Any]:
    target = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            target.add_(1)
    return graph.replay


def _triton() -> Callable[[], Any]:
    import triton_sum

    return triton_sum.step


MAKERS: dict[str, Callable[[], Callable[[], Any]]] = {
    "cuBLAS": lambda: lambda: square @ square,
    "cuDNN": lambda: lambda: torch.nn.functional.conv2d(images, filters),
    "cuFFT": lambda: lambda: torch.fft.fft2(square),
    "graph": _graph,
    "Triton": _triton,
}
operations: dict[str, Callable[[], Any]] = {}


def prepare() -> dict[str, str]:
    """Make each operation once, and return the reasons why operations are missing."""
    missing = {}
    for name, make in MAKERS.items():
        try:
            operations[name] = make()
            run(name)
        except (ImportError, RuntimeError) as error:
            operations.pop(name, None)
            missing[name] = str(error).partition("\n")[0]
    return missing


def run(name: str) -> None:
    operations[name]()
    torch.cuda.synchronize()


def has_cupti() -> bool:
    """Return whether CUPTI is there and records kernels."""
    try:
        return kernels(next(iter(operations))) > 0
    except RuntimeError:
        return False


def kernels(name: str) -> int:
    """Return how many kernels CUPTI counts in an operation."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(name)
    on_device = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in on_device)
