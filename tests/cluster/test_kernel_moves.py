"""Tests of the part of a node in the move of a kernel, with a node agent and real processes."""

from __future__ import annotations

import array
import asyncio
import base64
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import termios
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cluster import kernel_records, node_connection
from jupyter_gpushare.cluster.channel.messages import (
    AwaitMove,
    AwaitVariables,
    Forget,
    Move,
    NodeError,
    PutVariables,
    Request,
    Running,
    SetMove,
    Signal,
    Start,
    TakeVariables,
)
from jupyter_gpushare.cluster.kernel_move import KernelMove
from jupyter_gpushare.cluster.kernel_records import KernelRecord
from jupyter_gpushare.cluster.node import keeper
from jupyter_gpushare.cluster.node.kernel_folder import KernelFolder
from jupyter_gpushare.cluster.remote_kernel import RemoteKernel

from ..support.polling import wait_until
from .conftest import WAIT, Node, start_request
from .test_broken_starts import clients

FIRST, SECOND = "0" * 16, "1" * 16


def fails(node: Node, request: Request, message: str) -> None:
    with pytest.raises(NodeError, match=message):
        node.request(request)


def put(move: str = FIRST, offset: int = 0, data: bytes = b"variables") -> PutVariables:
    return PutVariables(kernel="k1", move=move, offset=offset, data=data)


def set_move(state: Any, move: str = FIRST, reason: str = "") -> SetMove:
    return SetMove(kernel="k1", move=move, state=state, reason=reason)


def folder() -> Path:
    return KernelFolder("k1").path


def ask(move: str = FIRST) -> None:
    """Ask for a move as the kernel does, and ring."""
    write_request(move)
    (folder() / "doorbell").write_text("!")


def write_request(move: str = FIRST) -> None:
    (folder() / f"variables-{move}").write_bytes(b"variables")
    keeper.write_file(str(folder() / f"move-{move}"), {"id": move, "node": "n2", "size": 9})


def test_a_kernel_asks_for_a_move_also_by_a_new_agent(node: Node) -> None:
    node.request(start_request())
    asked: Future[Any] = node.connection.request(AwaitMove(kernel="k1"))
    node.request(Running())  # so that the agent waits
    wait_until((folder() / "doorbell").exists)
    ask()
    found = {"id": FIRST, "node": "n2", "size": 9, "is_locked": False}
    assert asked.result(WAIT) == found
    node.kill_agent()
    assert node.request(AwaitMove(kernel="k1")) == found
    take = TakeVariables(kernel="k1", move=FIRST, offset=4, max_bytes=3)
    assert node.request(take) == {"data": "YWJs"}
    node.request(set_move("locked"))
    node.request(set_move("locked"))  # a request that is sent again
    assert node.request(AwaitMove(kernel="k1")) == {**found, "is_locked": True}
    assert node.request(set_move("refused", move="", reason="no room")) == [{**found, "is_locked": True}]
    assert json.loads((folder() / f"answer-{FIRST}").read_text()) == {"state": "refused", "reason": "no room"}
    assert not list(folder().glob("locked-*"))
    assert node.request(set_move("refused", move="")) == []


@pytest.mark.parametrize("has_doorbell", [True, False])
def test_a_request_without_a_ring_is_found(node: Node, has_doorbell: bool) -> None:
    node.request(start_request())
    if not has_doorbell:
        (folder() / "doorbell").mkdir()  # in place of a FIFO that the file system cannot make
    asked: Future[Any] = node.connection.request(AwaitMove(kernel="k1"))
    node.request(Running())  # so that the agent waits
    write_request()
    assert asked.result(WAIT)["id"] == FIRST


def test_a_refusal_arrives_once_the_node_can_write(node: Node) -> None:
    """The folder in place of a file has the effect of a full disk."""
    node.request(start_request())
    write_request()
    in_the_way = folder() / f"answer-{FIRST}.new"
    in_the_way.mkdir()
    RemoteKernel("k1", lambda: node.connection).refuse_move(FIRST, "no room")
    wait_until(lambda: not (folder() / f"variables-{FIRST}").exists())
    in_the_way.rmdir()
    wait_until((folder() / f"answer-{FIRST}").exists)
    assert json.loads((folder() / f"answer-{FIRST}").read_text()) == {"state": "refused", "reason": "no room"}


