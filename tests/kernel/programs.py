"""What the cells of several tests run."""

from __future__ import annotations

SETUP = """
from jupyter_gpushare.demo.gpu import Gpu
gpu = Gpu()
array = gpu.full(1000, 0.0)
def work(seconds):
    gpu.work(array, seconds)
    gpu.synchronize()
work(0.01)
"""
