"""Tests of libraries whose work may pass the gate: they are reported, and mode "swap" evicts nothing any more.

Functions of a newer CUDA than that of the shim's tables count as one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import page as pages

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_transfer_failures import faulty_driver

MIB = 1 << 20
FILES = {"NVDEC": "libnvcuvid.so.1", "NVENC": "libnvidia-encode.so.1", "OptiX": "libnvoptix.so.1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with empty libraries of these names."""
    (tmp_path / "empty.c").touch()
    for name in FILES.values():
        subprocess.run(["cc", "-shared", "-o", str(tmp_path / name), str(tmp_path / "empty.c")], check=True)
    return tmp_path


def reported(process: ProcessConnection) -> list[str]:
    return pages.bypassing_libraries(process.page.report.bypassing_libraries)


def test_loaded_libraries_are_reported(client: CudaClient, process: ProcessConnection, folder: Path) -> None:
    client.begin(process, 1)
    assert reported(process) == []
    found = []
    for name, file in FILES.items():
        client.run(f"ctypes.CDLL({str(folder / file)!r}) and None")
        found.append(name)
        wait_until(lambda: reported(process) == found, what=name)


@pytest.mark.parametrize(
    "look_up",
    [
        "cuda.cuLaunchKernel_v9",
        "cuda.cuGetProcAddress_v9",
        "cuda.cuGetProcAddress_v2(b'cuLaunchKernel', byref(c_void_p()), 21000, c_uint64(0), byref(c_int()))",
    ],
)
def test_newer_forms_of_functions_are_reported(stub: Any, look_up: str) -> None:
    client, process = stub(["cuLaunchKernel_v9", "cuGetProcAddress_v9"], STUB_MANAGED="1")
    process.doorbell()
    assert reported(process) == []
    client.run(f"{look_up} and None")
    wait_until(lambda: reported(process) == ["functions of a newer CUDA"], what="the report")
    errors = client.end()
    assert errors.count("neither counted nor held back") == 1 and "stays on the device" in errors


def test_a_library_that_is_loaded_during_an_eviction_keeps_the_memory(
    machine: NativeHost, coordinator: ScriptedCoordinator, folder: Path
) -> None:
    """The next turn begins before the agent finds that nothing is left to evict."""
    client, process = machine.new_client(
        coordinator, GPUSHARE_MEMORY_MODE="swap", LD_LIBRARY_PATH=str(faulty_driver().parent)
    )
    report = process.page.report
    process.open(1)
    assert client.run(f"[cuda.alloc({4 * MIB})[0], cuda.spin()]") == [0, 0]
    process.page.control.resident_target[0] = 0
    client.run("cuda.library.faulty_hold_in(b'cuMemRelease')")
    process.close_gate(1)
    client.run("while cuda.library.faulty_hold(-1) == 1: pass")
    client.run(f"ctypes.CDLL({str(folder / FILES['NVDEC'])!r}) and None")
    process.open(2)
    client.run("thread = in_thread(lambda: cuda.make_current() or cuda.spin())")
    client.run("cuda.library.faulty_hold(0); thread.join()")
    process.drain(2)
    wait_until(lambda: report.unmovable == 4 * MIB, what="memory that is unmovable")
    assert report.resident == 4 * MIB and report.evicted_bytes == 4 * MIB


def test_mode_swap_keeps_the_memory_of_such_a_process(
    machine: NativeHost, coordinator: ScriptedCoordinator, folder: Path
) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap")
    report = process.page.report
    process.open(1)
    assert client.run(f"[cuda.alloc({4 * MIB})[0], cuda.spin()]") == [0, 0]
    process.page.control.resident_target[0] = 0
    process.drain(1)
    wait_until(lambda: report.resident == 0, what="the eviction")
    client.run(f"ctypes.CDLL({str(folder / FILES['NVDEC'])!r}) and None")
    process.open(2)
    assert client.run("cuda.spin()") == 0
    process.drain(2)
    wait_until(lambda: report.unmovable == 4 * MIB, what="memory that is unmovable")
    assert report.resident == 4 * MIB and report.evicted_bytes == 4 * MIB
    assert "keep memory on the device" in machine.log_text()
