"""Tests of two PyTorch programs with 768 MiB each on a device of 1 GiB, under the shipped defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support import tier
from ..support.polling import wait_until
from ..system.system_host import GpuProgram, system_host, turn_intervals
from .conftest import ALLOCATORS, MIB, FrameworkHost

SECONDS = 200.0  # limit of one wait, on a busy machine
# Memory modes and allocators beyond those of the short tier. In the second list, memory never leaves the device.
MOVABLE = [("unified", "cudaMallocAsync"), ("swap", "cudaMallocAsync"), ("swap", "expandable segments")]
UNMOVABLE = [("plain", "cudaMallocAsync"), ("plain", "expandable segments"), ("unified", "expandable segments")]
TENSORS = "tensors = turns.Tensors(12, 64 << 20)"  # 768 MiB


@pytest.fixture
def default_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameworkHost]:
    with system_host(monkeypatch, FrameworkHost) as new_host:
        new_host.start_coordinator()
        yield new_host


def pair(host: FrameworkHost, mode: str, allocator: str) -> list[GpuProgram]:
    return [host.torch(name, mode, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator]) for name in ("one", "other")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode, allocator", [("unified", "native"), ("swap", "native"), *tier.nightly(MOVABLE)])
def test_both_programs_work_with_more_than_the_device_has(
    default_host: FrameworkHost, mode: str, allocator: str
) -> None:
    programs = pair(default_host, mode, allocator)
    for program in programs:
        program.start(TENSORS)
    for program in programs:
        program.result(SECONDS)
    wait_until(lambda: len(turn_intervals(*map(default_host.launches, programs))) >= 5, SECONDS, interval=0.2)
    for program in programs:
        found = program.run("tensors.stop()", SECONDS)
        assert (found["wrong"], found["failure"]) == ([], "")
    clients = default_host.clients()
    assert all(clients[name]["allocated"] >= 768 * MIB for name in ("one", "other"))
    assert default_host.overlap(*([program] for program in programs)) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode, allocator", [("plain", "native"), *tier.nightly(UNMOVABLE)])
def test_without_room_the_second_program_gets_out_of_memory(
    default_host: FrameworkHost, mode: str, allocator: str
) -> None:
    """The first program keeps its memory, and the second one works with what is left."""
    one, other = pair(default_host, mode, allocator)
    one.run(TENSORS, SECONDS)
    other.start(TENSORS)
    answer = other.raw(SECONDS)
    assert answer["error"] == "OutOfMemoryError", answer
    found = one.run("tensors.stop()", SECONDS)
    assert (found["wrong"], found["failure"]) == ([], "")
    other.run("torch.cuda.empty_cache()")
    other.run("tensors = turns.Tensors(2, 32 << 20)", SECONDS)
    assert other.run("tensors.stop()", SECONDS)["wrong"] == []
