"""Facts about events and memory that processes share by handles, and about forked processes (see test_facts.py)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from .harness import MIB, NON_BLOCKING, Cuda, environment, on_driver, running_process
from .test_facts import run
from .vmm import free_bytes

SIZE = 256 * MIB


def waiter(cuda: Cuda, text: str) -> None:
    handle = cuda.driver.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    event = cuda.cuIpcOpenEventHandle(handle)
    assert cuda.code("cuEventQuery", event) == 600
    stream = cuda.cuStreamCreate(NON_BLOCKING)
    cuda.cuStreamWaitEvent(stream, event, 0)
    assert not cuda.is_done(stream)
    print("waits", flush=True)
    cuda.cuStreamSynchronize(stream)
    cuda.cuEventSynchronize(event)
    cuda.cuEventDestroy(event)


def recorder(cuda: Cuda, state: str) -> None:
    assert cuda.code("cuEventCreate", 4) == 1  # interprocess events have no times
    event, plain = cuda.cuEventCreate(4 | 2), cuda.cuEventCreate(2)
    assert cuda.code("cuIpcGetEventHandle", plain) == 400
    word, flag = cuda.host_flag()
    cuda.launch("wait_flag", flag, 1)
    cuda.cuEventRecord(event, 0)
    text = ctypes.string_at(cuda.cuIpcGetEventHandle(event).getPtr(), 64).hex()
    with running_process(waiter, environment(Path(state)), text) as other:
        assert other.stdout is not None and other.stdout.readline() == "waits\n"
        word.value = 1
        assert other.wait(timeout=60) == 0


def test_another_process_waits_for_an_interprocess_event(tmp_path: Path) -> None:
    """A process that opens the handle of an event waits for the work of the process that recorded it.

    Source: documentation of cuIpcGetEventHandle and cuIpcOpenEventHandle. Seen on an H200.
    """
    state = str(tmp_path / "state")
    with running_process(recorder, environment(Path(state)), state) as process:
        assert process.wait(timeout=90) == 0


def opener(cuda: Cuda, text: str) -> None:
    handle = cuda.driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    free = free_bytes(cuda)
    memory = cuda.cuIpcOpenMemHandle(handle, 1)
    assert free_bytes(cuda) > free - SIZE // 2  # the same memory, not more
    assert int(cuda.cuIpcOpenMemHandle(handle, 1)) == int(memory)
    assert cuda.read_f32(memory, 3) == 1.0
    cuda.launch("fill_f32", memory, 2.0, 16)
    cuda.cuCtxSynchronize()
    assert cuda.code("cuMemFree", memory) != 0
    cuda.cuIpcCloseMemHandle(memory)
    cuda.cuIpcCloseMemHandle(memory)
    assert cuda.code("cuIpcCloseMemHandle", memory) != 0


def sharer(cuda: Cuda, state: str) -> None:
    memory = cuda.cuMemAlloc(SIZE)
    cuda.launch("fill_f32", memory, 1.0, 16)
    cuda.cuCtxSynchronize()
    handle = cuda.cuIpcGetMemHandle(memory)
    assert cuda.code("cuIpcOpenMemHandle", handle, 1) != 0  # the exporting process cannot open its own handle
    free = free_bytes(cuda)
    with running_process(opener, environment(Path(state)), ctypes.string_at(handle.getPtr(), 64).hex()) as other:
        assert other.wait(timeout=60) == 0
    assert cuda.read_f32(memory, 3) == 2.0
    assert free_bytes(cuda) > free - SIZE // 2
    cuda.cuMemFree(memory)
    assert free_bytes(cuda) > free + SIZE // 2


def test_ordinary_memory_is_shared_by_its_handle(tmp_path: Path) -> None:
    """Another process opens the handle and has the same memory, counted once; opening it again gives the same address;
    the process that made the handle can't open it.

    Source: documentation of cuIpcOpenMemHandle. Seen on an H200.
    """
    run(sharer, tmp_path)


@on_driver()
def test_a_forked_child_may_not_use_the_driver(cuda: Cuda) -> None:
    """In a child forked after cuInit every call fails with 3; the parent goes on.

    Source: CUDA programming guide ("fork … undefined" for the parent's resources); frameworks report error 3.
    Seen on an H200.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0 if cuda.code("cuMemAlloc", 4096) == 3 and cuda.code("cuCtxSynchronize") == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    cuda.cuCtxSynchronize()
