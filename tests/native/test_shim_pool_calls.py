"""Test of the calls of the driver that stream-ordered allocation makes, without the shim and in each mode."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ..driver_facts.harness import FLAGS, SOURCES
from ..support.compile_cache import cached
from .conftest import HERE, CudaClient, NativeHost
from .fake_coordinator import ScriptedCoordinator
from .test_shim_pool_reuse import REUSE
from .test_shim_pools import SETUP

PAIRS = 100
PAIR = ("cuMemAllocFromPoolAsync", "cuMemFreeAsync")
MAX_CALLS = 24
# Reads of the calling thread's state or of a handle, which submit nothing and wait for nothing.
THREAD_QUERIES = {
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGetDefaultMemPool",
    "cuStreamGetCtx",
    "cuStreamGetCtx_v2",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
}
COUNT = f"""
def counted(work):
    text = ctypes.create_string_buffer(1 << 14)
    cuda.library.counted_calls(text, c_size_t(len(text)))
    for _ in range({PAIRS}):
        work()
    cuda.library.counted_calls(text, c_size_t(len(text)))
    return [[name, int(calls)] for name, calls in map(str.split, text.value.decode().splitlines())]
"""


@cache
def counting_driver() -> Path:
    """Return the simulated driver that counts calls from outside (countingcuda.c), built."""
    source = HERE / "countingcuda.c"
    files = [str(path) for path in SOURCES if path.suffix == ".c"]
    flags = [*FLAGS.split(), "-O0", "-finstrument-functions"]  # -O0: no inlined and no tail calls
    return cached(
        "libcuda.so.1",
        [source, *SOURCES],
        lambda out: [["cc", *flags, "-o", str(out), str(source), *files, "-ldl", "-lm", "-lrt"]],
    )


def calls_per_pair(client: CudaClient, start: str = "cuda") -> dict[str, float]:
    """Return the calls of the driver for an allocation and a free in a stream, after a first pair."""
    client.run(f"import ctypes; cuda = {start}")
    client.run(SETUP + REUSE + COUNT)
    client.run("pool = default_pool(); keep(pool); pair = lambda: give(take(2, one, pool), one); pair()")
    return {name: calls / PAIRS for name, calls in client.run("counted(pair)") if calls >= PAIRS}


@pytest.fixture
def driver() -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(counting_driver().parent)}


def test_a_pair_makes_few_calls_of_the_driver(
    machine: NativeHost, coordinator: ScriptedCoordinator, driver: dict[str, str]
) -> None:
    """A pair that reuses memory allocates and frees nothing, and makes at most twice the calls that cost something."""
    bare = calls_per_pair(machine.client(LD_PRELOAD="", **driver), "Cuda()")
    assert bare == dict.fromkeys(PAIR, 1)
    for mode in ("plain", "unified", "swap"):
        client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode, **driver)
        process.open(1)
        calls = calls_per_pair(client)
        costly = {name: count for name, count in calls.items() if name not in THREAD_QUERIES}
        assert sum(costly.values()) <= 2 * len(PAIR), (mode, calls)
        assert sum(calls.values()) <= MAX_CALLS, (mode, calls)
        if mode != "plain":
            assert costly == {"cuEventRecord": 1}
