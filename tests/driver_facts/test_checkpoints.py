"""Facts about the driver (see test_facts.py): checkpoints of a process by another process and by itself.

The documentation is that of the group "CUDA Checkpointing" of the driver API, which CUDA 12.8 introduced.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..support.polling import wait_until
from .harness import CANNOT_RUN, MIB, Cuda, CudaError, on_driver, running_process

RUNNING, LOCKED, CHECKPOINTED = range(3)
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, ILLEGAL_STATE = 1, 2, 3, 401
OPERATING_SYSTEM, NOT_READY, NOT_SUPPORTED = 304, 600, 801
COUNT = 64 * MIB // 4  # numbers in the memory of the other process


def send(*words: object) -> None:
    print(*words, flush=True)


def use_device(cuda: Cuda, kind: str = "plain") -> None:
    """Hold memory of a kind, and read its last number for each line of input."""
    memory = cuda.cuMemAllocManaged(4 * COUNT, 1) if kind == "managed" else cuda.cuMemAlloc(4 * COUNT)
    exported = cuda.cuIpcGetMemHandle(memory) if kind == "exported" else None
    cuda.launch("fill_f32", memory, 7.0, COUNT)
    cuda.cuCtxSynchronize()
    send("ready")
    for _ in sys.stdin:
        send("reads")
        number = cuda.read_f32(memory, COUNT - 1)
        send(number, int(memory), time.monotonic_ns())
    del exported


def wait_for_work(cuda: Cuda) -> None:
    """Wait in a thread for work that ends with the first line of input."""
    word, flag = cuda.host_flag()
    cuda.launch("wait_flag", flag, 1)

    def wait() -> None:
        cuda.cuCtxSetCurrent(cuda.context)
        cuda.cuCtxSynchronize()
        send("done")

    threading.Thread(target=wait).start()
    send("ready")
    input()
    word.value = 1


def hold_memory(cuda: Cuda, size: str) -> None:
    """Hold device memory until the first line of input."""
    cuda.cuMemAlloc(int(size))
    send("ready")
    input()


@contextmanager
def other_process(program: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with running_process(program, dict(os.environ), *arguments) as process:
        assert read_line(process) == "ready"
        yield process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def need_checkpoints(cuda: Cuda) -> None:
    if cuda.cuDriverGetVersion() < 12080:
        sys.exit(CANNOT_RUN)


def state(cuda: Cuda, pid: int) -> int:
    return int(cuda.cuCheckpointProcessGetState(pid))


def codes(cuda: Cuda, pid: int, *names: str) -> list[int]:
    return [cuda.code(f"cuCheckpointProcess{name}", pid, None) for name in names]


@on_driver()
def test_a_process_is_locked_then_checkpointed_then_restored_then_unlocked(cuda: Cuda) -> None:
    """Each call needs the state that the call before has left, and otherwise returns CUDA_ERROR_ILLEGAL_STATE.

    Source: documentation of cuCheckpointProcessLock, …Checkpoint, …Restore and …Unlock. Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device) as process:
        assert state(cuda, process.pid) == RUNNING
        assert codes(cuda, process.pid, "Checkpoint", "Restore", "Unlock") == 3 * [ILLEGAL_STATE]
        assert codes(cuda, process.pid, "Lock", "Lock", "Restore") == [0, ILLEGAL_STATE, ILLEGAL_STATE]
        assert state(cuda, process.pid) == LOCKED
        assert codes(cuda, process.pid, "Checkpoint", "Checkpoint", "Lock", "Unlock") == [0, *3 * [ILLEGAL_STATE]]
        assert state(cuda, process.pid) == CHECKPOINTED
        assert codes(cuda, process.pid, "Restore", "Checkpoint", "Restore") == [0, 0, 0]
        assert state(cuda, process.pid) == LOCKED
        assert codes(cuda, process.pid, "Unlock") == [0]
        assert state(cuda, process.pid) == RUNNING


