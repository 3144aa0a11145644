"""Program with a compiled training in PyTorch (torch.compile, which makes Triton code and a launcher in C)."""

from __future__ import annotations

import shutil

import torch
import triton  # noqa: F401  (torch.compile needs it)
from torch import nn

if not torch.cuda.is_available():
    raise ImportError("PyTorch finds no GPU")
if not (shutil.which("cc") or shutil.which("gcc")):
    raise ImportError("torch.compile needs a C compiler")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
compiled = torch.compile(model)
data = torch.randn(256, 512, generator=torch.Generator().manual_seed(1)).cuda()
optimiser = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
ballast = torch.empty(0)


def hold(size: int) -> None:
    """Allocate additional memory, so that two programs do not fit together."""
    global ballast
    ballast = torch.ones(size // 4, device="cuda")


def step() -> float:
    optimiser.zero_grad(set_to_none=True)
    loss = (compiled(data) - data).square().mean()
    loss.backward()
    optimiser.step()
    return float(loss.item())


def ballast_extremes() -> list[float]:
    return [ballast.min().item(), ballast.max().item()]
