"""Program with a training in PyTorch: mixed precision, convolutions (cuDNN), products (cuBLAS) and a CUDA graph.

A step trains once directly and once by the graph.
"""

from __future__ import annotations

import torch
from torch import nn

if not torch.cuda.is_available():
    raise ImportError("PyTorch finds no GPU")

torch.manual_seed(0)
torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)),
    *(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)),
).cuda()
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
loss_of = nn.CrossEntropyLoss()
generator = torch.Generator().manual_seed(1)
images = torch.randn(64, 3, 32, 32, generator=generator).cuda()
labels = (torch.arange(64) % 10).cuda()
ballast = torch.empty(0)


def _forward_and_backward() -> torch.Tensor:
    optimiser.zero_grad(set_to_none=False)
    with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
        loss: torch.Tensor = loss_of(model(images), labels)
    loss.backward()
    return loss


def _captured() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            _forward_and_backward()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        loss = _forward_and_backward()
    return graph, loss


graph, captured_loss = _captured()


def hold(size: int) -> None:
    """Allocate additional memory, so that two programs do not fit together."""
    global ballast
    ballast = torch.ones(size // 4, device="cuda")


def step() -> float:
    loss = _forward_and_backward()
    optimiser.step()
    graph.replay()
    optimiser.step()
    return loss.item() + captured_loss.item()


def ballast_extremes() -> list[float]:
    return [ballast.min().item(), ballast.max().item()]


def is_refused_beyond_the_device() -> bool:
    """Return whether memory beyond the device is refused, and the program goes on."""
    _, total = torch.cuda.mem_get_info()
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        step()
        return True
    return False