@on_driver()
def test_calls_of_a_locked_process_wait_until_it_is_unlocked(cuda: Cuda) -> None:
    """A call that a process makes while it is locked or checkpointed returns after the process is unlocked.

    Source: README of NVIDIA/cuda-checkpoint, "The Utility" (calls may block until CUDA is resumed). Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device) as process:
        assert codes(cuda, process.pid, "Lock") == [0]
        ask(process)
        assert read_line(process) == "reads"
        assert codes(cuda, process.pid, "Checkpoint", "Restore") == [0, 0]
        unlocked = time.monotonic_ns()
        assert codes(cuda, process.pid, "Unlock") == [0]
        number, _, returned = read_line(process).split()
        assert float(number) == 7.0
        assert int(returned) > unlocked


@pytest.mark.whole_card
@on_driver()
def test_a_checkpoint_frees_the_device_and_a_restore_keeps_addresses(cuda: Cuda) -> None:
    """The device memory of a checkpointed process is free for other processes, its contexts' memory included.
    Restored memory has its bytes, at its addresses.

    Source: README of NVIDIA/cuda-checkpoint, "The Utility"; its src/r570-features.c. Seen on an H200.
    """
    need_checkpoints(cuda)
    unused = cuda.cuMemGetInfo()[0]
    with other_process(use_device) as process:
        ask(process)
        assert read_line(process) == "reads"
        address = read_line(process).split()[1]
        used = cuda.cuMemGetInfo()[0]
        assert codes(cuda, process.pid, "Lock", "Checkpoint") == [0, 0]
        assert cuda.cuMemGetInfo()[0] == unused
        assert codes(cuda, process.pid, "Restore", "Unlock") == [0, 0]
        assert cuda.cuMemGetInfo()[0] == used
        ask(process)
        assert read_line(process) == "reads"
        assert read_line(process).split()[:2] == ["7.0", address]


@pytest.mark.whole_card
@on_driver()
def test_a_restore_without_room_leaves_the_process_checkpointed_for_ever(cuda: Cuda) -> None:
    """A restore returns CUDA_ERROR_OUT_OF_MEMORY while other processes have the memory.
    A later restore with enough room returns CUDA_ERROR_OPERATING_SYSTEM. (So room must be certain before a restore.)

    Source: documentation of cuCheckpointProcessRestore (the GPU needs enough memory); NVIDIA/cuda-checkpoint issue 44
    (driver 580.95). Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device) as process:
        assert codes(cuda, process.pid, "Lock", "Checkpoint") == [0, 0]
        filled = cuda.cuMemAlloc(cuda.cuMemGetInfo()[0] - 32 * MIB)
        assert codes(cuda, process.pid, "Restore") == [OUT_OF_MEMORY]
        assert state(cuda, process.pid) == CHECKPOINTED
        cuda.cuMemFree(filled)
        assert codes(cuda, process.pid, "Restore", "Unlock") == [OPERATING_SYSTEM, ILLEGAL_STATE]
        assert state(cuda, process.pid) == CHECKPOINTED


def restore_on(cuda: Cuda, *pairs: tuple[Any, Any]) -> int:
    """Restore this process by a map from UUIDs to UUIDs, and return the error."""
    args = cuda.CUcheckpointRestoreArgs()
    made = []
    for old, new in pairs:
        made.append(cuda.CUcheckpointGpuPair())
        made[-1].oldUuid, made[-1].newUuid = old, new
    args.gpuPairs, args.gpuPairsCount = made, len(made)
    return cuda.code("cuCheckpointProcessRestore", os.getpid(), args)


@on_driver()
def test_a_process_restores_itself_by_a_map_of_its_devices(cuda: Cuda) -> None:
    """A map from each device to itself is as no map.

    Source: documentation of CUcheckpointRestoreArgs and CUcheckpointGpuPair; NVIDIA/cuda-checkpoint issue 35 (a map
    to the same GPU works). Seen on an H200.
    """
    need_checkpoints(cuda)
    devices = [cuda.cuDeviceGetUuid(device) for device in range(cuda.cuDeviceGetCount())]
    memory = cuda.cuMemAlloc(4 * COUNT)
    cuda.launch("fill_f32", memory, 3.0, COUNT)
    assert codes(cuda, os.getpid(), "Lock", "Checkpoint") == [0, 0]
    assert restore_on(cuda, *zip(devices, devices, strict=True)) == 0
    assert codes(cuda, os.getpid(), "Unlock") == [0]
    assert cuda.read_f32(memory, COUNT - 1) == 3.0


@pytest.mark.whole_card
@on_driver()
def test_a_process_leaves_the_device_to_others_and_returns(cuda: Cuda) -> None:
    """A process that has checkpointed itself restores itself after another process has used its part of the device.
    A call that a thread of the process makes meanwhile waits, and then returns what the memory has held before.

    Source: README of NVIDIA/cuda-checkpoint, "The Utility" (calls may block until CUDA is resumed). Seen on an
    H200.
    """
    need_checkpoints(cuda)
    memory = cuda.cuMemAlloc(4 * COUNT)
    cuda.launch("fill_f32", memory, 3.0, COUNT)
    cuda.cuCtxSynchronize()
    unused = int(cuda.cuMemGetInfo()[0])
    found: list[float] = []
    has_checkpointed, begins = threading.Event(), threading.Event()

    def read() -> None:
        cuda.cuCtxSetCurrent(cuda.context)
        begins.set()
        has_checkpointed.wait()
        found.append(cuda.read_f32(memory, COUNT - 1))

    reader = threading.Thread(target=read)
    reader.start()
    begins.wait()
    assert codes(cuda, os.getpid(), "Lock", "Checkpoint") == [0, 0]
    has_checkpointed.set()
    with other_process(hold_memory, str(unused + 32 * MIB)):  # more than there was beside this process
        assert not found
    assert codes(cuda, os.getpid(), "Restore") == [0]
    assert not found
    assert codes(cuda, os.getpid(), "Unlock") == [0]
    reader.join()
    assert found == [3.0]


