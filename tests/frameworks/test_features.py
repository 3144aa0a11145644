"""Tests of what PyTorch programs do with a device, under each memory mode and allocator, with and without a rival."""

from __future__ import annotations

import time

import pytest

from ..support import tier
from ..system.system_host import GpuProgram
from .conftest import ALLOCATORS, MIB, MODES, FrameworkHost

SECONDS = 200.0  # upper bound of all features in one process, on a busy machine


def assert_all_work(program: GpuProgram) -> None:
    failures = program.run("features.failures()", SECONDS)
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_feature_works_without_the_shim(host: FrameworkHost, allocator: str) -> None:
    assert_all_work(host.torch("torch", PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator]))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("quota", ["", *tier.nightly(["memory=400MiB"])])
@pytest.mark.parametrize("company", ["exclusive", "rival"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("mode", MODES[1:])
def test_every_feature_works(host: FrameworkHost, mode: str, allocator: str, company: str, quota: str) -> None:
    program = host.torch("torch", mode, quota, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    program.run("torch.cuda.init()")
    rival = host.rival(mode, 500 * MIB if mode != "plain" else 100 * MIB) if company == "rival" else None
    began = time.monotonic_ns()
    assert_all_work(program)
    if rival:
        while not host.took_turns_since(began, program, rival):  # on a fast machine, all features end within a turn
            program.run("features.training()", SECONDS)
        assert host.overlap(*([program] for program in (program, rival))) == 0
        rival.stop()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_training_runs(host: FrameworkHost, mode: str) -> None:
    host.torch("torch", mode).run("features.compiled_training()", SECONDS)


@pytest.mark.parametrize("mode", ["", *tier.nightly(MODES[1:])])
def test_spawned_loaders_have_their_parent_s_data_and_no_device(host: FrameworkHost, mode: str) -> None:
    program = host.torch("torch", mode)
    program.run("features.load('spawn')", SECONDS)
    clients = host.clients()
    assert [len(client["processes"]) for client in clients.values()] == ([1] if mode else [])
