"""Uses of a device by PyTorch. Each function of FEATURES raises AssertionError if the use does not work.

Kernels compute nothing here, so the checks compare data that copies have moved, and the memory's figures.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import torch
import torch._inductor.metrics

MIB = 1 << 20
IS_NATIVE = torch.cuda.get_allocator_backend() == "native"  # not cudaMallocAsync
LOADED_ITEMS = 64


def contents(count: int, seed: int) -> torch.Tensor:
    """Return random bits, which depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 31), (1 << 31) - 1, (count,), dtype=torch.int32, generator=generator)


def has(there: torch.Tensor, seed: int) -> bool:
    return torch.equal(there.cpu(), contents(there.numel(), seed))


def caching_allocator() -> None:
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    sizes = [512, 4096, MIB, 20 * MIB, 100 * MIB]
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    used = torch.cuda.memory_allocated() - allocated
    assert used == sum(sizes) if IS_NATIVE else used >= sum(sizes), used
    assert torch.cuda.memory_reserved() - reserved >= sum(sizes)
    address = blocks.pop(3).data_ptr()
    blocks.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
    assert blocks[-1].data_ptr() == address or not IS_NATIVE
    del blocks
    torch.cuda.synchronize()  # cudaMallocAsync frees memory in the order of the stream
    assert torch.cuda.memory_allocated() == allocated
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def memory_figures() -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] <= free - block.numel() and torch.cuda.mem_get_info()[1] == total
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() >= block.numel()
    assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
    if IS_NATIVE:
        assert sum(segment["allocated_size"] for segment in torch.cuda.memory_snapshot()) >= block.numel()


def streams_and_events() -> None:
    side = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    there = contents(MIB, 1).cuda()
    begin.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy = torch.empty_like(there).copy_(there)
        ready = side.record_event()
    torch.cuda.current_stream().wait_event(ready)
    copy.record_stream(torch.cuda.current_stream())
    again = torch.empty_like(copy).copy_(copy)
    end.record()
    end.synchronize()
    side.synchronize()
    assert ready.query() and side.query() and begin.elapsed_time(end) >= 0
    assert has(again, 1)


def pinned_memory() -> None:
    pinned = contents(2 * MIB, 2).pin_memory()
    assert pinned.is_pinned()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty_like(pinned).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, pinned)


def graph() -> None:
    source = contents(MIB, 0).cuda()
    result = torch.empty_like(source)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        inside = torch.empty_like(source).copy_(source)
        result.copy_(inside)
    for seed in range(1, 4):
        source.copy_(contents(MIB, seed))
        recorded.replay()
        assert has(result, seed), seed
    recorded.reset()


class Numbers(torch.utils.data.Dataset):
    """Data set with data that depend on the index only."""

    def __len__(self) -> int:
        return LOADED_ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return contents(4096, index), index


def load(method: str) -> None:
    """Move the data of worker processes, which start by `method`, to the device."""
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=16, num_workers=2, pin_memory=True, multiprocessing_context=method
    )
    loaded = 0
    for items, seeds in loader:
        assert items.is_pinned()
        there = items.cuda(non_blocking=True)
        assert all(has(item, int(seed)) for item, seed in zip(there, seeds, strict=True))
        loaded += len(seeds)
    assert loaded == LOADED_ITEMS


def forked_loaders() -> None:
    load("fork")


def out_of_memory() -> None:
    """Ask for memory beyond the limit, which is refused, and go on."""
    _, total = torch.cuda.mem_get_info()
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    else:
        raise AssertionError("twice the memory of the device was allocated")
    assert has(contents(MIB, 3).cuda(), 3)


def retry_after_cached_memory_is_freed() -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    size = free // 8 // (2 * MIB) * 2 * MIB
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(5)]
    del blocks
    large = torch.empty(6 * size, dtype=torch.uint8, device="cuda")
    assert large.numel() == 6 * size
    del large
    torch.cuda.empty_cache()


def threads() -> None:
    problems: list[str] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for seed in range(number, 100, 10):
                    there = contents(MIB // 4, seed).cuda()
                    (there + 1).sum()
                    assert has(there, seed)
        except Exception:
            problems.append(traceback.format_exc())

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems, problems


def training() -> None:
    """Run a training with mixed precision. The losses are undefined."""
    nn = torch.nn
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 64)
    model = nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(64, 10)).cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(5):
        images, labels = torch.zeros(8, 3, 32, 32).cuda(), torch.zeros(8, dtype=torch.long).cuda()
        optimiser.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    assert loss.numel() == 1


def profile() -> None:
    """Record the operations of PyTorch. The stand-in for CUPTI refuses to record those of the device."""
    with torch.profiler.profile() as recorded:
        torch.zeros(8, device="cuda").add_(1)
    assert "aten::add_" in [row.key for row in recorded.key_averages()]


def compiled_training() -> None:
    """Run a training by the backends of torch.compile. The losses are undefined.

    The last two make kernels by Triton, and "reduce-overhead" records them in graphs.
    """
    made = torch._inductor.metrics.generated_kernel_count
    for how in *({"backend": name} for name in ("aot_eager", "cudagraphs", "inductor")), {"mode": "reduce-overhead"}:
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
        step = torch.compile(model, **how)
        optimiser = torch.optim.SGD(model.parameters())
        for _ in range(5):
            optimiser.zero_grad()
            step(torch.zeros(8, 64, device="cuda")).sum().backward()
            optimiser.step()
    assert torch._inductor.metrics.generated_kernel_count > made
    copy = torch.compile(torch.clone, backend="aot_eager")
    assert has(copy(contents(MIB, 4).cuda()), 4)


FEATURES: list[Callable[[], None]] = [
    caching_allocator,
    memory_figures,
    streams_and_events,
    pinned_memory,
    graph,
    forked_loaders,
    out_of_memory,
    retry_after_cached_memory_is_freed,
    threads,
    training,
    profile,
]


def failures() -> list[str]:
    """Try every feature, and return the tracebacks of those that fail."""
    found = []
    for feature in FEATURES:
        try:
            feature()
        except Exception:
            found.append(traceback.format_exc())
    return found
