"""Tests of the map of devices with which the simulated driver restores a process."""

from __future__ import annotations

import pytest

from ..support.polling import wait_until
from .checkpoints import (
    CONTEXT,
    INVALID_VALUE,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    SENDER,
    USER,
    WATCHER,
    checkpoint,
    start_program,
)
from .conftest import CudaClient, NativeHost

MIB = 1 << 20


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


def test_a_process_is_restored_on_the_device_of_the_map(
    user: CudaClient, sender: CudaClient, watcher: CudaClient
) -> None:
    free = [watcher.run(f"free({device})") for device in (0, 1)]
    first, second = (user.run(f"uuid({device})") for device in (0, 1))
    checkpoint(sender, user.pid)
    assert watcher.run("free(0)") == free[0] + 100 + CONTEXT
    assert sender.run(f"restore({user.pid}, {[first, second]!r})") == 0
    assert sender.run(f"requests({user.pid}, 'Unlock')") == [0]
    assert [watcher.run(f"free({device})") for device in (0, 1)] == [free[0] + 100 + CONTEXT, free[1] - 100 - CONTEXT]
    assert user.run("number(memory)") == 3.0
    assert user.run("[uuid(0), uuid(1)]") == [second, first]
    assert user.run("cuda.info()[1]") == 256 * MIB
    assert user.run("cuda.launch('fill_f32', memory, 4.0, 1 << 16)") == 0
    assert user.run("number(memory)") == 4.0
    user.end()
    wait_until(lambda: watcher.run("free(1)") == free[1])


def test_a_process_returns_to_its_first_device(user: CudaClient, sender: CudaClient, watcher: CudaClient) -> None:
    free = watcher.run("[free(0), free(1)]")
    first, second = user.run("[uuid(0), uuid(1)]")
    for old, new in ((first, second), (second, first)):
        checkpoint(sender, user.pid)
        assert sender.run(f"restore({user.pid}, {[old, new]!r})") == 0
        assert sender.run(f"requests({user.pid}, 'Unlock')") == [0]
    assert watcher.run("[free(0), free(1)]") == free
    assert user.run("[uuid(0), uuid(1)]") == [first, second]
    assert user.run("number(memory)") == 3.0


def test_a_map_exchanges_two_devices(user: CudaClient, sender: CudaClient, watcher: CudaClient) -> None:
    user.run(
        "context, own = c_void_p(), cuda.context\n"
        "assert cuda.cuDevicePrimaryCtxRetain(byref(context), 1) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "there = cuda.alloc(10 << 20)[1]\n"
        "assert cuda.cuMemsetD32_v2(c_uint64(there), c_uint32(0x40a00000), c_size_t(100)) == 0\n"
        "assert cuda.cuCtxSetCurrent(own) == 0\n"
    )
    free = watcher.run("[free(0), free(1)]")
    first, second = user.run("[uuid(0), uuid(1)]")
    checkpoint(sender, user.pid)
    assert sender.run(f"restore({user.pid}, {[first, second]!r})") == INVALID_VALUE, "the second device has no pair"
    assert sender.run(f"restore({user.pid}, {[first, second]!r}, {[second, first]!r})") == 0
    assert sender.run(f"requests({user.pid}, 'Unlock')") == [0]
    assert watcher.run("[free(0), free(1)]") == [free[0] + 90, free[1] - 90]
    assert user.run("[number(memory), number(there)]") == [3.0, 5.0]


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(0, 2)], "another type"),
        ([(1, 0)], "no pair of the checkpointed device"),
        ([(0, 1), (0, 3)], "two pairs of one device"),
        ([(0, 3), (1, 3)], "two pairs onto one device"),
        ([(0, None)], "no device"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(
    user: CudaClient, sender: CudaClient, pairs: list[tuple[int, int | None]], reason: str
) -> None:
    uuids = {None: "00" * 16} | {device: user.run(f"uuid({device})") for device in range(4)}
    checkpoint(sender, user.pid)
    text = ", ".join(repr([uuids[old], uuids[new]]) for old, new in pairs)
    assert sender.run(f"restore({user.pid}, {text})") == INVALID_VALUE, reason
    assert sender.run(f"state({user.pid})") == "CHECKPOINTED"
    assert sender.run(f"requests({user.pid}, 'Restore', 'Unlock')") == [0, 0]
    assert user.run("number(memory)") == 3.0


def test_a_restore_needs_room_on_the_new_device(user: CudaClient, sender: CudaClient, watcher: CudaClient) -> None:
    first, second = user.run("[uuid(0), uuid(1)]")
    watcher.run(
        "assert cuda.cuDevicePrimaryCtxRetain(byref(cuda.context), 1) == 0\n"
        "assert cuda.cuCtxSetCurrent(cuda.context) == 0\n"
        "status, filled = cuda.alloc(180 << 20)\n"
    )
    checkpoint(sender, user.pid)
    free = watcher.run("[free(0), free(1)]")
    assert sender.run(f"restore({user.pid}, {[first, second]!r})") == OUT_OF_MEMORY
    assert watcher.run("[free(0), free(1)]") == free
    assert watcher.run("cuda.free(filled)") == 0
    assert sender.run(f"restore({user.pid}, {[first, second]!r})") == OPERATING_SYSTEM
