"""Tests of SIGINT while a call waits at the gate, and of the shim's replacement of the SIGINT handler.

The program's own handler runs first, and then the call returns.
`test_shim_python.py` tests the exceptions of Python programs in detail.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from jupyter_gpushare.cli.inspection import read_page
from jupyter_gpushare.wire.page import CLOSING

from ..support import sanitizers
from .conftest import CudaClient, NativeHost
from .fake_coordinator import WAIT_SECONDS, ProcessConnection, scripted_coordinator, wait_until

OPERATING_SYSTEM = 304
ATTEMPTS = 20  # to make a call within 50 ms after a signal, on a busy machine
SET_C_HANDLER = "ctypes.CDLL(None).signal(2, ctypes.CDLL(None).abs)"


def interrupted(client: CudaClient) -> None:
    os.kill(client.pid, signal.SIGINT)
    assert client.raw()["error"] == "KeyboardInterrupt"


@pytest.mark.parametrize("installed", ["at start", "later", "for each cell"])
def test_keyboard_interrupt_every_time(client: CudaClient, process: ProcessConnection, installed: str) -> None:
    """Each of 24 signals raises KeyboardInterrupt, and the program goes on as before."""
    if installed == "later":
        client.run("signal.signal(signal.SIGINT, signal.default_int_handler)")
    for _ in range(24):
        if installed == "for each cell":  # as ipykernel does
            client.run("before = signal.signal(signal.SIGINT, signal.default_int_handler)")
        client.start("cuda.spin()")
        wait_until(lambda: process.page.report.waiting == 1)
        interrupted(client)
        assert process.page.report.waiting == 0
        if installed == "for each cell":
            client.run("signal.signal(signal.SIGINT, before)")
    client.begin(process, 1)
    process.drain(1)
    wait_until(lambda: process.page.report.launches > 0)
    assert process.page.report.launches == 1, "an interrupted call was made"


def test_interrupt_works_without_a_coordinator(machine: NativeHost) -> None:
    with scripted_coordinator(machine.socket) as coordinator:
        holder, client = machine.client(), machine.client()
        for each in (holder, client):
            each.join(coordinator)
    holder.run("assert cuda.hold() == 0")  # for at most a minute, so that the holder cannot drain
    for _ in range(5):
        client.start("cuda.spin()")
        wait_until(lambda: (page := read_page(client.pid)) and page["report"]["waiting"])
        interrupted(client)


def test_other_threads_go_on_waiting(client: CudaClient, process: ProcessConnection) -> None:
    client.run("codes = []; thread = in_thread(lambda: codes.append(cuda.make_current() or cuda.spin()))")
    wait_until(lambda: process.page.report.waiting == 1)
    client.start("cuda.spin()")
    wait_until(lambda: process.page.report.waiting == 2)
    interrupted(client)
    assert client.run("codes") == []
    assert process.page.report.waiting == 1
    process.wait_for_waiting_thread()
    assert process.is_silent()
    process.open(1)
    client.run("thread.join()")
    assert client.run("codes") == [0]


def test_a_signal_counts_just_before_the_wait_and_not_long_before(
    client: CudaClient, process: ProcessConnection
) -> None:
    client.run(SET_C_HANDLER)
    for epoch in range(1, ATTEMPTS + 1):
        client.start("os.kill(os.getpid(), signal.SIGINT) or cuda.spin()")
        if client.is_running(0.5):  # the call came too late after the signal
            process.open(epoch)
        if client.result() == OPERATING_SYSTEM:
            break
        process.drain(epoch)
    else:
        pytest.fail("no call came soon enough after its signal")
    process.close_gate(epoch)
    client.start("os.kill(os.getpid(), signal.SIGINT) or time.sleep(0.1) or cuda.spin()")
    wait_until(lambda: process.page.report.waiting == 1)
    assert client.is_running()
    process.open(epoch + 1)
    assert client.result() == 0


def test_the_error_does_not_stick(client: CudaClient, process: ProcessConnection) -> None:
    client.run(SET_C_HANDLER)
    client.start("[cuda.spin(), cuda.spin()]")
    wait_until(lambda: process.page.report.waiting == 1)
    os.kill(client.pid, signal.SIGINT)
    wait_until(lambda: process.page.report.gate_waits == 1)
    wait_until(lambda: process.page.report.waiting == 1)
    time.sleep(0.1)  # the second call waits although the interrupt is recent
    assert process.page.report.waiting == 1
    process.open(1)
    assert client.result() == [OPERATING_SYSTEM, 0]


HALF = """
word = cuda.alloc(4096)[1]
assert cuda.cuMemsetD32_v2(c_uint64(word), 0, c_size_t(1)) == 0
waiting, setting = cuda.stream(1), cuda.stream(1)
cuda.function("set_flag")
assert cuda.launch("wait_flag", word, 7, stream=waiting) == 0
"""
OTHER_HALF = "cuda.launch('set_flag', word, 7, stream=setting)"


def test_an_interrupt_spares_the_second_half_of_a_collective_operation(
    client: CudaClient, process: ProcessConnection
) -> None:
    """The turn ends between two launches, of which the first waits on the device for the second."""
    client.run(SET_C_HANDLER)
    for epoch in range(1, ATTEMPTS + 1):
        process.open(epoch)
        client.run(HALF)
        process.close_gate(epoch)
        wait_until(lambda: process.phase == CLOSING)
        client.start(f"os.kill(os.getpid(), signal.SIGINT) or [{OTHER_HALF}, cuda.spin()]")
        process.wait_until_left(epoch)
        if not client.is_running(0.5):
            break
        os.kill(client.pid, signal.SIGINT)  # the second call came too late after the first signal
        client.result()
    else:
        pytest.fail("no call came soon enough after its signal")
    # The interrupted program gets its error when nothing is unfinished.
    assert client.result() == [0, OPERATING_SYSTEM]


def test_keyboard_interrupt_after_the_second_half(client: CudaClient, process: ProcessConnection) -> None:
    process.open(1)
    client.run(HALF)
    process.close_gate(1)
    wait_until(lambda: process.phase == CLOSING)
    waits = process.page.report.gate_waits
    # A late signal interrupts the loop. A signal just before a sleep would be noticed after the sleep.
    client.start(f"({OTHER_HALF}, [time.sleep(0.01) for _ in range(6000)])")
    wait_until(lambda: process.page.report.waiting or process.page.report.gate_waits > waits)
    interrupted(client)
    process.wait_until_left(1)


def test_interrupt_message_wakes_the_call(client: CudaClient, process: ProcessConnection) -> None:
    """The coordinator uses this message for kernels whose `interrupt_mode` is `message`."""
    client.run(SET_C_HANDLER)
    client.start("cuda.spin()")
    wait_until(lambda: process.page.report.waiting == 1)
    process.page.interrupt()
    assert client.result() == OPERATING_SYSTEM
    client.start("cuda.spin()")
    wait_until(lambda: process.page.report.waiting == 1)
    assert client.is_running()
    process.open(1)
    assert client.result() == 0


def handler_bits(client: CudaClient) -> tuple[bool, bool]:
    """Return whether the client ignores SIGINT and whether it catches SIGINT, according to `/proc/PID/status`."""
    with open(f"/proc/{client.pid}/status") as status:
        fields = dict(line.split(":\t") for line in status if line.startswith("Sig"))
    bit = 1 << (signal.SIGINT - 1)
    return bool(int(fields["SigIgn"], 16) & bit), bool(int(fields["SigCgt"], 16) & bit)


def test_a_blocked_signal_stays_blocked(client: CudaClient, process: ProcessConnection) -> None:
    client.run("signal.pthread_sigmask(signal.SIG_BLOCK, [2])")
    client.start("cuda.spin()")
    process.wait_for_waiting_thread()
    os.kill(client.pid, signal.SIGINT)
    assert client.is_running()
    process.open(1)
    assert client.result() == 0
    client.start("signal.pthread_sigmask(signal.SIG_UNBLOCK, [2])")
    assert client.raw()["error"] == "KeyboardInterrupt"
    assert client.run("cuda.spin()") == 0


def test_default_and_ignored_stay_what_they_are(client: CudaClient, process: ProcessConnection) -> None:
    assert handler_bits(client) == (False, True)
    client.run("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert handler_bits(client) == (True, False)
    client.start("cuda.spin()")
    wait_until(lambda: process.page.report.waiting == 1)
    os.kill(client.pid, signal.SIGINT)
    assert client.is_running(0.3)
    process.open(1)
    assert client.result() == 0
    client.run("signal.signal(signal.SIGINT, signal.SIG_DFL)")
    assert handler_bits(client) == (False, False)
    os.kill(client.pid, signal.SIGINT)
    assert client.process.wait(WAIT_SECONDS) == -signal.SIGINT


@pytest.mark.skipif(sanitizers.KIND == "thread", reason="the sanitizer installs a handler of its own")
def test_the_program_sees_its_own_handler(client: CudaClient) -> None:
    """sigaction and signal return the handler and flags that the program has set, and change them as usual."""
    client.run(
        """
