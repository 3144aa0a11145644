"""Tests of starts that wait for a node with room, as pages of a Jupyter server and commands in a terminal show them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cluster import start_records

from ..support.polling import wait_until
from .conftest import NODES, WAIT, Daemon, JupyterServer, separate_nodes, write_kernelspec


@pytest.fixture(scope="module", autouse=True)
def whole_device(server: JupyterServer) -> None:
    """Add the kernelspec `whole`, whose kernels take all of the one device of n1."""
    write_kernelspec(server.folder, "whole", node="n1", share=1.0)


class Starts:
    """Requests that start kernels, which the server answers when the kernels have started."""

    def __init__(self, server: JupyterServer) -> None:
        self._server = server
        self._threads = ThreadPoolExecutor()
        self._answers: list[Future[Any]] = []

    def begin(self, path: str, body: dict[str, Any]) -> Future[Any]:
        """Send a request. The result is the answer, or the sentence of the refusal."""

        def request() -> Any:
            try:
                return self._server.request("POST", path, body)
            except urllib.error.HTTPError as error:
                with error:
                    return json.loads(error.read())["message"]

        self._answers.append(self._threads.submit(request))
        return self._answers[-1]

    def close(self) -> None:
        self._threads.shutdown()
        for answer in self._answers:
            answer.exception()  # of a request that the end of the server has cut off


@pytest.fixture
def starts(server: JupyterServer) -> Iterator[Starts]:
    made = Starts(server)
    yield made
    for start in waiting(server):
        server.request("DELETE", f"gpushare/api/starts/{start['kernel']}")
    made.close()
    for kernel in server.request("GET", "kernels"):
        server.request("DELETE", f"kernels/{kernel['id']}")


def waiting(server: JupyterServer) -> list[dict[str, Any]]:
    return list(server.request("GET", "gpushare/api/status")["starts"])


def test_a_notebook_waits_until_a_kernel_ends(server: JupyterServer, starts: Starts) -> None:
    occupant = server.request("POST", "kernels", {"name": "whole"})["id"]
    body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "whole"}}
    session = starts.begin("sessions", body)
    (start,) = wait_until(lambda: waiting(server))
    shown = {name: start[name] for name in ("label", "path", "nodes", "position", "expected_wait")}
    assert shown == {"label": "a.ipynb", "path": "a.ipynb", "nodes": ["n1"], "position": 1, "expected_wait": None}
    assert start["message"].endswith("has 0 of its share left")
    command = [sys.executable, "-m", "jupyter_gpushare", "status"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "a.ipynb waits for a node (n1): #1; " in " ".join(printed.split())
    server.request("DELETE", f"kernels/{occupant}")
    assert session.result(WAIT)["kernel"]["id"] == start["kernel"]
    assert waiting(server) == []


def test_a_waiting_start_can_be_cancelled(server: JupyterServer, starts: Starts) -> None:
    server.request("POST", "kernels", {"name": "whole"})
    kept = starts.begin("kernels", {"name": "whole"})
    wait_until(lambda: len(waiting(server)) == 1)
    cancelled = starts.begin("kernels", {"name": "whole"})
    wait_until(lambda: len(waiting(server)) == 2)
    first, second = waiting(server)
    assert (first["position"], second["position"]) == (1, 2)
    server.request("DELETE", f"gpushare/api/starts/{second['kernel']}")
    assert cancelled.result(WAIT) == "the start has been cancelled while it waited for a node with room"
    assert [one["kernel"] for one in waiting(server)] == [first["kernel"]]
    assert not kept.done()


def test_a_notebook_that_starts_again_takes_the_place_of_its_waiting_start(
    server: JupyterServer, starts: Starts
) -> None:
    """A page that is loaded anew requests another session, under another path with the same name."""
    server.request("POST", "kernels", {"name": "whole"})
    body = {"name": "a.ipynb", "type": "notebook", "kernel": {"name": "whole"}}
    first = starts.begin("sessions", {**body, "path": "one"})
    wait_until(lambda: waiting(server))
    again = starts.begin("sessions", {**body, "path": "two"})
    assert "another start of the same notebook has taken the place of this one" in first.result(WAIT)
    (start,) = wait_until(lambda: waiting(server))
    assert (start["label"], again.done()) == ("a.ipynb", False)


def test_a_kernel_whose_restart_waits_can_be_shut_down(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    """The node of the kernel is lost, and the other node has no room."""
    write_kernelspec(tmp_path, "anywhere", share=1.0)
    server = start_server(**separate_nodes(tmp_path))
    other, kernel = (server.request("POST", "kernels", {"name": "anywhere"})["id"] for _ in range(2))
    (folder,) = tmp_path.glob(f"n?/state/gpushare/*/kernels/{kernel}")
    node = folder.relative_to(tmp_path).parts[0]
    (tmp_path / f"{node}.lost").touch()
    for agent in server.children("agent"):
        os.kill(agent, signal.SIGKILL)
    starts = Starts(server)
    restart = starts.begin(f"kernels/{kernel}/restart", {})
    (start,) = wait_until(lambda: waiting(server))
    assert start["kernel"] == kernel
    server.request("DELETE", f"kernels/{kernel}")
    restart.exception(WAIT)
    assert waiting(server) == []
    assert [one["id"] for one in server.request("GET", "kernels")] == [other]
    starts.close()


def test_the_queue_goes_on_without_the_cluster_daemon_and_with_the_next_one(
    start_server: Callable[..., JupyterServer], start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    write_kernelspec(tmp_path, "anywhere", share=1.0)
    daemon = start_daemon()
    server = start_server(**daemon.settings)
    running = [server.request("POST", "kernels", {"name": "anywhere"})["id"] for _ in NODES]
    starts = Starts(server)
    answers = []
    for number in range(3):
        answers.append(starts.begin("kernels", {"name": "anywhere"}))
        wait_until(lambda expected=number + 1: len(waiting(server)) == expected)
    # The first try of a new start may come just after the end of a kernel.
    wait_until(lambda: all(start["message"] for start in waiting(server)), WAIT)
    kernels = [start["kernel"] for start in waiting(server)]

    def assert_that_the_first_one_starts() -> None:
        server.request("DELETE", f"kernels/{running.pop(0)}")
        assert answers.pop(0).result(WAIT)["id"] == kernels.pop(0)
        assert [start["kernel"] for start in waiting(server)] == kernels
        assert not any(answer.done() for answer in answers)

    daemon.kill()
    assert_that_the_first_one_starts()
    daemon.start()
    assert [node["clients"] for node in daemon.nodes().values()] == [1, 1], "the next daemon learns from the nodes"
    assert_that_the_first_one_starts()
    server.request("DELETE", f"gpushare/api/starts/{kernels[0]}")
    starts.close()


def test_only_a_waiting_start_can_be_cancelled(server: JupyterServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.request("DELETE", "gpushare/api/starts/nosuch")
    with refused.value as answer:
        assert json.loads(answer.read())["reason"] == "unknown_start"


def test_the_sentence_of_a_failed_start_keeps_its_percent_signs(server: JupyterServer, starts: Starts) -> None:
    write_kernelspec(server.folder, "wrong", ["/no/such/50%s"])
    sentence = starts.begin("kernels", {"name": "wrong"}).result(WAIT)
    assert "cannot start /no/such/50%s: No such file or directory" in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"node": "n3"}, "the address of the node n3 is unknown"), ({"share": -1}, "share=-1 is out of range")],
)
def test_a_server_ends_its_kernels_after_a_start_has_failed(
    start_server: Callable[..., JupyterServer], tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    write_kernelspec(tmp_path, "failing", **options)
    server = start_server(**separate_nodes(tmp_path))
    server.request("POST", "kernels", {"name": "remote"})
    starts = Starts(server)
    assert sentence in starts.begin("kernels", {"name": "failing"}).result(WAIT)
    server.process.terminate()
    server.process.wait(WAIT)
    assert [folder.name for folder in tmp_path.glob("n?/state/gpushare/*/kernels/*")] == []


def test_the_end_of_the_server_ends_the_waiting_starts(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    write_kernelspec(tmp_path, "whole", node="n1", share=1.0)
    server = start_server(**separate_nodes(tmp_path))
    server.request("POST", "kernels", {"name": "whole"})
    starts = Starts(server)
    starts.begin("kernels", {"name": "whole"})
    wait_until(lambda: list(start_records.waiting()))
    server.process.terminate()
    server.process.wait(WAIT)
    starts.close()
    assert list(start_records.waiting()) == []
    assert [folder.name for folder in tmp_path.glob("n1/state/gpushare/*/kernels/*")] == []