def test_a_withdrawn_move_cannot_go_on(node: Node) -> None:
    node.request(start_request())
    node.connection.request(AwaitMove(kernel="k1"))
    wait_until((folder() / "doorbell").exists)
    ask()
    (folder() / f"move-{FIRST}").unlink()
    fails(node, TakeVariables(kernel="k1", move=FIRST, offset=0, max_bytes=3), "has withdrawn the move")
    fails(node, set_move("locked"), "has withdrawn the move")


def test_the_wait_for_a_move_ends_with_the_kernel(node: Node) -> None:
    node.request(start_request(argv=[sys.executable, "-c", ""]))
    assert node.request(AwaitMove(kernel="k1")) is None


def test_a_node_that_has_the_kernel_already_changes_nothing(node: Node) -> None:
    """Two names of one node, for example."""
    pid = node.request(start_request())["pid"]
    ask_files = folder() / f"variables-{FIRST}"
    ask_files.write_bytes(b"own")
    fails(node, put(), "the kernel k1 runs there already")
    for state in ("withdrawn", "confirmed"):
        if state == "confirmed":
            fails(node, set_move(state), "has ended before the move")
        else:
            node.request(set_move(state))
    assert ask_files.read_bytes() == b"own" and keeper.start_ticks(pid)


def test_variables_of_a_kernel_that_does_not_start_are_removed(node: Node) -> None:
    node.request(put(data=b"vari"))
    node.request(put(offset=4, data=b"ables"))
    assert (folder() / f"variables-{FIRST}").read_bytes() == b"variables"
    node.request(set_move("withdrawn", SECOND))
    assert folder().exists()
    node.request(set_move("withdrawn"))
    assert not folder().exists()
    node.request(put())
    fails(node, start_request(move=FIRST, folder="/nosuch"), "the node has no folder /nosuch")
    assert not folder().exists()


def test_a_part_after_a_missing_one_is_refused(node: Node) -> None:
    node.request(put(data=b"vari"))
    node.request(put(offset=4, data=b"ab"))
    node.request(put(offset=4, data=b"ables"))  # a request that is sent again
    assert (folder() / f"variables-{FIRST}").read_bytes() == b"variables"
    fails(node, put(offset=20), "the variables are incomplete")
    node.request(set_move("withdrawn"))
    fails(node, put(offset=9), "the variables are incomplete")
    assert not folder().exists()


def test_a_withdrawal_removes_no_part_of_a_later_move(node: Node) -> None:
    """Requests about one kernel take effect in the order in which the server sends them."""
    for _ in range(20):
        node.request(put())
        later = [set_move("withdrawn"), put(SECOND, data=b"vari"), put(SECOND, 4, b"ables")]
        for answer in [node.connection.request(request) for request in later]:
            answer.result(WAIT)
        assert (folder() / f"variables-{SECOND}").read_bytes() == b"variables"
        node.request(set_move("withdrawn", SECOND))


def test_a_folder_of_another_program_does_not_hinder_a_start(node: Node) -> None:
    (folder() / "other-program").mkdir(parents=True)
    (folder() / f"variables-{FIRST}").touch()
    assert node.request(start_request())["pid"]
    assert [path.name for path in folder().glob("*-*")] == ["other-program"]


def test_a_withdrawn_move_ends_its_own_kernel_only(node: Node) -> None:
    node.request(put())
    pid = node.request(start_request(move=FIRST))["pid"]
    node.request(set_move("withdrawn", SECOND))
    assert keeper.start_ticks(pid) and "k1" in clients(node)
    node.request(set_move("withdrawn"))
    wait_until(lambda: not keeper.start_ticks(pid))
    assert not folder().exists() and "k1" not in clients(node)


def test_a_later_move_replaces_the_kernel_of_a_move_without_a_server(node: Node) -> None:
    node.request(put())
    pid = node.request(start_request(move=FIRST))["pid"]
    node.request(put(SECOND))
    wait_until(lambda: not keeper.start_ticks(pid))
    pid = node.request(start_request(move=SECOND))["pid"]
    node.request(set_move("confirmed", SECOND))
    node.request(set_move("confirmed", SECOND))  # a request that is sent again
    fails(node, put(FIRST), "runs there already")
    assert keeper.start_ticks(pid)


def test_the_end_of_a_kernel_that_loads_is_reported(node: Node) -> None:
    node.request(put())
    node.request(start_request(move=FIRST, argv=[sys.executable, "-c", "import sys; sys.exit('no memory')"]))
    question = AwaitVariables(kernel="k1", move=FIRST)
    wait_until(lambda: KernelFolder("k1").ended())
    fails(node, question, "the kernel has ended with status 1 while it loaded the variables: no memory")
    fails(node, set_move("confirmed"), "has ended before the move")
    node.request(Forget(kernel="k1"))


