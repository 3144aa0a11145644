"""Tests of the simulated times of calls that map or pin memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from ..driver_facts.harness import MIB, Cuda, environment, newest_observations, running_process
from ..driver_facts.vmm import allow, properties, reserve
from .test_simcuda import elapsed
from .test_simcuda_transfers import timed

SIZE = 64 * MIB
MARGIN = 0.02  # seconds by which the fastest run of a call may be late on a busy machine
SLOW = """
time_scale = 2
[device]
create_time = 10 ms
map_time = 20 ms
access_time = 30 ms
unmap_time = 40 ms
release_time = 50 ms
host_alloc_bandwidth = 6400 MiB/s
host_free_bandwidth = 3200 MiB/s
register_bandwidth = 1600 MiB/s
unregister_bandwidth = 800 MiB/s
"""
MAPPING = {"create": 0.02, "map": 0.04, "access": 0.06, "unmap": 0.08, "release": 0.10}
PINNING = {"alloc": 0.02, "free": 0.04, "register": 0.08, "unregister": 0.16}  # for SIZE
SLOWER = 1000  # factor by which the margin is small beside the times of mapping calls
H200 = {"create": 74e-6, "map": 10e-6, "access": 88e-6, "unmap": 51e-6, "release": 41e-6}
H200_PINNING = {"alloc": SIZE / 3.0e9, "free": SIZE / 11.7e9, "register": SIZE / 26e9, "unregister": SIZE / 64e9}


def take(calls: dict[str, Callable[[], object]], seconds: dict[str, float], factor: float = 1.0) -> None:
    """Assert that the fastest run of each call takes its time, and less than the margin more."""
    found, runs = dict.fromkeys(calls, 1e9), 0
    while runs < 40 and any(found[name] > seconds[name] * factor + MARGIN for name in calls):
        runs += 1
        for name, call in calls.items():
            found[name] = min(found[name], elapsed(call))
    assert all(seconds[name] * factor <= found[name] <= seconds[name] * factor + MARGIN for name in calls), found


def mapping_calls(cuda: Cuda, size: int) -> dict[str, Callable[[], object]]:
    address, handles = reserve(cuda, size), []
    return {
        "create": lambda: handles.append(cuda.cuMemCreate(size, properties(cuda), 0)),
        "map": lambda: cuda.cuMemMap(address, size, 0, handles[-1], 0),
        "access": lambda: allow(cuda, address, size),
        "unmap": lambda: cuda.cuMemUnmap(address, size),
        "release": lambda: cuda.cuMemRelease(handles.pop()),
    }


def pinning_calls(cuda: Cuda, size: int) -> dict[str, Callable[[], object]]:
    pinned, memory = [], ctypes.create_string_buffer(size)
    return {
        "alloc": lambda: pinned.append(int(cuda.cuMemHostAlloc(size, 0))),
        "free": lambda: cuda.cuMemFreeHost(pinned.pop()),
        "register": lambda: cuda.cuMemHostRegister(ctypes.addressof(memory), size, 0),
        "unregister": lambda: cuda.cuMemHostUnregister(ctypes.addressof(memory)),
    }


def calls(cuda: Cuda) -> None:
    take(mapping_calls(cuda, 2 * MIB), MAPPING)
    take(mapping_calls(cuda, SIZE), MAPPING)
    take(mapping_calls(cuda, 2 * SIZE), MAPPING, factor=2)
    take(pinning_calls(cuda, SIZE), PINNING)
    take(pinning_calls(cuda, SIZE // 4), PINNING, factor=0.25)


def mapping_calls_of_the_card(cuda: Cuda) -> None:
    take(mapping_calls(cuda, SIZE), H200, factor=SLOWER)


def pinning_calls_of_the_card(cuda: Cuda) -> None:
    take(pinning_calls(cuda, SIZE), H200_PINNING)


def run_with(test: Callable[[Cuda], None], config: str, folder: Path) -> None:
    (folder / "machine.conf").write_text(config)
    with running_process(test, environment(folder / "state", GPUSHARE_SIM_CONFIG=str(folder / "machine.conf"))) as it:
        assert it.wait(timeout=90) == 0, newest_observations(folder)


@timed
def test_a_call_for_more_memory_takes_longer_and_one_for_less_takes_as_long_to_map(tmp_path: Path) -> None:
    run_with(calls, SLOW, tmp_path)


@timed
@pytest.mark.parametrize(
    ("test", "factor"), [(mapping_calls_of_the_card, SLOWER), (pinning_calls_of_the_card, 1)], ids=["map", "pin"]
)
def test_a_named_card_has_the_times_of_that_card(test: Callable[[Cuda], None], factor: int, tmp_path: Path) -> None:
    run_with(test, f"time_scale = {factor}\n[device]\ncard = H200\nmemory = 2 GiB\n", tmp_path)
