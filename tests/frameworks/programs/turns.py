"""Work of a PyTorch program over many turns."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import torch
from features import MIB, contents, has


class Tensors:
    """Tensors that copies have filled with known bits, while a thread launches kernels and reads the tensors."""

    def __init__(self, count: int, size: int) -> None:
        self._expected = [contents(size // 4, seed) for seed in range(count)]
        self._tensors = [tensor.cuda() for tensor in self._expected]
        self._scratch = torch.zeros(MIB, device="cuda")
        self._stream = torch.cuda.Stream()
        self._over = threading.Event()
        self.checked = 0
        self.wrong: list[int] = []
        self.failure = ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                with torch.cuda.stream(self._stream):
                    for _ in range(20):
                        self._scratch.add_(1)
                self.check(self.checked % len(self._tensors))
        except Exception:
            self.failure = traceback.format_exc()

    def check(self, number: int) -> None:
        if not torch.equal(self._tensors[number].cpu(), self._expected[number]):
            self.wrong.append(number)
        self.checked += 1

    def stop(self) -> dict[str, Any]:
        """End the thread, and check every tensor once more."""
        self._over.set()
        self._thread.join()
        for number in range(len(self._tensors)):
            self.check(number)
        return {"checked": self.checked, "wrong": self.wrong, "failure": self.failure}


class Graph:
    """Graph that copies `source` to `result`, with memory of its own between them. The test ends the capture."""

    def __init__(self) -> None:
        self.source = contents(MIB, 0).cuda()
        self.result = torch.empty_like(self.source)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self._capture = torch.cuda.graph(self.graph, capture_error_mode="thread_local")
        self._capture.__enter__()
        self._inside = torch.empty_like(self.source).copy_(self.source)

    def end_capture(self) -> None:
        self.result.copy_(self._inside)
        self._capture.__exit__(None, None, None)

    def replays(self, seed: int) -> bool:
        """Return whether a replay copies new bits of `source` to `result`."""
        self.source.copy_(contents(MIB, seed))
        self.graph.replay()
        return has(self.result, seed)
