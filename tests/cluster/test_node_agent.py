"""Tests of the node agent and the keeper, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from jupyter_gpushare.cluster.channel.messages import (
    NO_COORDINATOR,
    PORT_NAMES,
    Connection,
    Coordinator,
    Ended,
    Forget,
    NodeError,
    Output,
    Running,
    Signal,
    Start,
    Wait,
)
from jupyter_gpushare.cluster.node import keeper, kernel_folder, kernel_start, node_agent
from jupyter_gpushare.cluster.node.kernel_start import start_kernel
from jupyter_gpushare.cluster.node.node_agent import NodeAgent

from ..support.polling import wait_until
from ..support.ports import free_port
from .conftest import WAIT, Node, start_request


def is_alive(pid: int) -> bool:
    return keeper.start_ticks(pid) != 0


def processes_with(variable: str) -> list[int]:
    """Return the processes that have this variable in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of a process that has ended meanwhile
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("print('done')", 0)])
def test_the_exit_status_of_a_kernel_arrives(node: Node, end: str, status: int) -> None:
    node.request(start_request(argv=[sys.executable, "-c", f"import os, sys; {end}"]))
    assert node.request(Wait(kernel="k1")) == {"status": status, "reason": ""}
    node.request(Forget(kernel="k1"))
    assert kernel_folder.all_kernels() == []


async def test_a_start_whose_server_ends_meanwhile_leaves_no_kernel(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, started, answers = threading.Event(), threading.Event(), list[Any](), list[bytes]()

    def slow(request: Start) -> Any:
        begun.set()
        assert goes_on.wait(WAIT)
        started.append(start_kernel(request))
        return started[0]

    monkeypatch.setattr(node_agent, "start_kernel", slow)
    agent = NodeAgent(answers.append)
    agent.handle(msgspec.json.encode(start_request()))
    assert await asyncio.to_thread(begun.wait, WAIT)
    end = asyncio.ensure_future(agent.close())
    for _ in range(3):  # steps of the end, up to its wait for the start
        await asyncio.sleep(0)
    goes_on.set()
    await end
    assert started and not is_alive(started[0].pid)
    assert kernel_folder.all_kernels() == [] and answers == []


async def test_a_signal_before_the_end_of_the_agent_reaches_the_kernel(state: Path) -> None:
    pid = start_kernel(start_request()).pid
    agent = NodeAgent(lambda _: None)
    agent.handle(msgspec.json.encode(Signal(kernel="k1", number=signal.SIGKILL)))
    await agent.close()
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid))


def test_a_kernel_has_the_folder_the_variables_and_the_client(node: Node, tmp_path: Path) -> None:
    program = (
        "import os; print(os.getcwd(), os.environ['WORD'], os.environ['GPUSHARE_CLIENT'], os.environ['LD_PRELOAD'])"
    )
    env = {"WORD": "${HOME}/word"}
    started = node.request(
        start_request(argv=[sys.executable, "-c", program], folder=str(tmp_path), env=env, is_python=False)
    )
    assert started["note"] == ""
    node.request(Wait(kernel="k1"))
    folder, word, client, preload = node.request(Output(kernel="k1"))["text"].split()
    assert (folder, word, client) == (str(tmp_path), f"{Path.home()}/word", "k1")
    assert "libgpushare" in preload


def test_a_kernel_has_no_variables_of_the_agents_slurm_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_CONF", "SLURMD_NODENAME", "SRUN_DEBUG"):
        monkeypatch.setenv(name, f"agent-{name}")
    env = {"SLURM_NTASKS": "4", "AGENT_JOB": "${SLURM_JOB_ID}"}
    node.request(start_request(argv=["env"], env=env))
    node.request(Wait(kernel="k1"))
    lines = node.request(Output(kernel="k1", max_bytes=1 << 16))["text"].splitlines()
    found = {line for line in lines if line.startswith(("SLURM", "SRUN", "AGENT"))}
    assert found == {"SLURM_CONF=agent-SLURM_CONF", "SLURM_NTASKS=4", "AGENT_JOB=agent-SLURM_JOB_ID"}


