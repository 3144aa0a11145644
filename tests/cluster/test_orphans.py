"""Tests of kernels that no server adopts: their memory leaves the device, and the node has a record of their end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from jupyter_gpushare.cli import usage as usage_command
from jupyter_gpushare.cluster.channel.messages import Coordinator, Forget, Wait
from jupyter_gpushare.cluster.node import keeper
from jupyter_gpushare.cluster.node.kernel_folder import KernelFolder

from ..support.polling import wait_until
from .conftest import WAIT, Node, start_request

PROGRAM = """
from jupyter_gpushare.demo.gpu import Gpu
import time
gpu = Gpu()
array = gpu.full(1 << 20, 2.0)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_end_of_an_orphan_is_in_the_usage_and_in_the_audit_log(node: Node, state: Path) -> None:
    request = start_request(argv=[sys.executable, "-c", PROGRAM], orphan_timeout=0.5, is_python=False)
    folder = KernelFolder("k1")
    folder.make()
    adoption = folder.adopt()
    pid = node.request(request)["pid"]
    wait_until(lambda: folder.output(4096) == "ready\n", WAIT)
    os.close(adoption)
    wait_until(lambda: not keeper.start_ticks(pid), WAIT)
    assert node.request(Wait(kernel="k1"))["reason"] == "orphan"
    assert folder.path.is_dir() and not folder.connection_file.exists(), "the connection file has keys"
    node.request(Forget(kernel="k1"))
    (log,) = state.glob("gpushare/*/audit.log")
    evict, orphan = map(json.loads, log.read_text().splitlines())
    assert (evict["what"], evict["subject"]) == ("evict", "k1")
    assert evict["old"]["resident"] >= 4 << 20 and evict["new"]["resident"] == 0
    assert (orphan["what"], orphan["subject"], orphan["old"], orphan["new"]) == ("orphan", "k1", "running", "ended")
    usage = node.request(Coordinator(message={"type": "usage"}))
    (row,) = usage["rows"]
    assert row["orphans"] == 1 and row["evicted_bytes"] >= 4 << 20
    console = Console(width=200)
    with console.capture() as shown:
        console.print(usage_command.render(usage))
    assert f"{row['user']}: kernels that ended because no Jupyter server adopted them: 1" in shown.get()


def test_a_kernel_that_is_adopted_during_its_eviction_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends after it has been left a second time."""
    adopted: list[bool] = []
    is_adopted = keeper.is_adopted
    monkeypatch.setattr(keeper, "is_adopted", lambda path: adopted.append(is_adopted(path)) or adopted[-1])
    (tmp_path / "output").touch()
    steps = tmp_path / "steps"
    script = f"echo $1 >> {steps}; while ! test -e {tmp_path}/adopted; do sleep 0.02; done"
    kernel = subprocess.Popen(["sleep", "600"], start_new_session=True)
    keep = threading.Thread(
        target=keeper.keep, args=(kernel, str(tmp_path), 0.1, ["sh", "-c", script, "sh"]), daemon=True
    )
    keep.start()
    wait_until(steps.exists)
    with open(tmp_path / "adoption", "a") as adoption:
        fcntl.flock(adoption, fcntl.LOCK_SH)
        (tmp_path / "adopted").touch()
        wait_until(lambda: True in adopted)
    keep.join(WAIT)
    assert steps.read_text().split() == ["evict", "evict", "record"]
    assert kernel.returncode == -signal.SIGTERM


def test_a_kernel_whose_adoption_is_unknown_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper cannot open the file `adoption` meanwhile, as on a shared file system that fails."""
    folder = KernelFolder("k1")
    folder.make()
    (folder.path / "adoption").mkdir()
    assert keeper.is_adopted(str(folder.path / "adoption"))
    started = node.request(start_request(argv=["sleep", "600"], orphan_timeout=0.5, is_python=False))
    (folder.path / "adoption").rmdir()
    wait_until(lambda: not keeper.start_ticks(started["pid"]), WAIT)
    assert node.request(Wait(kernel="k1"))["reason"] == "orphan", "the keeper has gone on as well"


def test_a_kernel_without_its_folder_ends_as_an_orphan(node: Node) -> None:
    """The next kernel of the same id goes on, with a folder at the same path."""
    request = start_request(argv=["sleep", "600"], orphan_timeout=0.5, is_python=False)
    node.request(request)
    folder = KernelFolder("k1")
    first = folder.state()
    folder.remove()
    folder.make()
    adoption = folder.adopt()
    second = node.request(request)
    wait_until(lambda: not keeper.start_ticks(first["pid"]) and not keeper.start_ticks(first["keeper"]), WAIT)
    assert folder.ended() is None and keeper.start_ticks(second["pid"])
    os.close(adoption)


def test_a_kernel_whose_node_agent_was_killed_during_its_start_ends_as_an_orphan(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "starting", os.O_CREAT)
    specification = {
        "argv": ["sleep", "600"],
        "env": dict(os.environ),
        "folder": str(tmp_path),
        "working_directory": "/",
        "orphan_timeout": 0.3,
        "before_end": [],
        "lock": lock,
        "shown": {},
    }
    reader, writer = os.pipe()
    command = [sys.executable, "-I", "-S", keeper.__file__]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=writer, text=True, pass_fds=[lock])
    os.close(lock)
    os.close(writer)
    os.close(reader)  # as at the end of the agent, which alone reads the keeper's report
    started.communicate(json.dumps(specification) + "\n", WAIT)
    state = tmp_path / "state"
    wait_until(state.exists, WAIT)
    pids = json.loads(state.read_text())
    wait_until(lambda: not keeper.start_ticks(pids["keeper"]), WAIT)
    try:
        assert json.loads((tmp_path / "exit").read_text()) == {"status": -signal.SIGTERM, "reason": "orphan"}
    finally:
        if keeper.start_ticks(pids["pid"]) == pids["pid_ticks"]:
            os.kill(pids["pid"], signal.SIGKILL)
