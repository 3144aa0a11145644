"""Tests of children of a CUDA process: the parent goes on, and a child belongs to the right client or to none."""

from __future__ import annotations

import os
import signal

import pytest

from .system_host import MOST, SystemHost, stop_all, wait_until

FORK = """
child = os.fork()
if child == 0:
    try:
        {does}
        os._exit(7)
    finally:
        os._exit(1)
status = os.waitpid(child, 0)[1]
"""


@pytest.mark.parametrize(
    "does",
    [
        "pass",
        "import subprocess; subprocess.run(['true'], check=True)",
        "import multiprocessing; process = multiprocessing.get_context('fork').Process(target=len, args=([],));"
        " process.start(); process.join()",
        "assert cuda.spin(1) == 3 and cuda.cuInit(0) == 3",  # CUDA_ERROR_NOT_INITIALIZED, as without sharing
    ],
    ids=["nothing", "subprocess", "multiprocessing", "CUDA"],
)
def test_forked_child_without_cuda_leaves_the_parent_working(short_quantum_host: SystemHost, does: str) -> None:
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy()
    other.busy()
    one.run("check(cuda.spin(1))")
    for _ in range(3):
        one.run(FORK.format(does=does))
        assert one.run("os.WEXITSTATUS(status)") == 7
    assert {name: len(client["processes"]) for name, client in short_quantum_host.clients().items()} == {
        "one": 1,
        "other": 1,
    }
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0


def test_a_child_that_outlives_its_parent_keeps_neither_turn_nor_connection(fcfs_host: SystemHost) -> None:
    """The next client runs when the parent is killed."""
    one, other = (fcfs_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy()
    other.start_busy()
    wait_until(lambda: fcfs_host.phase("other") == "waiting")
    child = one.run("child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)") or one.run("child")
    one.process.kill()
    one.process.wait()
    try:
        other.result()
        other.stop()
    finally:
        os.kill(child, signal.SIGKILL)


def test_spawned_workers_share_their_parent_s_turn(short_quantum_host: SystemHost) -> None:
    """Workers, such as data loaders that use the device, are processes of the same client."""
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    other.busy()
    one.busy()
    one.run(
        "import subprocess; worker = subprocess.Popen("
        "[sys.executable, *sys.argv], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)"
    )
    one.run("worker.stdin.write(json.dumps('cuda = Cuda(); busy = Busy(cuda)') + chr(10)); worker.stdin.flush()")
    worker = one.run("worker.pid")
    wait_until(lambda: len(short_quantum_host.clients()["one"]["processes"]) == 2)
    wait_until(lambda: len(short_quantum_host.launches(worker)) > 20)
    one.run("worker.kill(); worker.wait()")
    wait_until(lambda: len(short_quantum_host.clients()["one"]["processes"]) == 1)
    stop_all(one, other)
    assert short_quantum_host.overlap([one, worker], [other]) == 0