def test_output_is_the_end_of_what_was_printed(node: Node) -> None:
    node.request(start_request(argv=["seq", "10000"]))
    node.request(Wait(kernel="k1"))
    assert node.request(Output(kernel="k1", max_bytes=11))["text"] == "9999\n10000\n"


def test_long_output_is_shortened_while_the_kernel_goes_on(node: Node, state: Path) -> None:
    """The keeper looks ten times in the orphan timeout."""
    code = "import os, time; os.write(1, b'x' * (17 << 20)); os.write(1, b'the end'); time.sleep(600)"
    node.request(start_request(argv=[sys.executable, "-c", code], orphan_timeout=10.0))
    node.connection.request(Wait(kernel="k1"))
    output = kernel_folder.KernelFolder("k1").path / "output"
    wait_until(lambda: node.request(Output(kernel="k1", max_bytes=7))["text"] == "the end")
    wait_until(lambda: output.stat().st_blocks * 512 < 1 << 20)
    assert node.request(Output(kernel="k1", max_bytes=7))["text"] == "the end"


def test_a_signal_reaches_all_processes_of_the_kernel(node: Node) -> None:
    started = node.request(start_request(argv=["sh", "-c", "sleep 600 & echo $!; wait"]))
    wait_until(lambda: node.request(Output(kernel="k1"))["text"].strip())
    child = int(node.request(Output(kernel="k1"))["text"])
    node.request(Signal(kernel="k1", number=signal.SIGTERM))
    assert node.request(Wait(kernel="k1"))["status"] == -signal.SIGTERM
    wait_until(lambda: not is_alive(child))
    assert not is_alive(started["pid"])


def test_a_kernel_outlives_its_agent_and_the_next_agent_finds_it(node: Node) -> None:
    started = node.request(start_request())
    for _ in range(3):
        node.kill_agent()
        assert node.request(Running()) == [started | {"note": ""}]
    waiting = node.connection.request(Wait(kernel="k1"))
    node.request(Signal(kernel="k1", number=signal.SIGKILL))
    assert waiting.result(WAIT)["status"] == -signal.SIGKILL
    assert node.request(Running()) == []


def test_the_end_of_a_kernel_whose_keeper_was_killed_is_found(node: Node) -> None:
    started = node.request(start_request())
    os.kill(kernel_folder.KernelFolder("k1").state()["keeper"], signal.SIGKILL)
    waiting = node.connection.request(Wait(kernel="k1"))
    assert node.request(Running()) == [started | {"note": ""}]
    os.kill(started["pid"], signal.SIGKILL)
    assert waiting.result(WAIT) == {"status": None, "reason": ""}


