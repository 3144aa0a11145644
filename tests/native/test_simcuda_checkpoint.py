"""Tests of checkpoints on the simulated machine: the machine's accounts, and the death of processes.

`test_simcuda_device_map.py` has the maps of devices.
`tests/driver_facts/test_checkpoints.py` has what the real driver does as well.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .api_tables import each_toolkit
from .checkpoints import (
    CONTEXT,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    SENDER,
    USER,
    WATCHER,
    checkpoint,
    start_program,
)
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ScriptedCoordinator
from .test_abi import compiled

WORK = """
word, flag = c_void_p(), c_uint64()
assert cuda.cuMemHostAlloc(byref(word), c_size_t(4), 0) == 0
assert cuda.cuMemHostGetDevicePointer_v2(byref(flag), word, 0) == 0
assert cuda.launch('wait_flag', flag.value, 1) == 0
"""


@pytest.fixture
def user(machine: NativeHost) -> CudaClient:
    return start_program(machine, USER)


@pytest.fixture
def sender(machine: NativeHost, user: CudaClient) -> CudaClient:
    return start_program(machine, SENDER)


@pytest.fixture
def watcher(machine: NativeHost) -> CudaClient:
    """Return a process with an idle context, which reads the free memory of devices."""
    return start_program(machine, WATCHER)


def test_a_program_without_cuda_sends_requests(user: CudaClient, sender: CudaClient) -> None:
    checkpoint(sender, user.pid)
    user.start("number(memory)")
    assert user.is_running()
    assert sender.run(f"requests({user.pid}, 'Restore', 'Unlock')") == [0, 0]
    assert user.result() == 3.0


def test_all_kinds_of_memory_leave_and_return(user: CudaClient, sender: CudaClient, watcher: CudaClient) -> None:
    user.run(
        "handle, pooled, reserved = c_uint64(), c_uint64(), c_uint64()\n"
        "properties = (c_int * 16)(1, 0, 1, 0)\n"
        "assert cuda.cuMemCreate(byref(handle), c_size_t(8 << 20), properties, c_uint64(0)) == 0\n"
        "assert cuda.cuMemAllocAsync(byref(pooled), c_size_t(6 << 20), None) == 0\n"
        "assert cuda.cuMemAllocHost_v2(byref(c_void_p()), c_size_t(6 << 20)) == 0\n"
    )
    used = watcher.run("free(0)")
    checkpoint(sender, user.pid)
    assert watcher.run("free(0)") == used + 100 + 8 + 6 + CONTEXT
    assert sender.run(f"requests({user.pid}, 'Restore', 'Unlock')") == [0, 0]
    assert watcher.run("free(0)") == used
    assert user.run("cuda.cuMemRelease(handle), cuda.free(pooled.value), cuda.free(memory)") == [0, 0, 0]
    assert watcher.run("free(0)") == used + 114


def test_a_process_locks_itself(user: CudaClient) -> None:
    user.run(SENDER.replace("cuda = Cuda(start=False)", "me = os.getpid()"))
    assert user.run("requests(me, 'Lock', 'Checkpoint', 'Restore', 'Unlock')") == [0, 0, 0, 0]
    assert user.run("number(memory)") == 3.0


def test_a_process_ends_while_it_is_locked(user: CudaClient, sender: CudaClient) -> None:
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    user.end()
    assert user.process.returncode == 0
    assert sender.run(f"state({user.pid})") == OPERATING_SYSTEM
    assert sender.run(f"requests({user.pid}, 'Unlock')") == [OPERATING_SYSTEM]


def test_a_thread_that_waits_in_a_locked_process_ends_with_it(user: CudaClient, sender: CudaClient) -> None:
    user.run("threading.Thread(target=lambda: number(memory), daemon=True).start()")
    checkpoint(sender, user.pid)
    user.run("thread = threading.Thread(target=cuda.cuCtxGetCurrent, args=(byref(c_void_p()),), daemon=True)")
    user.run("thread.start()")
    user.process.kill()
    user.collect()
    assert sender.run(f"state({user.pid})") == OPERATING_SYSTEM


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_killed_process_leaves_no_memory(
    user: CudaClient, sender: CudaClient, watcher: CudaClient, checkpointed: bool
) -> None:
    before = watcher.run("free(0)") + 100 + CONTEXT
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    if checkpointed:
        assert sender.run(f"requests({user.pid}, 'Checkpoint')") == [0]
    user.process.kill()
    user.collect()
    assert watcher.run("free(0)") == before
    assert sender.run(f"requests({user.pid}, 'Checkpoint', 'Restore')") == [OPERATING_SYSTEM, OPERATING_SYSTEM]


def await_request(sender: CudaClient, user: CudaClient, operation: str) -> None:
    """Start a request that the process does not complete, and wait until the process has it."""
    sender.start(f"request('{operation}', {user.pid})")
    assert sender.is_running()


def test_a_sender_gets_an_error_when_the_process_is_killed(user: CudaClient, sender: CudaClient) -> None:
    user.run(WORK)
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    await_request(sender, user, "Checkpoint")
    user.process.kill()
    user.collect()
    assert sender.result() in (NOT_INITIALIZED, OPERATING_SYSTEM)  # the first one until the process has been reaped


def test_a_sender_gets_an_error_when_the_process_executes_another_program(user: CudaClient, sender: CudaClient) -> None:
    user.run(WORK)
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    await_request(sender, user, "Checkpoint")
    user.start("os.execv('/bin/cat', ['cat'])")
    assert sender.result() == NOT_INITIALIZED


def test_a_killed_sender_leaves_a_process_that_others_unlock(
    machine: NativeHost, user: CudaClient, sender: CudaClient
) -> None:
    user.run(WORK)
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    await_request(sender, user, "Checkpoint")
    sender.process.kill()
    sender.collect()
    other = start_program(machine, SENDER)
    assert other.run(f"requests({user.pid}, 'Unlock')") == [0]
    assert other.run(f"state({user.pid})") == "RUNNING"
    user.run("c_uint32.from_address(word.value).value = 1")
    assert user.run("number(memory)") == 3.0


def test_a_stopped_process_answers_when_it_goes_on(user: CudaClient, sender: CudaClient) -> None:
    user.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, user.pid, os.WSTOPPED)  # its threads run on until the stop
    await_request(sender, user, "Lock")
    user.process.send_signal(signal.SIGCONT)
    assert sender.result() == 0


def test_the_child_of_a_locked_process_is_not_locked(user: CudaClient, sender: CudaClient) -> None:
    assert sender.run(f"requests({user.pid}, 'Lock')") == [0]
    user.run(f"def child(): os._exit(0 if cuda.cuCtxSynchronize() == {NOT_INITIALIZED} else 1)")
    assert user.run("os.waitpid(os.fork() or child(), 0)[1]") == 0


@each_toolkit
def test_states_have_the_values_of_the_header(toolkit: int, tmp_path: Path) -> None:
    """The layouts of the arguments are those of the shim (test_abi.py)."""
    lines = ["#include <cuda.h>"]
    for value, state in enumerate(("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED")):
        lines.append(f'_Static_assert(CU_PROCESS_STATE_{state} == {value}, "{state}");')
    assert compiled("\n".join(lines), toolkit, tmp_path) == []


# --- under the shim --------------------------------------------------------------------------------------------------


def shimmed(machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> tuple[CudaClient, CudaClient]:
    """Return a client under the shim with memory of that mode, in a turn, and a sender without the shim."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    process.open(1)
    client.run("status, memory = cuda.alloc(100 << 20)")
    assert client.run("cuda.launch('fill_f32', memory, 3.0, 1 << 16)") == 0
    assert client.run("cuda.cuCtxSynchronize()") == 0
    sender = machine.client(LD_PRELOAD="")
    sender.run(SENDER)
    return client, sender