def test_only_a_confirmed_kernel_lives_long_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "UNCONFIRMED_SECONDS", 0.05)
    monkeypatch.setattr(keeper, "MAX_CHECK_SECONDS", 0.01)
    (tmp_path / "output").touch()
    kernel = subprocess.Popen(["sleep", "600"], start_new_session=True)
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(keeper.keep(kernel, str(tmp_path), 0.0, [])))
    thread.start()
    (tmp_path / keeper.UNCONFIRMED).touch()
    thread.join(WAIT)
    assert reasons == ["orphan"] and kernel.returncode == -15


class Saved(RemoteKernel):
    """Kernel of a move with variables at hand, which accepts all requests and never ends."""

    def adopt(self) -> None:
        pass

    def request(self, message: Request) -> Future[Any]:
        answer: Future[Any] = Future()
        if isinstance(message, TakeVariables):
            answer.set_result({"data": base64.b64encode(bytes(message.max_bytes)).decode()})
        elif isinstance(message, Start):
            answer.set_result({"kernel": "k1", "pid": 1, "ports": {}})
        elif isinstance(message, AwaitVariables):
            answer.set_result({"number": 0, "failed": {}, "error": ""})
        else:
            answer.set_result([])
        return answer


def test_simultaneous_moves_leave_room_for_an_interrupt(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node agent that hangs reads nothing, so its pipe becomes full."""
    connection = node.connection
    assert node.request(Running()) == []
    monkeypatch.setattr(node_connection, "_NODE_SILENCE_SECONDS", 2 * WAIT)
    os.killpg(connection.process.pid, signal.SIGSTOP)
    for number in range(4):
        move = Move(id=str(number) * 16, node="n2", size=1 << 30)
        old, new = (kind(f"k{number}", lambda: connection) for kind in (Saved, RemoteKernel))
        functions: Any = dict.fromkeys(("request", "record", "is_ending", "switched"), lambda: None)
        KernelMove(move, old, new, **functions, seconds=WAIT, log=logging.getLogger()).begin()
    size = array.array("i", [0])

    def is_full() -> bool:
        fcntl.ioctl(connection.process.stdin, termios.FIONREAD, size)  # type: ignore[arg-type]
        return size[0] >= 2 * connection.part_bytes

    with ThreadPoolExecutor() as executor:
        try:
            wait_until(is_full, WAIT)
            answer = executor.submit(connection.request, Signal(kernel="k1", number=signal.SIGINT))
            assert not answer.result(WAIT / 2).done()
        finally:
            os.killpg(connection.process.pid, signal.SIGKILL)


def test_a_move_that_gets_no_turn_in_time_is_refused(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    connection = node.connection
    while connection.part_turns.acquire(blocking=False):
        pass
    old, new = (kind("k1", lambda: connection) for kind in (Saved, RemoteKernel))
    functions: Any = dict.fromkeys(("request", "record", "is_ending", "switched"), lambda: None)
    move = Move(id=FIRST, node="n2", size=1)
    KernelMove(move, old, new, **functions, seconds=0.5, log=logging.getLogger()).begin()
    sentence = "the variables have not arrived within 0.5 s (c.GpuShareCluster.start_timeout)"
    wait_until(lambda: f"kernel k1 does not move to n2: {sentence}" in caplog.text, WAIT)


def test_a_move_that_ends_after_its_server_counts(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next server adopts the new kernel by the record."""
    loop = asyncio.new_event_loop()
    switched = threading.Event()

    def restart() -> None:
        switched.set()
        loop.call_soon_threadsafe(print)

    loop.close()
    old, new = (Saved("k1", lambda: None) for _ in range(2))  # type: ignore[arg-type,return-value]
    made = start_request()
    record = KernelRecord(
        kernel="k1",
        kernel_name="remote",
        node="n2",
        pid=1,
        connection=made.connection,
        client="k1",
        token="0" * 32,
        quota="",
        session="",
    )
    move = KernelMove(
        Move(id=FIRST, node="n2", size=0),
        old,
        new,
        request=lambda: made,
        record=lambda *_: record,
        is_ending=lambda: False,
        switched=restart,
        seconds=WAIT,
        log=logging.getLogger(),
    )
    move.begin()
    assert switched.wait(WAIT)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpushare-move-n2"])
    assert kernel_records.load("k1") == record and not caplog.records
