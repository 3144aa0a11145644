"""Release of the device memory that frameworks keep for later allocations.

PyTorch and CuPy keep freed memory in caches, whose content would move with the turns although no program needs it.
JAX has no call for a release.
"""

from __future__ import annotations

import contextlib
import sys


def release() -> None:
    """Release the cached memory of the frameworks that the program has imported and used.

    A fault of a framework has no effect on the cell, which has ended.
    """
    with contextlib.suppress(Exception):
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.empty_cache()
    with contextlib.suppress(Exception):
        pool = sys.modules["cupy"].get_default_memory_pool()
        if pool.n_free_blocks():
            pool.free_all_blocks()
