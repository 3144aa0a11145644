"""Test of the release of PyTorch's cache at the end of a cell while memory is short, with the shipped settings."""

from __future__ import annotations

import pytest

from ..system.notebook_client import kernel_starter
from ..system.system_host import MIB, wait_until
from .conftest import MODES, FrameworkHost, write_kernelspec


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES[1:])
def test_cache_is_released_while_memory_is_short(host: FrameworkHost, mode: str) -> None:
    host.kill_coordinator()
    host.start_coordinator()
    name = write_kernelspec(host.folder / "share" / "kernels", mode)
    with kernel_starter() as start:
        notebook = start(name, setup=False)
        notebook.run("import torch; kept = torch.arange(1024).cuda()", 100)
        notebook.run("del_me = torch.empty(256 << 20, dtype=torch.uint8, device='cuda'); del del_me")
        assert notebook.value("torch.cuda.memory_reserved()") >= 256 * MIB, "all memory fits"
        other = host.program("other", GPUSHARE_MEMORY_MODE="swap")
        other.run(f"status, array = cuda.alloc({800 * MIB}); check(status)")
        wait_until(lambda: notebook.value("torch.cuda.memory_reserved()") < 256 * MIB)
        assert notebook.value("torch.equal(kept.cpu(), torch.arange(1024))")
