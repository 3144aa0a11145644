"""Program with two ranks in PyTorch, each a process with a GPU, that reduce a tensor by NCCL at every step."""

from __future__ import annotations

import os
import time

from measure import SECONDS, need, report, skip

(torch,) = need("torch")
if not torch.distributed.is_available() or torch.cuda.device_count() < 2:
    skip("two GPUs and NCCL are needed")


def rank(number: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(number)
    torch.distributed.init_process_group("nccl", rank=number, world_size=2)
    tensor = torch.full((1 << 20,), float(number + 1), device="cuda")
    torch.distributed.all_reduce(tensor)
    results = [tensor[0].item(), tensor[-1].item()]
    steps, began = 0, time.monotonic()
    while steps < 200 or (steps % 200 and time.monotonic() < began + SECONDS):  # both ranks do the same number
        torch.distributed.all_reduce(tensor)
        tensor /= 2
        steps += 1
    torch.cuda.synchronize()
    if number == 0:
        report(results, steps / (time.monotonic() - began))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank, args=(port,), nprocs=2)
