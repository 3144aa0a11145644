"""Tests of SIGINT while a call of a Python program waits at the gate: exceptions, handlers, tracers and locks.

The tests run for each CPython from 3.8 on that is on the PATH with its headers.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

import pytest

from ..support import sanitizers
from .conftest import CudaClient, NativeHost, StartedClient
from .extension import built_extension, include_folder
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until

pytestmark = pytest.mark.skipif(
    sanitizers.KIND == "thread", reason="the sanitizer replaces Python's handler with its own"
)

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [version for version in (f"3.{minor}" for minor in range(8, 15)) if version != THIS]

SETUP = """
import sys, traceback
sys.path.insert(0, {folder!r})
import raising
cuda = Cuda()
error, array = cuda.alloc(4096)
assert error == 0
def check(error, *_):
    if error:
        raise RuntimeError("CUDA error %d" % error)
    return error
def memset(library):
    return library.cuMemsetD8_v2(c_uint64(array), c_int(1), c_size_t(4096))
pydll, checked = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
checked.cuMemsetD8_v2.errcheck = check
def attempt(call):
    entered = []
    try:
        try:
            call()
        except RuntimeError as error:
            entered.append("RuntimeError")
        except KeyboardInterrupt as error:
            entered.append("KeyboardInterrupt")
            entered.append(repr(error.__context__))
            raise
    except BaseException as error:
        entered.append(traceback.format_exc())
    return entered
def contents():
    data = (ctypes.c_char * 4096)()
    assert cuda.cuMemcpyDtoH_v2(data, c_uint64(array), c_size_t(4096)) == 0
    return data.raw[0], data.raw == data.raw[:1] * 4096
"""

CALLS = {
    "a library that raises": "raising.set(array, 1, 4096)",
    "a library that checks its errors later": "raising.set_all(array, 4096, 10)",
    "ctypes": "check(memset(cuda.library))",
    "ctypes, in one expression": "check(cuda.library.cuMemsetD8_v2(c_uint64(array), c_int(1), c_size_t(4096)))",
    "ctypes with the interpreter lock": "check(memset(pydll))",
    "ctypes with errcheck": "memset(checked)",
    "an iterator": "[each for each in map(lambda _: raising.set(array, 1, 4096), [1])]",
}


@pytest.fixture(params=[THIS, *OTHERS])
def python(request: pytest.FixtureRequest) -> str:
    if request.param == THIS:
        return sys.executable
    found = shutil.which(f"python{request.param}")
    include = include_folder(found) if found else None
    if not found or not include or not (include / "Python.h").exists():
        pytest.skip(f"no Python {request.param} with headers")
    if sanitizers.KIND:
        pytest.skip("one Python is enough for the sanitizers")
    return found


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator, python: str) -> StartedClient:
    include = include_folder(python)
    assert include
    client = machine.client(python)
    process = client.join(coordinator, SETUP.format(folder=str(built_extension(include).parent)))
    return client, process


def interrupt_when_waiting(client: CudaClient, process: ProcessConnection, count: int = 1) -> None:
    wait_until(lambda: process.page.report.waiting == count)
    os.kill(client.pid, signal.SIGINT)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_keyboard_interrupt_and_nothing_else(started: StartedClient, call: str) -> None:
    """No `except RuntimeError` runs, no exception is chained, and the program and its memory stay intact."""
    client, process = started
    for _ in range(3):
        client.start(f"attempt(lambda: {call})")
        interrupt_when_waiting(client, process)
        *entered, text = client.result()
        assert entered == ["KeyboardInterrupt", "None"]
        assert text.startswith("Traceback") and text.endswith("\nKeyboardInterrupt\n")
        assert "During handling" not in text and "RuntimeError" not in text
        assert text.count("in attempt") == 1
    assert client.run("sys.gettrace()") is None
    assert process.page.report.waiting == 0
    assert process.page.report.launches == 0
    process.open(1)
    assert client.run("raising.set(array, 7, 4096)") is None
    assert client.run("contents()") == [7, True]
    assert client.run(f"attempt(lambda: {call})") == []
    assert client.run("contents()") == [1, True]


def test_the_program_goes_on_after_its_except(client: CudaClient, process: ProcessConnection) -> None:
    """The program's `except KeyboardInterrupt` calls CUDA at once. That call waits for its turn."""
    client.run(
        """
def stopped():
    try:
        raising.set(array, 1, 4096)
    except KeyboardInterrupt:
        raising.set(array, 2, 4096)
        return contents()
"""
    )
    client.start("stopped()")
    interrupt_when_waiting(client, process)
    wait_until(lambda: process.page.report.gate_waits >= 1)
    wait_until(lambda: process.page.report.waiting == 1)
    process.open(1)
    assert client.result() == [2, True]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_wait_goes_on_after_a_handler_that_returns(started: StartedClient, call: str) -> None:
    """The shim makes the interrupted call when the turn comes, as Python does with its own calls."""
    client, process = started
    client.run("calls = []; signal.signal(signal.SIGINT, lambda *_: calls.append(1))")
    client.start(f"attempt(lambda: {call})")
    for _ in range(3):
        interrupt_when_waiting(client, process)
        assert client.is_running(0.05)
    process.open(1)
    assert client.result() == []
    assert client.run("len(calls)") in (1, 2, 3)  # signals that come together count as one
    assert client.run("contents()") == [1, True]


