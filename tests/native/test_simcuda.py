"""Tests of the simulated driver with one program, mostly through NVIDIA's own cuda-bindings."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from ..driver_facts.harness import MIB, NON_BLOCKING, PTX, ROOT, Cuda, on_driver, simulated_driver
from ..support import sanitizers


def floats(values: list[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def elapsed(function: Any) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start


def test_every_row_of_the_table_is_exported_with_its_twin_and_nothing_else() -> None:
    table = (ROOT / "native" / "simcuda" / "base" / "symbols.def").read_text()
    rows = re.findall(r"^(PLAIN|STREAM)\((\w+), (\w+), (\d+), (\w*)", table, re.MULTILINE)
    expected = {symbol for _, _, symbol, _, _ in rows} | {f"{row[2]}_{row[4]}" for row in rows if row[0] == "STREAM"}
    listing = subprocess.run(["nm", "-D", "--defined-only", str(simulated_driver())], capture_output=True, text=True)
    exported = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert exported == expected | {"simcuda_describe", "simcuda_processes"}


@on_driver()
def test_devices_and_contexts(cuda: Cuda) -> None:
    assert cuda.cuDriverGetVersion() == 13000
    assert cuda.cuDeviceGetCount() == 1
    assert b"Simulated" in cuda.cuDeviceGetName(64, cuda.device)
    assert bytes(cuda.cuDeviceGetUuid(cuda.device).bytes).startswith(b"SIM")
    assert cuda.cuDeviceTotalMem(cuda.device) == 1 << 30
    attribute = cuda.driver.CUdevice_attribute
    for name in ("MANAGED_MEMORY", "CONCURRENT_MANAGED_ACCESS", "UNIFIED_ADDRESSING"):
        assert cuda.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), cuda.device) == 1
    before = cuda.cuMemGetInfo()[0]
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    assert int(cuda.cuCtxGetCurrent()) == int(context) != int(cuda.context)
    assert cuda.cuMemGetInfo()[0] < before
    memory = cuda.cuMemAlloc(MIB)
    cuda.launch("fill_f32", memory, 1.0, 16)
    cuda.cuCtxDestroy(context)
    assert int(cuda.cuCtxGetCurrent()) == int(cuda.context)
    assert cuda.cuMemGetInfo()[0] == before
    assert cuda.code("cuMemcpyDtoH", bytearray(4), memory, 4) == 1
    assert cuda.code("cuCtxSetCurrent", context) == 201


@on_driver()
def test_primary_context_is_counted(cuda: Cuda) -> None:
    assert int(cuda.cuDevicePrimaryCtxRetain(cuda.device)) == int(cuda.context)
    cuda.cuDevicePrimaryCtxRelease(cuda.device)
    assert cuda.cuDevicePrimaryCtxGetState(cuda.device)[1] == 1
    cuda.cuDevicePrimaryCtxRelease(cuda.device)
    assert cuda.cuDevicePrimaryCtxGetState(cuda.device)[1] == 0
    assert cuda.code("cuMemAlloc", 4096) in (201, 709)


@on_driver()
def test_copies_and_sets(cuda: Cuda) -> None:
    data = bytes(range(256)) * 64
    first, second = cuda.cuMemAlloc(len(data)), cuda.cuMemAlloc(len(data))
    cuda.cuMemcpyHtoD(first, data, len(data))
    cuda.cuMemcpyDtoD(second, first, len(data))
    assert cuda.read(second, len(data)) == data
    cuda.cuMemsetD8(int(second) + 16, 7, 16)
    cuda.cuMemsetD16(int(second) + 32, 0x0102, 8)
    cuda.cuMemsetD32(int(second) + 48, 0x01020304, 4)
    assert cuda.read(second, 64) == data[:16] + b"\7" * 16 + b"\2\1" * 8 + b"\4\3\2\1" * 4
    cuda.cuMemsetD2D8(first, 64, 9, 3, 2)
    assert cuda.read(first, 70) == b"\t\t\t" + data[3:64] + b"\t\t\t" + data[67:70]
    rows = cuda.driver.CUDA_MEMCPY2D()
    rows.srcMemoryType = rows.dstMemoryType = cuda.driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    rows.srcDevice, rows.srcPitch, rows.dstDevice, rows.dstPitch = first, 64, second, 128
    rows.WidthInBytes, rows.Height, rows.srcXInBytes, rows.dstY = 4, 3, 60, 1
    cuda.cuMemcpy2D(rows)
    assert [cuda.read(second, 4, 128 * row) for row in (1, 2, 3)] == [data[60:64], data[124:128], data[188:192]]
    assert cuda.code("cuMemcpyHtoD", int(first) + 1, data, len(data)) == 1


@on_driver()
def test_functions_compute(cuda: Cuda) -> None:
    n = 64
    a, b, c = (cuda.cuMemAlloc(4 * n * n) for _ in range(3))
    cuda.launch("fill_f32", a, 2.0, n * n)
    cuda.launch("fill_f32", b, 0.5, n * n)
    cuda.launch("axpy_f32", a, b, 4.0, n * n)
    assert cuda.read_f32(a, n * n - 1) == 4.0
    cuda.launch("matmul_f32", c, a, b, n)
    assert cuda.read_f32(c, 0) == cuda.read_f32(c, n * n - 1) == 4.0 * 0.5 * n
    identity = floats([float(i % (n + 1) == 0) for i in range(n * n)])
    values = floats([float(i) for i in range(n * n)])
    cuda.cuMemcpyHtoD(a, identity, len(identity))
    cuda.cuMemcpyHtoD(b, values, len(values))
    cuda.launch("matmul_f32", c, b, a, n)
    assert cuda.read(c, len(values)) == values


@on_driver()
def test_errors(cuda: Cuda) -> None:
    memory = cuda.cuMemAlloc(4096)
    assert cuda.code("cuMemAlloc", 2 << 30) == 2
    assert cuda.code("cuMemAlloc", 0) == 1
    assert cuda.code("cuMemFree", int(memory) + 8) == 1
    assert cuda.code("cuModuleGetFunction", cuda.module, b"none") == 500
    assert cuda.code("cuModuleLoadData", b"hello\0") == 218
    assert cuda.code("cuModuleLoadData", b"\x7fELF" + bytes(60)) == 209
    assert (
        cuda.code("cuLaunchKernel", cuda.functions["spin"], 0, 1, 1, 1, 1, 1, 0, 0, ((1,), (ctypes.c_uint64,)), 0) == 1
    )
    stream = cuda.cuStreamCreate(0)
    cuda.cuStreamDestroy(stream)
    assert cuda.code("cuStreamSynchronize", stream) == 400
    assert cuda.cuGetErrorName(cuda.driver.CUresult(700)) == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    cuda.launch("fill_f32", memory, 1.0, 2000)  # beyond the end of the memory
    assert cuda.code("cuCtxSynchronize") == 700
    assert cuda.code("cuMemAlloc", 4096) == 700
    assert cuda.code("cuStreamCreate", 0) == 700


@on_driver()
def test_functions_that_are_not_built_in_load_but_do_not_run(cuda: Cuda) -> None:
    text = b"""
        .version 6.0
        .target sm_50 // a comment
        .address_size 64
        .visible .global .align 4 .u32 counter[3];
        .visible .entry own(.param .u64 own_0, .param .align 8 .b8 own_1[24], .param .f32 own_2) { ret; }
        .visible .entry fill_f32(.param .u64 other) { ret; }
        \0"""
    module = cuda.cuModuleLoadData(text)
    own = cuda.cuModuleGetFunction(module, b"own")
    assert [cuda.cuFuncGetParamInfo(own, i) for i in range(3)] == [[0, 8], [8, 24], [32, 4]]
    assert cuda.code("cuFuncGetParamInfo", own, 3) == 1
    for name in (b"own", b"fill_f32"):  # a function with other parameters is not built in
        function = cuda.cuModuleGetFunction(module, name)
        assert cuda.code("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 801
    assert cuda.cuModuleGetGlobal(module, b"counter")[1] == 12
    assert cuda.code("cuCtxSynchronize") == 0


@on_driver()
def test_kernels_of_a_library_run_in_every_context(cuda: Cuda) -> None:
    """The CUDA runtime loads functions as kernels of libraries, which belong to no context."""
    library = cuda.cuLibraryLoadData(PTX.read_bytes() + b"\0", [], [], 0, [], [], 0)
    kernel = cuda.cuLibraryGetKernel(library, b"fill_f32")
    for context in (cuda.context, cuda.cuCtxCreate(None, 0, cuda.device)):
        cuda.cuCtxSetCurrent(context)
        cuda.functions["fill_f32"] = cuda.cuKernelGetFunction(kernel)
        memory = cuda.cuMemAlloc(4096)
        cuda.launch("fill_f32", memory, 2.0, 16)
        assert cuda.read(memory, 64) == floats([2.0] * 16)
    cuda.cuLibraryUnload(library)


@on_driver()
def test_pointers(cuda: Cuda) -> None:
    attribute = cuda.driver.CUpointer_attribute
    plain, managed = cuda.cuMemAlloc(MIB), cuda.cuMemAllocManaged(MIB, 1)
    for address, is_managed in ((plain, 0), (managed, 1)):
        inside = int(address) + 100
        one = [cuda.cuPointerGetAttribute(kind, inside) for kind in (attribute(8), attribute(2), attribute(11))]
        assert [int(value) for value in one] == [is_managed, 2, int(address)]
        many = cuda.cuPointerGetAttributes(3, [attribute(8), attribute(2), attribute(11)], inside)
        assert [int(value) for value in many] == [int(value) for value in one]
    assert [int(value) for value in cuda.cuMemGetAddressRange(int(plain) + 100)] == [int(plain), MIB]
    assert cuda.code("cuPointerGetAttribute", attribute(2), 4096) == 1
    assert [int(value) for value in cuda.cuPointerGetAttributes(1, [attribute(2)], 4096)] == [0]


@on_driver()
def test_stream_ordered_memory(cuda: Cuda) -> None:
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    word, flag = cuda.host_flag()
    before = cuda.cuMemGetInfo()[0]
    memory = cuda.cuMemAllocAsync(8 * MIB, stream)
    assert cuda.cuMemGetInfo()[0] == before - 8 * MIB
    cuda.launch("fill_f32", memory, 1.0, 16, stream=stream)
    cuda.launch("wait_flag", flag, 1, stream=stream)
    cuda.cuMemFreeAsync(memory, stream)
    assert cuda.cuMemGetInfo()[0] == before - 8 * MIB
    word.value = 1
    cuda.cuStreamSynchronize(stream)
    assert cuda.cuMemGetInfo()[0] == before


@on_driver()
def test_lookup_honours_version_and_default_stream(cuda: Cuda) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    found, status = ctypes.c_void_p(), ctypes.c_int()

    def look_up(name: bytes, version: int, flags: int = 0) -> tuple[int, int | None, int]:
        code = library.cuGetProcAddress_v2(
            name, ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
        )
        return code, found.value, status.value

    def symbol(name: str) -> int | None:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    assert look_up(b"cuMemPrefetchAsync", 11000) == (0, symbol("cuMemPrefetchAsync"), 0)
    assert look_up(b"cuMemPrefetchAsync", 13000) == (0, symbol("cuMemPrefetchAsync_v2"), 0)
    assert look_up(b"cuMemPrefetchAsync", 13000, 2) == (0, symbol("cuMemPrefetchAsync_v2_ptsz"), 0)
    assert look_up(b"cuMemcpyHtoD", 12000, 2) == (0, symbol("cuMemcpyHtoD_v2_ptds"), 0)
    assert look_up(b"cuLaunchKernel", 12000, 1) == (0, symbol("cuLaunchKernel"), 0)
    assert look_up(b"cuLaunchKernelEx", 11000) == (500, None, 2)
    assert look_up(b"cuNoSuchFunction", 13000) == (500, None, 1)


@on_driver()
def test_absent_parts_of_the_interface(cuda: Cuda) -> None:
    """There are no multicast objects, as on a device whose attribute is 0, no linker, and no messages in the log."""
    attribute = cuda.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
    assert cuda.cuDeviceGetAttribute(attribute, cuda.device) == 0
    assert cuda.code("cuMulticastCreate", cuda.driver.CUmulticastObjectProp()) == 801
    assert cuda.code("cuLinkCreate", 0, [], []) == 801
    iterator = cuda.cuLogsCurrent(0)
    assert cuda.code("cuMemFree", 1) != 0
    buffer = bytearray(100)
    assert cuda.cuLogsDumpToMemory(iterator, buffer, len(buffer), 0)[1] == 0


def test_a_plain_c_program(tmp_path: Path) -> None:
    source = tmp_path / "program.c"
    source.write_text(
        """
        int cuInit(unsigned), cuDeviceGet(int *, int), cuDeviceGetCount(int *), cuCtxCreate_v2(void **, unsigned, int);
        int cuMemAlloc_v2(unsigned long long *, unsigned long), cuMemFree_v2(unsigned long long);
        int main(void) {
            int device, count;
            void *context;
            unsigned long long memory;
            return cuMemAlloc_v2(&memory, 1) != 3 || cuInit(0) || cuDeviceGetCount(&count) || count != 1 ||
                   cuDeviceGet(&device, 0) || cuMemAlloc_v2(&memory, 1) != 201 || cuCtxCreate_v2(&context, 0, device) ||
                   cuMemAlloc_v2(&memory, 4096) || cuMemFree_v2(memory);
        }
        """
    )
    folder = simulated_driver().parent
    program = tmp_path / "program"
    subprocess.run(["cc", "-o", str(program), str(source), f"-L{folder}", "-l:libcuda.so.1"], check=True)
    variables = {"LD_LIBRARY_PATH": str(folder), "GPUSHARE_SIM_STATE": str(tmp_path / "state")}
    assert subprocess.run([program], env=variables | sanitizers.preload()).returncode == 0
