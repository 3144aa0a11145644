"""Program with a Triton function, which is compiled at its first launch and launched by Triton's own launcher.

The Triton function has no annotations, because Triton's compiler evaluates them on the device's side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

if not torch.cuda.is_available():
    raise ImportError("PyTorch finds no GPU")


@triton.jit
def add(x, y, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(axis=0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(x + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


n = 1_000_003
x, y = torch.arange(n, device="cuda", dtype=torch.float32), torch.ones(n, device="cuda")
ballast = torch.empty(0)


def hold(size: int) -> None:
    """Allocate additional memory, so that two programs do not fit together."""
    global ballast
    ballast = torch.ones(size // 4, device="cuda")


def step() -> float:
    """Add 1 to each number by Triton, and return the sum of the first and the last one."""
    add[(triton.cdiv(n, 1024),)](x, y, n, block=1024)
    return float(x[0].item() + x[-1].item())


def ballast_extremes() -> list[float]:
    return [ballast.min().item(), ballast.max().item()]
