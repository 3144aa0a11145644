"""Program with a compiled model in PyTorch (torch.compile, which makes Triton code and a launcher in C)."""

from __future__ import annotations

import shutil

from measure import need, rate, report, skip

torch, _ = need("torch", "triton")
if not torch.cuda.is_available():
    skip("PyTorch sees no GPU")
if not (shutil.which("cc") or shutil.which("gcc")):
    skip("torch.compile needs a C compiler")

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
compiled = torch.compile(model)
data = torch.randn(256, 512, device="cuda")
optimiser = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)


def step() -> torch.Tensor:
    optimiser.zero_grad(set_to_none=True)
    loss = (compiled(data) - data).square().mean()
    loss.backward()
    optimiser.step()
    return loss


results = [step().item() for _ in range(5)]
report(results, rate(step, torch.cuda.synchronize))
