"""Tests of an unchanged PyTorch with CUDA on the simulated device, without and with the shim."""

from __future__ import annotations

import pytest

from ..support.polling import wait_until
from .conftest import MODES, FrameworkHost


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
    wait_until(lambda: program.errors)
    assert "".join(program.errors).count("Kernels are not computed") == 1
    assert len(host.executions(program)) >= 3


def test_a_sleep_lasts_for_its_clock_cycles(host: FrameworkHost) -> None:
    program = host.torch("one")
    program.run("begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))")
    program.run("begin.record(); torch.cuda._sleep(50_000_000); end.record(); end.synchronize()")
    assert program.run("begin.elapsed_time(end)") >= 50  # ms


def test_sorts_and_scans_run(host: FrameworkHost) -> None:
    """PyTorch's library for them, CUB, refuses a function whose version of PTX is older than its kernels."""
    program = host.torch("one")
    program.run("there = torch.zeros(1 << 16, device='cuda')")
    program.run("torch.sort(there); torch.topk(there, 3); torch.cumsum(there, 0); torch.cuda.synchronize()")


def test_a_kernel_that_pytorch_would_compile_is_an_error_of_python(host: FrameworkHost) -> None:
    program = host.torch("one")
    program.start("torch.zeros(9, device='cuda').prod()")
    assert program.raw()["error"] == "RuntimeError"
    program.run("torch.cuda.synchronize()")


def test_a_training_step_runs_with_products_convolutions_and_normalisations(host: FrameworkHost) -> None:
    """The losses are undefined, but each layer submits work to the device."""
    program = host.torch("one")
    program.run(
        "nn = torch.nn\n"
        "layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)\n"
        "model = nn.Sequential(*layers).cuda()\n"
        "optimiser = torch.optim.SGD(model.parameters())\n"
        "images, labels = torch.zeros(4, 3, 32, 32).cuda(), torch.zeros(4, dtype=torch.long).cuda()\n"
        "nn.functional.cross_entropy(model(images), labels).backward()\n"
        "optimiser.step()\n"
        "torch.cuda.synchronize()\n"
    )
    assert not [line for line in program.errors if "not simulated" in line]
    assert len(host.executions(program)) > 20
