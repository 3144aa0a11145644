"""Training loop for `bench overhead`, a program in PyTorch with one argument, SECONDS.

The loop trains a small transformer with mixed precision, and copies the same batch from the host at every step.
The program prints `{"steps", "seconds"}`; a warm-up of ten steps precedes the measured time.
"""

from __future__ import annotations

import json
import sys
import time

BATCH, LENGTH, WIDTH, LAYERS = 32, 256, 512, 6
WARM_UP = 10  # steps


def main(seconds: float) -> None:
    import torch

    device = torch.device("cuda")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    host = torch.randn(BATCH, LENGTH, WIDTH).pin_memory()

    def step() -> None:
        batch = host.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        step()
        steps += 1
        if steps % 10 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    print(json.dumps({"steps": steps, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
