"""Tests of PyTorch programs whose turns end while they hold tensors, capture graphs and replay them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from jupyter_gpushare.wire import messages

from ..support import tier
from ..support.polling import wait_until
from ..system.system_host import GpuProgram, system_host, turn_intervals
from .conftest import ALLOCATORS, MIB, MODES, FrameworkHost

CHANGES = tier.strength(20, 200)  # of turns
SECONDS = 600.0
LONG = 100.0  # limit of one wait, on a busy machine


@pytest.fixture
def small_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameworkHost]:
    """Return a host with short turns on a small device, which leaves little to move at a change of turns.

    In mode `plain` the programs fit together, so they would be colocated by default.
    """
    with system_host(monkeypatch, lambda folder: FrameworkHost(folder, 128 * MIB)) as new_host:
        new_host.start_coordinator("--sharing", "exclusive", "--time-quantum", "0.2")
        yield new_host


def with_rival(
    host: FrameworkHost, mode: str, allocator: str = "native", size: int = 60 * MIB
) -> tuple[GpuProgram, GpuProgram]:
    """Start a PyTorch program and a rival, which together have more memory than the device where the mode allows it."""
    program = host.torch("torch", mode, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    return program, host.rival(mode, 10 * MIB if mode == "plain" else size)


def wait_for_turn(host: FrameworkHost, program: GpuProgram) -> None:
    now = time.monotonic_ns()
    wait_until(lambda: host.worked_since(now, program), LONG)


def evict(host: FrameworkHost, program: GpuProgram, mode: str) -> None:
    """Move all memory of the PyTorch program off the device that can leave the device."""
    if mode != "plain":
        host.request(messages.Evict(client="torch"))
        wait_until(lambda: host.page(program)["resident"] == host.page(program)["unmovable"], LONG)


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("allocator", ["native", *tier.nightly(name for name in ALLOCATORS if name != "native")])
@pytest.mark.parametrize("mode", MODES[1:])
def test_tensors_keep_every_bit_over_many_turns(small_host: FrameworkHost, mode: str, allocator: str) -> None:
    program, rival = with_rival(small_host, mode, allocator)
    program.run("tensors = turns.Tensors(6, 8 << 20)", LONG)

    def changes() -> int:
        return len(turn_intervals(small_host.launches(program), small_host.launches(rival))) - 1

    wait_until(lambda: changes() >= CHANGES or program.run("tensors.failure", LONG), SECONDS, interval=0.2)
    found = program.run("tensors.stop()", LONG)
    assert (found["wrong"], found["failure"]) == ([], "")
    assert found["checked"] > 12
    rival.stop()


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_capture_outlives_a_turn(small_host: FrameworkHost, mode: str) -> None:
    program, rival = with_rival(small_host, mode)
    program.run("graph = turns.Graph()", LONG)
    for _ in range(2):
        wait_for_turn(small_host, rival)
    evict(small_host, program, mode)
    program.run("graph.end_capture()", LONG)
    assert program.run("graph.replays(1)", LONG)
    rival.stop()


@pytest.mark.parametrize(
    ("mode", "allocator"),
    [
        *[(mode, "native") for mode in MODES[1:]],
        *[(mode, "cudaMallocAsync") for mode in ("unified", "swap")],
        ("swap", "expandable segments"),  # in mode `unified` such memory never leaves the device
    ],
)
def test_a_graph_replays_after_its_memory_has_left_the_device(
    small_host: FrameworkHost, mode: str, allocator: str
) -> None:
    program, rival = with_rival(small_host, mode, allocator)
    program.run("tensors = turns.Tensors(6, 8 << 20); tensors.stop()", LONG)
    program.run("graph = turns.Graph(); graph.end_capture()", LONG)
    for seed in range(1, 6):
        wait_for_turn(small_host, rival)
        evict(small_host, program, mode)
        assert program.run(f"graph.replays({seed})", LONG)
    assert program.run("tensors.stop()", LONG)["wrong"] == []
    assert mode == "plain" or small_host.page(program)["evicted_bytes"] > 0
    rival.stop()


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("work", ["features.load('spawn')", "tensors.stop(); features.compiled_training()"])
@pytest.mark.parametrize("mode", ["swap", *tier.nightly(["unified"])])
def test_work_over_several_turns_goes_on_while_memory_leaves_the_device(
    small_host: FrameworkHost, mode: str, work: str
) -> None:
    program, rival = with_rival(small_host, mode, size=80 * MIB)
    program.run("tensors = turns.Tensors(6, 8 << 20)", LONG)
    evicted, began = small_host.page(program)["evicted_bytes"], time.monotonic_ns()
    program.run(work, SECONDS)
    assert small_host.took_turns_since(began, program, rival)
    assert small_host.page(program)["evicted_bytes"] > evicted
    assert program.run("tensors.stop()", LONG)["wrong"] == []
    assert len(small_host.clients()) == 2  # the processes that load data are no clients
    rival.stop()