def test_unified_memory_of_the_shim_prevents_a_checkpoint(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, sender = shimmed(machine, coordinator, "unified")
    assert sender.run(f"requests({client.pid}, 'Lock', 'Checkpoint')") == [0, NOT_SUPPORTED]
    assert sender.run(f"state({client.pid})") == "LOCKED"


def test_a_program_with_plain_memory_is_checkpointed_under_the_shim(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    client, sender = shimmed(machine, coordinator, "plain")
    checkpoint(sender, client.pid)
    client.run("value = c_float()")
    client.start("cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(memory), c_size_t(4)), value.value")
    assert client.is_running()
    assert sender.run(f"requests({client.pid}, 'Restore', 'Unlock')") == [0, 0]
    assert client.result() == [0, 3.0]


@pytest.mark.parametrize("operation", ["GetState", "GetRestoreThreadId", "Lock", "Checkpoint", "Restore", "Unlock"])
def test_the_lookup_under_the_shim_finds_the_calls_of_the_driver(
    machine: NativeHost, coordinator: ScriptedCoordinator, operation: str
) -> None:
    client, _ = machine.new_client(coordinator)
    client.run("found = c_void_p()")
    name = f"cuCheckpointProcess{operation}"
    assert client.run(f"cuda.cuGetProcAddress_v2(b'{name}', byref(found), 12080, c_uint64(0), None)") == 0
    assert client.run(f"found.value == ctypes.cast(cuda.{name}, c_void_p).value")