@on_driver()
def test_a_refused_map_changes_nothing(cuda: Cuda) -> None:
    """A map to a device that does not exist returns CUDA_ERROR_INVALID_VALUE, and the process can be restored.

    Source: documentation of cuCheckpointProcessRestore (results); NVIDIA/cuda-checkpoint issue 35. Seen on an H200.
    """
    need_checkpoints(cuda)
    memory = cuda.cuMemAlloc(4 * COUNT)
    cuda.launch("fill_f32", memory, 3.0, COUNT)
    own = cuda.cuDeviceGetUuid(0)
    assert codes(cuda, os.getpid(), "Lock", "Checkpoint") == [0, 0]
    assert restore_on(cuda, (own, cuda.CUuuid())) == INVALID_VALUE
    assert state(cuda, os.getpid()) == CHECKPOINTED
    assert codes(cuda, os.getpid(), "Restore", "Unlock") == [0, 0]
    assert cuda.read_f32(memory, COUNT - 1) == 3.0


@on_driver()
def test_a_checkpoint_completes_submitted_work(cuda: Cuda) -> None:
    """A checkpoint waits for work that the process has submitted before, here of its own.

    Source: README of NVIDIA/cuda-checkpoint, "Functionality". Seen on an H200.
    """
    need_checkpoints(cuda)
    memory = cuda.cuMemAlloc(4 * COUNT)
    stream = cuda.cuStreamCreate(1)
    cuda.launch("spin", 200_000_000, stream=stream)
    cuda.launch("fill_f32", memory, 3.0, COUNT, stream=stream)
    assert codes(cuda, os.getpid(), "Lock", "Checkpoint", "Restore", "Unlock") == [0, 0, 0, 0]
    assert cuda.is_done(stream)
    assert cuda.read_f32(memory, COUNT - 1) == 3.0


@on_driver()
def test_a_lock_whose_timeout_passes_leaves_the_process_running(cuda: Cuda) -> None:
    """A lock with a timeout returns CUDA_ERROR_NOT_READY if calls of the process do not return in time.

    Source: documentation of cuCheckpointProcessLock (state and results); README of NVIDIA/cuda-checkpoint, "570
    Features" (a timeout to avoid deadlocks). Seen on an H200.
    """
    need_checkpoints(cuda)
    args = cuda.CUcheckpointLockArgs()
    args.timeoutMs = 50
    with other_process(wait_for_work) as process:

        def is_refused() -> bool:
            code = cuda.code("cuCheckpointProcessLock", process.pid, args)
            if code == 0:  # the thread has not begun to wait
                assert codes(cuda, process.pid, "Unlock") == [0]
            return code == NOT_READY

        wait_until(is_refused)
        assert state(cuda, process.pid) == RUNNING
        ask(process)
        assert read_line(process) == "done"


def assert_goes_on(process: subprocess.Popen[str]) -> None:
    """Assert that the other process reads its number."""
    ask(process)
    assert read_line(process) == "reads"
    assert float(read_line(process).split()[0]) == 7.0


@on_driver()
def test_a_process_with_unified_memory_cannot_be_checkpointed(cuda: Cuda) -> None:
    """The checkpoint returns CUDA_ERROR_NOT_SUPPORTED and changes nothing. The process stays locked, and goes on when
    it is unlocked.

    Source: README of NVIDIA/cuda-checkpoint, "Functionality" (unified memory is not supported). Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device, "managed") as process:
        assert codes(cuda, process.pid, "Lock", "Checkpoint") == [0, NOT_SUPPORTED]
        assert state(cuda, process.pid) == LOCKED
        assert codes(cuda, process.pid, "Unlock") == [0]
        assert_goes_on(process)


@on_driver()
def test_a_process_with_exported_memory_can_be_checkpointed(cuda: Cuda) -> None:
    """Memory with a handle for other processes does not prevent a checkpoint, as long as no process has opened it.

    Source: README of NVIDIA/cuda-checkpoint, "Functionality" (IPC memory is not supported). Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device, "exported") as process:
        assert codes(cuda, process.pid, "Lock", "Checkpoint", "Restore", "Unlock") == [0, 0, 0, 0]
        assert_goes_on(process)


