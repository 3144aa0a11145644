"""Children of a CUDA process: whatever they do, the parent goes on, and they are nobody's client by mistake."""

from __future__ import annotations

import os
import signal

import pytest

from .host import Host, eventually, stop_all

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
def test_a_forked_child(quick: Host, does: str) -> None:
    one, other = quick.program("one"), quick.program("other")
    one.busy()
    other.busy()
    one.run("check(cuda.spin(1))")
    for _ in range(3):
        one.run(FORK.format(does=does))
        assert one.run("os.WEXITSTATUS(status)") == 7
    assert {name: len(client["processes"]) for name, client in quick.clients().items()} == {"one": 1, "other": 1}
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0


def test_a_child_that_outlives_its_parent_holds_nothing(patient: Host) -> None:
    """Neither the turn nor the connection: the next runs when the parent is killed."""
    one, other = patient.program("one"), patient.program("other")
    one.busy()
    other.start_busy()
    eventually(lambda: patient.phase("other") == "waiting")
    child = one.run("child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)") or one.run("child")
    one.process.kill()
    one.process.wait()
    try:
        other.result(2)
        other.stop()
    finally:
        os.kill(child, signal.SIGKILL)


def test_spawned_workers_share_their_parent_s_turn(quick: Host) -> None:
    """As data loaders that use the device: processes of the same client, told apart from the neighbour."""
    one, other = quick.program("one"), quick.program("other")
    other.busy()
    one.busy()
    one.run(
        "import subprocess; worker = subprocess.Popen("
        "[sys.executable, *sys.argv], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)"
    )
    one.run("worker.stdin.write(json.dumps('cuda = Cuda(); busy = Busy(cuda)') + chr(10)); worker.stdin.flush()")
    worker = one.run("worker.pid")
    eventually(lambda: len(quick.clients()["one"]["processes"]) == 2)
    eventually(lambda: len(quick.executions(worker)) > 20)
    one.run("worker.kill(); worker.wait()")
    eventually(lambda: len(quick.clients()["one"]["processes"]) == 1)
    stop_all(one, other)
    assert quick.overlap([one, worker], [other]) == 0
