"""Tests that all views of memory agree, each from its own source.

The views are the program's records, cuMemGetInfo, cuDeviceTotalMem and NVML inside the client, the coordinator, and
the driver's own figures for the whole device.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..native.test_shim_ledger import ROUNDS, StressProgram
from ..native.test_shim_nvml import FAKE
from .system_host import MIB, GpuProgram, SystemHost, wait_until

MODES = ["unified", "swap", "plain"]
LIMIT = 200 * MIB

VIEWS = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def views():
    free, total = cuda.info()
    device, size, memory = ctypes.c_int(), c_size_t(), (c_uint64 * 3)()
    check(cuda.cuDeviceTotalMem_v2(byref(size), device))
    check(nvml.nvmlDeviceGetMemoryInfo(c_void_p(1), memory))
    return {"cuMemGetInfo": [total - free, total], "total": size.value, "NVML": [memory[2], memory[0]]}
"""


@pytest.fixture
def nvml(tmp_path: Path) -> str:
    """Return the folder of a fake NVML, whose figures for the device differ unless the shim replaces them."""
    (tmp_path / "fake.c").write_text(FAKE.replace("300", "1ull << 40"))  # the free bytes: more than any client may have
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(tmp_path / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(tmp_path / "fake.c")], check=True)
    return str(tmp_path)


def bare(host: SystemHost) -> GpuProgram:
    """Start a program without the shim, which gets the driver's own figures."""
    program = host.program("bare", GPUSHARE_DISABLE="1")
    program.run("check(cuda.spin(1) or cuda.cuCtxSynchronize())")
    return program


def used(program: GpuProgram) -> int:
    """Return the used bytes of the device, by the driver's own figures if the program is `bare`."""
    free, total = program.run("cuda.info()")
    return int(total - free)


def agreed(views: Callable[[], tuple[Any, Any]]) -> Any:
    """Wait until two views agree, and return their value."""
    last: list[Any] = []

    def agree() -> bool:
        last[:] = views()
        return bool(last[0] == last[1])

    wait_until(agree, what="two views that agree")
    return last[0]


@pytest.mark.parametrize("mode", MODES)
def test_every_view_agrees_to_the_byte(default_settings_host: SystemHost, nvml: str, mode: str) -> None:
    """Eight threads allocate and free at random, by every function; see `tests/native/test_shim_ledger.py`."""
    quota = f"memory={LIMIT}"
    witness = default_settings_host.program("one", quota, GPUSHARE_MEMORY_MODE=mode, LD_LIBRARY_PATH=nvml)
    uuid = default_settings_host.status()["devices"][0]["uuid"]
    witness.run(VIEWS + f"\nos.environ['FAKE_UUID'] = {uuid!r}")
    program = StressProgram(default_settings_host.client_environment("one", quota, GPUSHARE_MEMORY_MODE=mode), mode)
    assert program.read()["bytes"] == 0

    def total() -> int:
        client = default_settings_host.clients()["one"]
        assert client["allocated"] == sum(process["allocated"] for process in client["processes"])
        assert {process["memory_mode"] for process in client["processes"]} == {mode}
        return int(client["allocated"])

    for number in range(1, ROUNDS + 1):
        program.next_round()
        allocated = program.agreed(total)["bytes"]
        assert (allocated > 0) == (number < ROUNDS)
        assert witness.run("views()") == {
            "cuMemGetInfo": [allocated, LIMIT],
            "total": LIMIT,
            "NVML": [allocated, LIMIT],
        }
    program.process.kill()
    program.process.communicate()


@pytest.mark.parametrize("mode", MODES)
def test_resident_bytes_equal_those_of_the_driver(short_quantum_host: SystemHost, mode: str) -> None:
    """Two clients use more than fits on the device. The figures are exact unless they are marked as estimates."""
    size = 30 if mode == "plain" else 56  # unmovable memory must fit
    programs = [short_quantum_host.program(name, GPUSHARE_MEMORY_MODE=mode) for name in ("a", "b")]
    bare_program = bare(short_quantum_host)
    empty = used(bare_program)  # the contexts, which the shim does not count
    work = f"[check(cuda.launch('fill_f32', array, 1.0, {size * MIB // 4})) for array in arrays]"
    for _ in range(2):
        for program in programs:
            program.run(f"arrays = globals().get('arrays') or [cuda.alloc({size} << 20)[1] for _ in range(3)]")
            program.start(f"{work}; check(cuda.cuCtxSynchronize())")
            program.result()

    def both() -> tuple[int, int]:
        status = short_quantum_host.status()
        device, clients = status["devices"][0], status["clients"]
        assert device["memory_used"] == sum(client["resident"] for client in clients)
        assert {client["resident_is_estimate"] for client in clients} == {mode == "unified"}
        assert device["memory_used_is_estimate"] == (mode == "unified")
        return device["memory_used"], used(bare_program) - empty

    if mode == "unified":
        on_device, used_bytes = both()
        # The estimate ignores the contexts and the memory that they displace.
        assert abs(on_device - used_bytes) <= empty
    else:
        on_device = agreed(both)
    assert on_device <= 256 * MIB
    allocated = sum(client["allocated"] for client in short_quantum_host.clients().values())
    assert allocated == 6 * size * MIB
    assert (on_device < allocated) == (mode != "plain")
