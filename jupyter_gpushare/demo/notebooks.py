"""Three notebooks of the demo: a long training, an exploration in short cells, and bursts of inference."""

from __future__ import annotations

from dataclasses import dataclass

import nbformat

_SETUP = """\
from jupyter_gpushare.demo.gpu import Gpu
import time
gpu = Gpu()
n = {elements}
x = gpu.full(n, 1.0)
y = gpu.full(n, 2.0)
launches = 0"""

_CHECK = """\
gpu.axpy(y, x, 2.0)
gpu.report(x.wrong(1.0 + launches) + y.wrong(2.0 + 2.0 * (1.0 + launches)))"""

_TRAIN = """\
for epoch in range(4):
    launches += gpu.work(x, 2.5)"""

_EXPLORE = "launches += gpu.work(x, 0.4)"

_INFER = """\
for request in range(6):
    launches += gpu.work(x, 0.3)
    time.sleep(0.7)   # work on the CPU"""


@dataclass(frozen=True)
class DemoNotebook:
    """Notebook of the demo; `think` is the time between two cells in seconds."""

    name: str
    cells: tuple[str, ...]
    think: float

    def notebook(self) -> nbformat.NotebookNode:
        return nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in self.cells],
            metadata={"kernelspec": {"name": "python3-gpushare", "display_name": "Python 3 (shared GPU)"}},
        )


def demo_notebooks(bytes_each: int) -> list[DemoNotebook]:
    """Return the three notebooks, each with two arrays of `bytes_each` bytes together."""
    setup = _SETUP.format(elements=bytes_each // 8)
    return [
        DemoNotebook("train.ipynb", (setup, _TRAIN, _CHECK), 0.0),
        DemoNotebook("explore.ipynb", (setup, *[_EXPLORE] * 6, _CHECK), 1.0),
        DemoNotebook("infer.ipynb", (setup, _INFER, _CHECK), 0.0),
    ]
