"""Program with a training step in PyTorch: mixed precision, convolutions (cuDNN) and matrix products (cuBLAS).

The step runs with data from worker processes, then as a CUDA graph, and with work on another stream.
"""

from __future__ import annotations

from measure import need, rate, report, skip

(torch,) = need("torch")
if not torch.cuda.is_available():
    skip("PyTorch sees no GPU")

import torch.nn as nn  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    """Data set with numbers computed from their index, so that every run has the same data."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(64 * 64, 1024), nn.ReLU(), nn.Linear(1024, 10)),
    ).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    loss_of = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        return loss

    results = []
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True)
    for images, labels in loader:
        results.append(step(images.cuda(non_blocking=True), labels.cuda(non_blocking=True)).item())

    images, labels = images.cuda(), labels.cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()

    def forward_and_backward() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = loss_of(model(images), labels)
        loss.backward()
        return loss

    with torch.cuda.stream(side):
        for _ in range(3):
            forward_and_backward()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = forward_and_backward()

    def replay() -> None:
        graph.replay()
        optimiser.step()

    for _ in range(5):
        replay()
    results.append(captured.item())

    a = torch.randn(512, 512, device="cuda")
    with torch.cuda.stream(side):
        b = a @ a.T
        ready = side.record_event()
    torch.cuda.current_stream().wait_event(ready)
    results.append((b.diagonal().sum() / a.square().sum()).item())
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    report(results, rate(replay, torch.cuda.synchronize))


if __name__ == "__main__":  # the workers of the data loader import this file
    main()