def test_a_handler_runs_while_the_call_waits(client: CudaClient, process: ProcessConnection) -> None:
    """The handler may use the device itself, and the program gets the handler's exception."""
    client.run(
        """
class Stop(Exception):
    pass
def handler(*_):
    raising.set(array, 5, 4096)
    calls.append(contents())
    raise Stop
calls = []
signal.signal(signal.SIGINT, handler)
def run():
    try:
        raising.set(array, 1, 4096)
    except Stop as error:
        return repr(error), repr(error.__context__)
"""
    )
    client.start("run()")
    interrupt_when_waiting(client, process)
    wait_until(lambda: process.page.report.waiting == 2)
    process.open(1)
    assert client.result() == ["Stop()", "None"]
    assert client.run("calls") == [[5, True]]


def test_a_handler_that_waits_can_be_interrupted(client: CudaClient, process: ProcessConnection) -> None:
    client.run(
        """
def handler(*_):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raising.set(array, 5, 4096)
signal.signal(signal.SIGINT, handler)
"""
    )
    client.start("attempt(lambda: raising.set(array, 1, 4096))")
    interrupt_when_waiting(client, process)
    interrupt_when_waiting(client, process, 2)
    *entered, text = client.result()
    assert entered == ["KeyboardInterrupt", "None"]
    assert "in handler" in text
    assert process.page.report.waiting == 0


TRACERS = {
    "a function": "def tracer(frame, event, argument):\n    events.append(event)\n    return tracer\n",
    "a method": """
class Tracer:
    def trace(self, frame, event, argument):
        events.append(event)
        return self.trace
tracer = Tracer().trace
""",
}
TRACED = """
events = []
def traced():
    entered = attempt(lambda: raising.set(array, 1, 4096))
    events.clear()
    sum([])
    assert events == ["line", "line"], events
    return entered
def run():
    sys.settrace(tracer)
    try:
        entered = traced()
        is_traced = sys.gettrace() == tracer
        events.clear()
        check(0)
        return entered, is_traced, list(events)
    finally:
        sys.settrace(None)
"""


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_a_debugger_stays(started: StartedClient, tracer: str) -> None:
    """The program's trace function is active afterwards, also in the frames that were running."""
    client, process = started
    client.run(TRACED + tracer)
    client.start("run()")
    interrupt_when_waiting(client, process)
    entered, is_traced, events = client.result()
    assert entered[:2] == ["KeyboardInterrupt", "None"]
    assert is_traced
    assert events == ["call", "line", "line", "return"]


def test_a_tracer_that_may_be_written_in_c_stays(client: CudaClient, process: ProcessConnection) -> None:
    """In this case, the program gets the library's exception first, and KeyboardInterrupt after it."""
    client.run(
        """
class Tracer:
    def __call__(self, frame, event, argument):
        return None
def run():
    sys.settrace(Tracer())
    try:
        return attempt(lambda: raising.set(array, 1, 4096))
    finally:
        sys.settrace(None)
"""
    )
    client.start("run()")
    interrupt_when_waiting(client, process)
    entered = client.result()
    assert "KeyboardInterrupt" in entered[-1]
    assert client.run("1 + 1") == 2


def test_a_profiler_stays(started: StartedClient) -> None:
    client, process = started
    client.run("import cProfile; profile = cProfile.Profile(); profile.enable()")
    client.start("attempt(lambda: raising.set(array, 1, 4096))")
    interrupt_when_waiting(client, process)
    assert client.result()[0] == "KeyboardInterrupt"
    client.run("profile.disable(); profile.create_stats()")
    assert "attempt" in client.run("[name for _, _, name in profile.stats]")


def test_interrupt_message_raises_keyboard_interrupt(client: CudaClient, process: ProcessConnection) -> None:
    """The coordinator interrupts in this way kernels whose `interrupt_mode` is `message`."""
    client.start("attempt(lambda: raising.set(array, 1, 4096))")
    wait_until(lambda: process.page.report.waiting == 1)
    process.page.interrupt()
    *entered, _ = client.result()
    assert entered == ["KeyboardInterrupt", "None"]


def test_another_thread_waits_for_a_library_s_lock(client: CudaClient, process: ProcessConnection) -> None:
    """That thread has the interpreter lock. The shim does not wait for it, so the call returns and no thread hangs."""
    reader, writer = os.pipe()
    client.run(f"descriptor = os.open('/proc/{os.getpid()}/fd/{writer}', os.O_WRONLY)")
    client.run(
        """
def wait():
    while not waits:
        time.sleep(0.001)
    raising.take_lock(descriptor)
waits = []
thread = in_thread(wait)
"""
    )
    client.start("attempt(lambda: waits.append(1) or raising.set_locked(array, 1, 4096))")
    wait_until(lambda: process.page.report.waiting == 1)
    assert os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    os.kill(client.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in client.result()[-1]
    assert client.run("thread.join(60) or thread.is_alive()") is False
    assert client.run("sys.gettrace()") is None
