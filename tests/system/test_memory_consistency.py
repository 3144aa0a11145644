"""Each view of memory, from its own source, tells the same: the program's books, cuMemGetInfo, cuDeviceTotalMem and
NVML inside the client, the coordinator, and the driver's own books of the whole device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..native.test_shim_ledger import ROUNDS, Books
from ..native.test_shim_nvml import FAKE
from .system_host import MIB, GpuProgram, SystemHost, wait_until

MODES = ["unified", "swap", "plain"]
LIMIT = 200 * MIB

LOOK = """
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
    """A library that would tell something else about the device if nobody stood before it."""
    (tmp_path / "fake.c").write_text(FAKE.replace("300", "1ull << 40"))  # free: more than anybody may have
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(tmp_path / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(tmp_path / "fake.c")], check=True)
    return str(tmp_path)


def bare(host: SystemHost) -> GpuProgram:
    """A program that doesn't share: it sees the driver's own books."""
    program = host.program("bare", GPUSHARE_DISABLE="1")
    program.run("check(cuda.spin(1) or cuda.cuCtxSynchronize())")
    return program


def used(program: GpuProgram) -> int:
    """Bytes of the device, by the driver's own books if the program is `bare`."""
    free, total = program.run("cuda.info()")
    return int(total - free)


def settled(look: Callable[[], tuple[Any, Any]]) -> Any:
    """Two views, once they agree; what they are then."""
    last: list[Any] = []

    def agree() -> bool:
        last[:] = look()
        return bool(last[0] == last[1])

    wait_until(agree, what="two views that agree")
    return last[0]


@pytest.mark.parametrize("mode", MODES)
def test_every_view_agrees_to_the_byte(long_quantum_host: SystemHost, nvml: str, mode: str) -> None:
    """Eight threads allocate and free at random, in every way; see `tests/native/test_shim_ledger.py`."""
    quota = f"memory={LIMIT}"
    witness = long_quantum_host.program("one", quota, GPUSHARE_MEMORY_MODE=mode, LD_LIBRARY_PATH=nvml)
    uuid = long_quantum_host.status()["devices"][0]["uuid"]
    witness.run(LOOK + f"\nos.environ['FAKE_UUID'] = {uuid!r}")
    books = Books(long_quantum_host.prepared("one", quota, GPUSHARE_MEMORY_MODE=mode), mode)
    assert books.read()["bytes"] == 0

    def total() -> int:
        client = long_quantum_host.clients()["one"]
        assert client["allocated"] == sum(process["allocated"] for process in client["processes"])
        assert {process["memory_mode"] for process in client["processes"]} == {mode}
        return int(client["allocated"])

    for number in range(1, ROUNDS + 1):
        books.next_round()
        held = books.agree(total)["bytes"]
        assert (held > 0) == (number < ROUNDS)
        assert witness.run("views()") == {"cuMemGetInfo": [held, LIMIT], "total": LIMIT, "NVML": [held, LIMIT]}
    books.process.kill()
    books.process.communicate()


@pytest.mark.parametrize("mode", MODES)
def test_resident_bytes_equal_those_of_the_driver(short_quantum_host: SystemHost, mode: str) -> None:
    """Two clients that do not fit together; all of their memory is used. Exact, where it is said to be."""
    size = 30 if mode == "plain" else 56  # what is never moved must fit
    programs = [short_quantum_host.program(name, GPUSHARE_MEMORY_MODE=mode) for name in ("a", "b")]
    outside = bare(short_quantum_host)
    empty = used(outside)  # but for contexts, which are the driver's
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
        return device["memory_used"], used(outside) - empty

    if mode == "unified":
        on_device, there = both()
        assert abs(on_device - there) <= empty  # it knows nothing of contexts, and what they leave no room for
    else:
        on_device = settled(both)
    assert on_device <= 256 * MIB
    held = sum(client["allocated"] for client in short_quantum_host.clients().values())
    assert held == 6 * size * MIB
    assert (on_device < held) == (mode != "plain")
