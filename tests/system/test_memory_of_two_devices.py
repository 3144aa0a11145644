"""Tests of programs in mode "swap" on two simulated devices, of which one has too little memory for both programs."""

from __future__ import annotations

from .system_host import MIB, WAIT, GpuProgram, SystemHost

ROUNDS = 4
# Of devices with 256 MiB. The wide program has memory on both, the narrow one only on the first.
SHARED, APART, NARROW = 60 * MIB, 200 * MIB, 220 * MIB

SECOND_DEVICE = """
def alloc_there(size):
    there, own = c_void_p(), c_void_p()
    check(cuda.cuCtxGetCurrent(byref(own)))
    check(cuda.cuDevicePrimaryCtxRetain(byref(there), 1) or cuda.cuCtxSetCurrent(there))
    status, address = cuda.alloc(size)
    check(status or cuda.cuCtxSetCurrent(own))
    return address
"""


def work(program: GpuProgram, size: int) -> None:
    program.run(f"check(cuda.launch('work_f32', array, {size // 4}, 0, 0) or cuda.cuCtxSynchronize())", 3 * WAIT)


def moved(host: SystemHost, program: GpuProgram) -> int:
    """Return the bytes that the program has moved so far, in both directions."""
    page = host.page(program)
    return page["evicted_bytes"] + page["restored_bytes"]


def test_no_memory_moves_on_the_device_with_room(host: SystemHost) -> None:
    """The memory on the second device is the larger and the newer part of the program's memory."""
    host.devices = 2
    host.start_coordinator("--time-quantum", "0.1")
    wide = host.program("wide", GPUSHARE_MEMORY_MODE="swap")
    narrow = host.program("narrow", GPUSHARE_MEMORY_MODE="swap", CUDA_VISIBLE_DEVICES="0")
    wide.run(SECOND_DEVICE)
    wide.run(f"array = cuda.alloc({SHARED})[1]; apart = alloc_there({APART})", 3 * WAIT)
    work(wide, SHARED)
    narrow.run(f"array = cuda.alloc({NARROW})[1]", 3 * WAIT)
    work(narrow, NARROW)
    for _ in range(ROUNDS):
        before = moved(host, wide)
        for program, size in ((wide, SHARED), (narrow, NARROW)):
            work(program, size)
        assert moved(host, wide) - before <= 2 * SHARED
        assert host.page(wide)["devices_1_resident"] == APART
    client = host.clients()["wide"]
    assert not client["resident_by_device_is_estimate"]
    assert APART in client["resident_by_device"].values()