def open_memory(cuda: Cuda, handle: str) -> None:
    """Open memory of another process until the first line of input."""
    opened = cuda.CUipcMemHandle()
    ctypes.memmove(opened.getPtr(), bytes.fromhex(handle), 64)
    cuda.cuIpcOpenMemHandle(opened, 1)
    send("ready")
    input()


@on_driver()
def test_a_process_with_opened_memory_is_not_restored(cuda: Cuda) -> None:
    """A process that has opened memory of another process is checkpointed, and can never be restored. The process that
    has made the memory is restored.

    Source: README of NVIDIA/cuda-checkpoint, "Functionality" (IPC memory is not supported). Seen on an H200, apart from
    this test.
    """
    need_checkpoints(cuda)
    handle = cuda.cuIpcGetMemHandle(cuda.cuMemAlloc(4 * COUNT))
    with other_process(open_memory, ctypes.string_at(handle.getPtr(), 64).hex()) as process:
        assert codes(cuda, os.getpid(), "Lock", "Checkpoint", "Restore", "Unlock") == [0, 0, 0, 0]
        assert codes(cuda, process.pid, "Lock", "Checkpoint", "Restore") == [0, 0, INVALID_VALUE]
        assert state(cuda, process.pid) == CHECKPOINTED
        assert codes(cuda, process.pid, "Unlock") == [ILLEGAL_STATE]


@on_driver()
def test_a_process_without_cuda_has_no_state(cuda: Cuda) -> None:
    """The calls return CUDA_ERROR_NOT_INITIALIZED for a process without CUDA, and CUDA_ERROR_OPERATING_SYSTEM for none.

    Source: documentation of cuCheckpointProcessGetState (results). Seen on an H200.
    """
    need_checkpoints(cuda)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        assert cuda.code("cuCheckpointProcessGetState", other.pid) == NOT_INITIALIZED
        assert codes(cuda, other.pid, "Lock") == [NOT_INITIALIZED]
        other.stdin.close()  # type: ignore[union-attr]
    assert cuda.code("cuCheckpointProcessGetState", other.pid) == OPERATING_SYSTEM
    assert codes(cuda, other.pid, "Lock", "Unlock") == [OPERATING_SYSTEM, OPERATING_SYSTEM]


@on_driver()
def test_reserved_fields_must_be_zero(cuda: Cuda) -> None:
    """A field that is reserved and not zero gives CUDA_ERROR_INVALID_VALUE.

    Source: documentation of CUcheckpointLockArgs and CUcheckpointUnlockArgs. Seen on an H200.
    """
    need_checkpoints(cuda)
    args = cuda.CUcheckpointLockArgs()
    ctypes.c_uint32.from_address(args.getPtr() + 4).value = 1  # reserved0
    assert cuda.code("cuCheckpointProcessLock", os.getpid(), args) == INVALID_VALUE
    assert state(cuda, os.getpid()) == RUNNING


@on_driver()
def test_the_restore_thread_is_a_thread_of_the_process(cuda: Cuda) -> None:
    """The thread that restores a process is another thread than those of its program.

    Source: documentation of cuCheckpointProcessGetRestoreThreadId; checkpoint-restore/criu, plugins/cuda/README.md.
    Seen on an H200.
    """
    need_checkpoints(cuda)
    with other_process(use_device) as process:
        thread = int(cuda.cuCheckpointProcessGetRestoreThreadId(process.pid))
        assert thread != process.pid
        assert Path(f"/proc/{process.pid}/task/{thread}").exists()


@on_driver()
def test_the_lookup_finds_checkpoints_from_their_version_on(cuda: Cuda) -> None:
    """cuGetProcAddress finds the calls that checkpoint a process for CUDA 12.8 and later only.

    Source: documentation of cuGetProcAddress; the CUDA 12.8 release notes. Seen on an H200.
    """
    need_checkpoints(cuda)
    for name in ("GetState", "GetRestoreThreadId", "Lock", "Checkpoint", "Restore", "Unlock"):
        function, _ = cuda.cuGetProcAddress(f"cuCheckpointProcess{name}".encode(), 12080, 0)
        assert function
        try:
            function, status = cuda.cuGetProcAddress(f"cuCheckpointProcess{name}".encode(), 12070, 0)
        except CudaError as error:
            assert error.code == 500
        else:
            assert not function and int(status) == 2
