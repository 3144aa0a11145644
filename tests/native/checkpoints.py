"""Programs for tests of checkpoints: the checkpointed program, the sender of requests, and a watcher of memory."""

from __future__ import annotations

from .conftest import CudaClient, NativeHost

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, OPERATING_SYSTEM, NOT_SUPPORTED = 1, 2, 3, 304, 801
CONTEXT = 16  # MiB

DEVICES = """
[device]
name = Alike
memory = 512 MiB
[device]
name = Alike
memory = 256 MiB
[device]
name = Other
[device]
name = Alike
"""

# A program that sends requests, without an initialised driver.
SENDER = """
cuda = Cuda(start=False)

def request(operation, pid, args=None):
    return getattr(cuda, 'cuCheckpointProcess' + operation)(pid, args)

def requests(pid, *operations):
    return [request(operation, pid) for operation in operations]

def state(pid):
    value = c_int(-1)
    status = cuda.cuCheckpointProcessGetState(pid, byref(value))
    return status or ('RUNNING', 'LOCKED', 'CHECKPOINTED', 'FAILED')[value.value]

class Restore(ctypes.Structure):
    _fields_ = [('pairs', c_void_p), ('count', c_uint32), ('reserved', ctypes.c_char * 52)]

def restore(pid, *pairs):
    uuids = ctypes.create_string_buffer(b''.join(bytes.fromhex(uuid) for pair in pairs for uuid in pair))
    return request('Restore', pid, byref(Restore(ctypes.addressof(uuids), len(pairs))))
"""

# A program with an idle context on device 0.
WATCHER = """
cuda = Cuda()

def number(address):
    value = c_float()
    assert cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(address + 40), c_size_t(4)) == 0
    return value.value

def uuid(device=0):
    value = ctypes.create_string_buffer(16)
    assert cuda.cuDeviceGetUuid_v2(value, device) == 0
    return value.raw.hex()

def free(device=0):
    context, before = c_void_p(), c_void_p()
    assert cuda.cuCtxGetCurrent(byref(before)) == 0
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    try:
        return cuda.info()[0] >> 20
    finally:
        assert cuda.cuCtxSetCurrent(before) == 0
        assert cuda.cuDevicePrimaryCtxRelease_v2(device) == 0
"""
# A program with 100 MiB of memory on device 0.
USER = f"""{WATCHER}
status, memory = cuda.alloc(100 << 20)
assert status == 0
assert cuda.launch('fill_f32', memory, 3.0, 1 << 16) == 0
"""


def start_program(machine: NativeHost, code: str) -> CudaClient:
    """Start a client on four devices, without the shim."""
    (machine.root / "machine.conf").write_text(DEVICES)
    client = machine.client(LD_PRELOAD="", GPUSHARE_SIM_CONFIG=str(machine.root / "machine.conf"))
    client.run(code)
    return client


def checkpoint(sender: CudaClient, pid: int) -> None:
    assert sender.run(f"requests({pid}, 'Lock', 'Checkpoint')") == [0, 0]
