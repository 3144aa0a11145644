"""Program with a Triton function, which is compiled at its first launch and launched by Triton's own launcher."""

from __future__ import annotations

from typing import Any

from measure import need, rate, report, skip

torch, triton, tl = need("torch", "triton", "triton.language")
if not torch.cuda.is_available():
    skip("PyTorch sees no GPU")


@triton.jit
def add(x: Any, y: Any, out: Any, n: Any, block: tl.constexpr) -> None:
    at = tl.program_id(axis=0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


n = 1_000_003
x, y = torch.arange(n, device="cuda", dtype=torch.float32), torch.ones(n, device="cuda")
out = torch.empty_like(x)


def step() -> None:
    add[(triton.cdiv(n, 1024),)](x, y, out, n, block=1024)


step()
results = [float(torch.equal(out, x + y)), out[-1].item()]
report(results, rate(step, torch.cuda.synchronize, batch=100))
