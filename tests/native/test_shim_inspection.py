"""Tests of the details that a process reports on request: its memory by kind, and unhooked functions."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator
from .test_shim_graphs import CAPTURED
from .test_shim_swap import TOOLS

MIB = 1 << 20


def inspect(process: ProcessConnection, seq: int) -> dict[str, Any]:
    process.page.control.inspect_seq = seq
    process.doorbell()
    return process.expect("details", seq=seq)


def ledger(details: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the number and the MiB of each kind."""
    return {line["kind"]: (line["number"], line["bytes"] // MIB) for line in details["ledger"]}


def test_the_ledger_by_kind(client: CudaClient, process: ProcessConnection) -> None:
    assert inspect(process, 1)["ledger"] == []
    client.run("allocations = [cuda.alloc(2 << 20) for _ in range(3)]")
    client.run("own = cuda.alloc(1 << 20, 'cuMemAllocManaged', 1)")
    details = inspect(process, 2)
    assert ledger(details) == {"redirected": (3, 6), "managed": (1, 1)}
    assert details["memory_mode"] == "unified"
    assert client.run("[cuda.free(address) for _, address in allocations]") == [0, 0, 0]
    assert ledger(inspect(process, 3)) == {"managed": (1, 1)}
    assert process.is_silent(), "the process reports its details once"


def test_physical_memory_is_counted_once(machine: NativeHost, coordinator: ScriptedCoordinator) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="plain")
    client.run(TOOLS)
    client.run("place, (code, handle) = reserve(8 << 20), create(4 << 20)")
    assert client.run("code, map_at(place, 4 << 20, handle), map_at(place + (4 << 20), 4 << 20, handle)") == [0, 0, 0]
    client.run(CAPTURED)
    assert client.run("cuda.alloc(1 << 20)[0], instantiate()") == [0, 0]
    assert ledger(inspect(process, 1)) == {"device": (1, 1), "physical": (1, 4), "graph": (1, 12)}


@pytest.mark.parametrize("mode", MEMORY_MODES)
def test_an_unmapped_range_with_holes_counts_no_more(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str
) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    process.open(1)
    client.run(TOOLS)
    client.run("place, handles = reserve(32 << 20), [create(4 << 20)[1] for _ in range(3)]")
    client.run("codes = [map_at(place + ((2 + 8 * i) << 20), 4 << 20, handle) for i, handle in enumerate(handles)]")
    assert client.run("codes, [release(handle) for handle in handles]") == [[0] * 3, [0] * 3]
    assert process.page.report.allocated == 12 * MIB
    assert client.run("unmap(place, 8 << 20), unmap(place, 8 << 20)") == [0, 0]
    assert process.page.report.allocated == 8 * MIB
    assert client.run("unmap(place, 32 << 20)") == 0
    assert (process.page.report.allocated, inspect(process, 1)["ledger"]) == (0, [])


def test_unknown_entry_points_are_listed(machine: NativeHost, stub: Any) -> None:
    """Lookups by dlsym and by cuGetProcAddress count.

    The list has no name that is hooked, that unhooked.def covers, or that the driver does not have.
    """
    client, process = stub()
    client.run("[ctypes.CDLL('libcuda.so.1').cuFutureCall for _ in range(3)] and None")
    client.run("cuda.cuFutureCall_v2_ptsz and cuda.cuCtxGetCurrent and cuda.cuMemAlloc_v2 and None")
    client.run("hasattr(cuda, 'cuNoSuchCall')")
    client.run(
        """
function, status = c_void_p(), c_int()
def look_up(name, version=13000):
    return cuda.cuGetProcAddress_v2(name, byref(function), version, c_uint64(0), byref(status))
"""
    )
    client.run("[look_up(b'cuFutureLaunch'), look_up(b'cuFutureLaunch'), look_up(b'cuNoSuchCall')] and None")
    client.run(
        r"[look_up(b'cuFuture\"\\\x01'), look_up(b'cuMemAlloc', 21000), look_up(b'cuDeviceGet', 21000)] and None"
    )
    names = ["cuFutureCall", "cuFutureCall_v2_ptsz", "cuFutureLaunch", 'cuFuture"\\\x01', "cuMemAlloc of CUDA 21.0"]
    assert inspect(process, 1)["unhooked"] == names
    log = machine.log_text()
    assert log.count("pass cuFutureCall unhooked") == 1
    assert log.count("calls of cuMemAlloc of CUDA 21.0 are neither counted nor held back") == 1


def test_unknown_names_are_limited(machine: NativeHost, stub: Any) -> None:
    client, process = stub()
    client.run("function, status = c_void_p(), c_int()")
    for number in range(40):
        name = f"cuFuture{number:02}{'x' * 100}"
        client.run(f"cuda.cuGetProcAddress_v2(b'{name}', byref(function), 13000, c_uint64(0), byref(status))")
    names = inspect(process, 7)["unhooked"]
    assert len(names) == 32 and names[31].startswith("cuFuture31x") and len(names[31]) == 63
    assert machine.log_text().count("not in the tables of this shim") == 32


def test_no_answer_without_a_request(process: ProcessConnection) -> None:
    inspect(process, 1)
    process.doorbell()
    inspect(process, 2)
