"""Tests of a budget of blocks with an exemption for functions with short launches."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .conftest import CudaClient, StartedClient

MS = 1_000_000
# Exempt milliseconds for tests without long launches: a busy machine delays no launch by so much.
AMPLE = 10_000
RATE = 40  # blocks per second; launches here have one

QUEUE = """
def queue(count, milliseconds, name="spin", wait=True):
    for _ in range(count):
        if name == "spin":
            assert cuda.spin(milliseconds) == 0
        else:
            assert cuda.launch("fill_f32", array, 1.0, 1000) == 0
        if wait:
            assert cuda.cuCtxSynchronize() == 0
array = cuda.alloc(4096)[1]
"""


def set_budget(process: Any, exempt: float) -> None:
    """Set a budget that does not count launches of less than `exempt` milliseconds, and permit a turn."""
    process.page.control.exempt_ns = int(exempt * MS)
    process.page.control.budget_rate = RATE
    process.open(1)


def seconds(client: CudaClient, code: str) -> float:
    start = time.monotonic()
    client.run(code)
    return time.monotonic() - start


def throttle_waits(queueing: StartedClient, code: str) -> int:
    """Run `code`, and return how many of its calls the throttle has held back."""
    client, process = queueing
    before = process.page.report.throttle_waits
    client.run(code)
    return int(process.page.report.throttle_waits - before)


@pytest.fixture
def queueing(started: StartedClient) -> StartedClient:
    started[0].run(QUEUE)
    return started


def test_short_launches_pass_freely(queueing: StartedClient) -> None:
    client, process = queueing
    set_budget(process, AMPLE)
    client.run("queue(8, 0.2)")  # until the shim has measured the duration
    assert throttle_waits(queueing, "queue(200, 0.2)") == 0


def test_long_launches_are_limited_and_short_ones_use_no_budget(queueing: StartedClient) -> None:
    """The exemption is far from the durations of both, because a busy machine delays launches."""
    client, process = queueing
    set_budget(process, 100)
    process.page.control.budget_rate = 4  # below the rate at which the device ends long launches
    client.run("queue(8, 0, 'fill'); queue(3, 150)")
    start = time.monotonic()
    waits = throttle_waits(queueing, "[(queue(20, 0, 'fill'), queue(1, 150)) for _ in range(8)]")
    assert time.monotonic() - start > 8 / 4 * 0.8
    assert 0 < waits <= 8, "a call of a short launch was held back"


@pytest.mark.parametrize("exempt", [0, 0.2])
def test_no_launch_is_exempt_by_default(queueing: StartedClient, exempt: float) -> None:
    client, process = queueing
    set_budget(process, exempt)
    client.run("queue(8, 1)")
    assert seconds(client, "queue(20, 1)") > 20 / RATE * 0.8


def test_a_function_that_becomes_long_is_limited_again(queueing: StartedClient) -> None:
    client, process = queueing
    set_budget(process, AMPLE)
    client.run("queue(20, 0.1)")
    assert throttle_waits(queueing, "queue(20, 0.1)") == 0
    client.run("queue(60, 10)")  # the shim measures some of them
    process.page.control.exempt_ns = 4 * MS
    waits = process.page.report.throttle_waits
    assert seconds(client, "queue(20, 10)") > 20 / RATE * 0.8
    assert process.page.report.throttle_waits > waits


def test_more_functions_than_the_shim_can_record(queueing: StartedClient) -> None:
    """The function of each module is another function. The shim keeps the records of the functions in use."""
    client, process = queueing
    set_budget(process, AMPLE)
    client.run(
        "from pathlib import Path\n"
        "def another():\n"
        "    module, function = c_void_p(), c_void_p()\n"
        "    cuda.cuModuleLoadData(byref(module), Path(os.environ['TEST_PTX']).read_bytes())\n"
        "    cuda.cuModuleGetFunction(byref(function), module, b'spin')\n"
        "    return function\n"
        "spin = cuda.function('spin')\n"
    )
    for _ in range(300 // 30):
        client.run("for _ in range(30): cuda.functions['spin'] = another(); cuda.spin(0.01)")
    client.run("cuda.functions['spin'] = spin; queue(8, 0.2)")
    assert throttle_waits(queueing, "queue(100, 0.2)") == 0


def test_measuring_leaves_a_capture_unchanged(queueing: StartedClient) -> None:
    client, process = queueing
    set_budget(process, 5)
    client.run("stream = cuda.stream(1); graph, runs = c_void_p(), c_void_p(); queue(2, 0.1)")
    assert client.run("cuda.cuStreamBeginCapture_v2(c_void_p(stream), 0)") == 0
    assert client.run("[cuda.spin(0.1, stream) for _ in range(3)]") == [0] * 3
    assert client.run("cuda.cuStreamEndCapture(c_void_p(stream), byref(graph))") == 0
    client.run("count = c_size_t(); cuda.cuGraphGetNodes(graph, None, byref(count))")
    assert client.run("count.value") == 3


def test_functions_end_with_their_context(queueing: StartedClient) -> None:
    client, process = queueing
    set_budget(process, AMPLE)
    client.run("queue(20, 0.2)")
    assert client.run("cuda.cuDevicePrimaryCtxReset_v2(0)") == 0
    client.run("cuda.functions.clear(); cuda.start()")
    client.run("queue(8, 0.2)")
    assert throttle_waits(queueing, "queue(100, 0.2)") == 0


def test_threads_and_streams(queueing: StartedClient) -> None:
    client, process = queueing
    set_budget(process, AMPLE)
    client.run(
        "def work():\n"
        "    cuda.make_current(); stream = cuda.stream(1)\n"
        "    for _ in range(100): assert cuda.spin(0.05, stream) == 0\n"
        "    done.append(cuda.cuStreamSynchronize(c_void_p(stream)))\n"
        "done = []; queue(8, 0.05)\n"
    )
    work = "threads = [in_thread(work) for _ in range(4)]; [t.join() for t in threads]"
    assert throttle_waits(queueing, work) == 0
    assert client.run("done") == [0] * 4