def test_the_end_of_a_kernel_during_a_look_at_it_has_its_status(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kernel_folder.KernelFolder("k1")
    folder.make()
    ids = {"pid": 1, "pid_ticks": 1, "keeper": 2, "keeper_ticks": 1}
    keeper.write_file(str(folder.path / "state"), {**ids, "ports": {}, "client": ""})

    def end(pid: int) -> int:
        keeper.write_file(str(folder.path / "exit"), {"status": 3, "reason": ""})
        return 0

    monkeypatch.setattr(kernel_folder, "start_ticks", end)
    assert folder.ended() == Ended(status=3)


def test_only_a_kernel_that_no_server_waits_for_ends_after_the_orphan_timeout(node: Node) -> None:
    folder = kernel_folder.KernelFolder("adopted")
    folder.make()
    adoption = folder.adopt()
    adopted = node.request(start_request("adopted", orphan_timeout=3.0))
    waiting = node.connection.request(Wait(kernel="adopted"))
    node.request(Running())  # so that the agent waits
    os.close(adoption)
    orphan = node.request(start_request("orphan", orphan_timeout=3.0))
    wait_until(lambda: not is_alive(orphan["pid"]))
    assert is_alive(adopted["pid"]) and not waiting.done()
    assert node.request(Wait(kernel="orphan")) == {"status": -signal.SIGTERM, "reason": "orphan"}
    node.kill_agent()
    wait_until(lambda: not is_alive(adopted["pid"]))


def bad_address(request: Start) -> Connection:
    connection = request.connection
    connection.ip = "192.0.2.1"
    return connection


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"folder": "/no/such/folder"}, "the node has no folder /no/such/folder"),
        ({"argv": ["/no/such/program"]}, "the node cannot start /no/such/program: No such file or directory"),
        (
            {"argv": ["python"], "prefix": "/no/such/prefix"},
            "the node cannot start /no/such/prefix/bin/python: No such",
        ),
        ({"argv": ["/etc/passwd"]}, "the node cannot start /etc/passwd: Permission denied"),
        ({"connection": bad_address(start_request())}, "the node does not have the address 192.0.2.1"),
        ({"kernel": "../k1"}, "'../k1' is no id of a kernel"),
    ],
)
def test_a_failed_start_is_one_sentence_and_leaves_nothing(node: Node, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(NodeError, match=f"^{sentence}") as failure:
        node.request(start_request(**{"kernel": "k1", **options}))
    assert "\n" not in str(failure.value)
    assert kernel_folder.all_kernels() == []
    assert node.request(Running()) == []
    node.request(start_request("k2"))  # so that there is a coordinator
    clients = node.request(Coordinator(message={"type": "status"}))["clients"]
    assert [client["id"] for client in clients] == ["k2"]


def test_a_kernel_whose_state_cannot_be_written_is_killed_before_the_failure_is_reported(node: Node) -> None:
    folder = kernel_folder.KernelFolder("k1")
    folder.make()
    (folder.path / "state.new").mkdir()  # so that the keeper cannot write the file
    with pytest.raises(NodeError, match=r"^the node cannot write .*/state: Is a directory$") as failure:
        node.request(start_request())
    wait_until(lambda: processes_with(f"GPUSHARE_KERNEL_FOLDER={folder.path}") == [], WAIT)
    assert failure.value.reason == "node_failed"
    assert kernel_folder.all_kernels() == []


@pytest.mark.parametrize("name", ["state", "exit"])
@pytest.mark.parametrize("content", ["", "\0" * 64, "[]", "{}"])
def test_an_unreadable_file_of_a_kernel_blocks_no_start(node: Node, name: str, content: str) -> None:
    node.request(start_request("k0", argv=["true"]))
    node.request(Wait(kernel="k0"))
    folder = kernel_folder.KernelFolder("k0")
    wait_until(lambda: not list(folder.processes()))
    (folder.path / name).write_text(content)
    started = node.request(start_request())
    assert node.request(Running()) == [started | {"note": ""}]
    assert node.request(start_request("k0"))["kernel"] == "k0"


async def failed_start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> dict[str, Any]:
    """Return the answer of a node agent to the start 7, which raises the error."""

    def fail(request: Start) -> Any:
        raise error

    monkeypatch.setattr(node_agent, "start_kernel", fail)
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    NodeAgent(answers.put_nowait).handle(msgspec.json.encode(structs.replace(start_request(), id=7)))
    answer: dict[str, Any] = msgspec.json.decode(await asyncio.wait_for(answers.get(), WAIT))
    return answer


async def test_an_unexpected_error_is_one_sentence_with_its_traceback_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = await failed_start(monkeypatch, ValueError("a surprise\nof two lines"))
    assert (answer["id"], answer["message"]) == (7, "the node failed: ValueError: a surprise of two lines")
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "{kernels}"),
        (OSError(errno.ENOSPC, "No space left on device", "/full"), "/full"),
    ],
)
async def test_a_full_disk_has_its_path(monkeypatch: pytest.MonkeyPatch, error: OSError, path: str) -> None:
    answer = await failed_start(monkeypatch, error)
    path = path.format(kernels=kernel_folder.kernels_folder())
    assert answer["message"] == f"the node failed: No space left on device ({path})"


@pytest.mark.parametrize("version", ["6.29.5", "7.2.0a1"])
def test_an_ipykernel_without_encryption_is_one_sentence_and_leaves_nothing(
    node: Node, tmp_path: Path, version: str
) -> None:
    package = tmp_path / f"lib/python3.11/site-packages/ipykernel-{version}.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ipykernel\nVersion: {version}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    with pytest.raises(NodeError, match=f"^the ipykernel {version} on the node cannot encrypt") as failure:
        node.request(start_request(argv=argv, prefix=str(tmp_path)))
    assert failure.value.reason == "no_encryption"
    assert kernel_folder.all_kernels() == []


