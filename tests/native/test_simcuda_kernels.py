"""Tests of launches that the simulated driver does not compute, and of the cubins that have such kernels."""

from __future__ import annotations

import ctypes
import struct
import time
from pathlib import Path

from ..driver_facts.harness import Cuda, environment, on_driver
from .test_simcuda_files import describe

EXECUTABLE, FUNCTION, OBJECT = 2, 2, 1  # of ELF
ENTRY = 0x10  # NVIDIA's flag of a kernel in the field `other` of a symbol
LONG_NAME = b"kernel_" + b"x" * 500
OWN = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry own(.param .u64 own_0) { ret; }\n\0"


def cubin(*symbols: tuple[bytes, int, int, int, bytes], machine: int = 190) -> bytes:
    """Return an ELF file; each symbol has its name, type, field `other`, size and section."""
    sections = [b"", b".symtab", b".strtab", *{symbol[4] for symbol in symbols}]
    names = b"\0".join([*sections, *(symbol[0] for symbol in symbols), b""])

    def place(name: bytes) -> int:
        return (b"\0" + names).index(b"\0" + name + b"\0")

    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", place(name), kind | 1 << 4, other, sections.index(section), 0, size)
        for name, kind, other, size, section in symbols
    )
    offsets = {b".symtab": (64, len(table)), b".strtab": (64 + len(table), len(names))}
    kinds = {b"": 0, b".symtab": 2, b".strtab": 3}
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", place(name), kinds.get(name, 1), 0, 0, *offsets.get(name, (0, 0)), 2, 0, 0, 0)
        for name in sections
    )
    start = 64 + len(table) + len(names)
    numbers = (EXECUTABLE, machine, 1, 0, 0, start, 0, 64, 0, 0, 64, len(sections), 2)
    return struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", *numbers) + table + names + headers


IMAGE = cubin(
    (b"first", FUNCTION, ENTRY, 128, b".text.first"),
    (LONG_NAME, FUNCTION, ENTRY, 128, b".text.second"),
    (b"helper", FUNCTION, 0, 128, b".text.first"),
    (b"table", OBJECT, 0, 40, b".nv.global.init"),
    (b"factors", OBJECT, 0, 16, b".nv.constant3"),
    (b"scratch", OBJECT, 0, 64, b".nv.shared.first"),
)


@on_driver()
def test_a_cubin_is_refused_by_default(cuda: Cuda) -> None:
    assert cuda.code("cuModuleLoadData", IMAGE) == 209


@on_driver(GPUSHARE_SIM_KERNEL_NS="1000")
def test_a_cubin_has_its_kernels_and_variables(cuda: Cuda) -> None:
    module = cuda.cuModuleLoadData(IMAGE)
    assert cuda.cuModuleGetFunctionCount(module) == 2
    for name in (b"first", LONG_NAME):
        assert cuda.cuFuncGetName(cuda.cuModuleGetFunction(module, name)) == name
    assert [cuda.cuModuleGetGlobal(module, name)[1] for name in (b"table", b"factors")] == [40, 16]
    assert cuda.code("cuModuleGetFunction", module, b"helper") == 500
    assert cuda.code("cuFuncGetName", 0) == 1
    assert cuda.code("cuModuleGetGlobal", module, b"scratch") == 500


@on_driver(GPUSHARE_SIM_KERNEL_NS="1000")
def test_machine_code_of_another_machine_is_refused(cuda: Cuda) -> None:
    assert cuda.code("cuModuleLoadData", cubin(machine=62)) == 209
    assert cuda.code("cuModuleLoadData", b"\x50\xed\x55\xba" + bytes(64)) == 209


@on_driver(GPUSHARE_SIM_KERNEL_NS="30000000")
def test_launches_that_are_not_computed_take_the_stated_time(cuda: Cuda) -> None:
    of_cubin = cuda.cuModuleGetFunction(cuda.cuModuleLoadData(IMAGE), b"first")
    of_text = cuda.cuModuleGetFunction(cuda.cuModuleLoadData(OWN), b"own")
    for function, params in ((of_cubin, 0), (of_text, ((7,), (ctypes.c_uint64,)))):
        began = time.monotonic()
        cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, params, 0)
        cuda.cuCtxSynchronize()
        assert time.monotonic() - began >= 0.03
    assert cuda.code("cuLaunchKernel", of_cubin, 1, 1, 1, 2048, 1, 1, 0, 0, 0, 0) == 1


def test_a_time_that_is_no_time_is_refused(tmp_path: Path) -> None:
    code, error = describe(environment(tmp_path / "state", GPUSHARE_SIM_KERNEL_NS="long"))
    assert code == -1 and error == {"error": "GPUSHARE_SIM_KERNEL_NS=long: a time in nanoseconds is needed"}
