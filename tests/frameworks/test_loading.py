"""Tests of an unchanged PyTorch with CUDA on the simulated device, without and with the shim."""

from __future__ import annotations

import pytest

from .conftest import FrameworkHost

MODES = ["", "unified", "swap", "plain"]  # without the shim, and the memory modes


@pytest.mark.parametrize("mode", MODES)
def test_pytorch_finds_the_device_and_copies_keep_every_bit(host: FrameworkHost, mode: str) -> None:
    program = host.torch("one", mode)
    assert program.run("torch.cuda.is_available(), torch.cuda.device_count()") == [True, 1]
    program.run("there = torch.arange(1 << 20, dtype=torch.int32).cuda()")
    assert program.run("torch.equal(there.cpu(), torch.arange(1 << 20, dtype=torch.int32))")
    assert list(host.clients()) == (["one"] if mode else [])


def test_a_launch_reports_once_that_nothing_is_computed(host: FrameworkHost) -> None:
    program = host.torch("one")
    program.run("there = torch.zeros(4).cuda(); there += 1; there += 1; torch.cuda.synchronize()")
    assert "".join(program.errors).count("Kernels are not computed") == 1
    assert len(host.executions(program)) >= 3