def test_a_used_up_range_of_ports_is_one_sentence_and_leaves_nothing(node: Node) -> None:
    first = free_port()
    with pytest.raises(NodeError, match=f"^the node has no free port among {first} to {first + 3}$"):
        node.request(start_request(port_range=(first, first + 3)))
    assert kernel_folder.all_kernels() == []


def test_kernels_have_different_ports_of_the_range(node: Node) -> None:
    first = free_port()
    found = [node.request(start_request(f"k{i}", port_range=(first, first + 40)))["ports"] for i in range(3)]
    ports = [port for one in found for port in one.values()]
    assert len(set(ports)) == 15 and all(first <= port <= first + 40 for port in ports)


@pytest.mark.parametrize("is_ranged", [False, True])
def test_kernels_that_start_at_the_same_time_have_different_ports(node: Node, is_ranged: bool) -> None:
    """A kernel that starts has not bound its ports, so they are still free for a probe."""
    first = free_port()
    options = {"port_range": (first, first + 59)} if is_ranged else {}
    starts = [node.connection.request(start_request(f"k{number}", **options)) for number in range(8)]
    ports = [port for start in starts for port in start.result(WAIT)["ports"].values()]
    assert len(set(ports)) == len(ports) == 40


def test_a_port_that_another_program_has_is_replaced(node: Node) -> None:
    """A kernel that starts anew asks for its ports so far."""
    request = start_request()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asked = {"shell_port": taken.getsockname()[1], "iopub_port": free_port()}
        ports = node.request(structs.replace(request, connection=structs.replace(request.connection, **asked)))["ports"]
    assert ports["iopub_port"] == asked["iopub_port"]
    assert ports["shell_port"] not in (0, asked["shell_port"])


def test_no_port_of_a_kernel_replaces_another_one(node: Node) -> None:
    first = free_port()
    request = start_request(port_range=(first, first + 4))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        asked = {name: first + number for number, name in enumerate(PORT_NAMES)}
        with pytest.raises(NodeError, match=f"^the node has no free port among {first} to {first + 4}$"):
            node.request(structs.replace(request, connection=structs.replace(request.connection, **asked)))


def test_a_running_kernel_is_neither_started_again_nor_forgotten(node: Node) -> None:
    started = node.request(start_request())
    with pytest.raises(NodeError, match="the kernel k1 runs already"):
        node.request(start_request())
    with pytest.raises(NodeError, match="the kernel k1 still runs"):
        node.request(Forget(kernel="k1"))
    assert is_alive(started["pid"])


@pytest.mark.parametrize("request_of_unknown_kernel", [Wait(kernel="k9"), Signal(kernel="k9", number=2)])
def test_an_unknown_kernel_is_named(node: Node, request_of_unknown_kernel: Any) -> None:
    with pytest.raises(NodeError, match="the node has no kernel k9"):
        node.request(request_of_unknown_kernel)


def test_the_coordinator_of_the_node_answers(node: Node) -> None:
    node.request(start_request())
    status = node.request(Coordinator(message={"type": "status"}))
    assert [one["id"] for one in status["clients"]] == ["k1"]
    with pytest.raises(NodeError, match="the coordinator has no such request"):
        node.request(Coordinator(message={"type": "dance"}))


def test_a_coordinator_that_breaks_off_differs_from_none(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of an earlier test may still run at the usual socket."""
    path = tmp_path / "coordinator.sock"
    monkeypatch.setenv("GPUSHARE_SOCKET", str(path))
    with pytest.raises(NodeError) as failure:
        node.request(Coordinator(message={"type": "status"}))
    assert failure.value.reason == NO_COORDINATOR
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        answer = node.connection.request(Coordinator(message={"type": "status"}))
        listener.accept()[0].close()
        with pytest.raises(NodeError) as failure:
            answer.result(WAIT)
    assert failure.value.reason == "unreachable"


def test_a_folder_that_is_removed_meanwhile_fails_no_start(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_folder.KernelFolder("k2").make()
    monkeypatch.setattr(kernel_folder.KernelFolder, "exists", lambda folder: True)
    assert kernel_start._reserved_ports(kernel_folder.KernelFolder("k1")) == set()