class Action(ctypes.Structure):
    _fields_ = [("handler", c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", c_int), ("restorer", c_void_p)]
libc = ctypes.CDLL(None)
libc.signal.restype = c_void_p
def present():
    action = Action()
    assert libc.sigaction(2, None, byref(action)) == 0
    return action.handler, action.flags & 0x50000004
calls = []
Handler = ctypes.CFUNCTYPE(None, c_int)
mine = Handler(lambda number: calls.append(number))
mine_address = ctypes.cast(mine, c_void_p).value
"""
    )
    pythons = client.run("present()[0]")
    assert client.run("libc.signal(2, mine)") == pythons
    assert client.run("present()") == [client.run("mine_address"), 0x10000000]
    client.run("os.kill(os.getpid(), 2)")
    assert client.run("calls") == [2]
    client.run("action = Action(handler=mine_address, flags=0x40000000)")
    assert client.run("libc.sigaction(2, byref(action), None)") == 0
    assert client.run("present()[1]") == 0x40000000
    assert client.run("libc.siginterrupt(2, 0)") == 0
    client.run("os.kill(os.getpid(), 2)")
    assert client.run("calls") == [2, 2]
    assert client.run("libc.signal(2, c_void_p(1))") == client.run("mine_address")
    assert client.run("present()[0]") == 1
