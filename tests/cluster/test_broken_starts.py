"""Tests of starts that the end of their node agent breaks off, with real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cluster.channel.messages import NO_COORDINATOR, Coordinator, Forget, NodeError
from jupyter_gpushare.cluster.node import broken_start, keeper, kernel_folder, node_agent

from ..support.polling import wait_until
from .conftest import WAIT, Node, start_request


def clients(node: Node) -> list[str]:
    """Return the ids of the clients of the node's coordinator."""
    try:
        return [client["id"] for client in node.request(Coordinator(message={"type": "status"}))["clients"]]
    except NodeError as error:
        assert error.reason == NO_COORDINATOR
        return []


@pytest.fixture
def other(state: Path) -> Iterator[Node]:
    """Return a node agent of another server, which is never asked for a start."""
    made = Node()
    yield made
    made.close()


def begin_start(node: Node, start: str = "s1") -> tuple[Future[Any], Path]:
    """Begin a start that waits for a reader of the connection file, and return the answer and that file."""
    folder = kernel_folder.KernelFolder("k1")
    folder.make()
    os.mkfifo(folder.connection_file)
    answer = node.connection.request(start_request(start=start))
    wait_until(lambda: clients(node) == ["k1"])
    return answer, folder.connection_file


def test_the_next_agent_removes_the_client_and_the_folder_of_a_broken_off_start(node: Node) -> None:
    begin_start(node)
    node.kill_agent()
    wait_until(lambda: clients(node) == [])
    wait_until(lambda: kernel_folder.all_kernels() == [])


def test_the_discard_of_a_broken_off_start_removes_its_client_and_its_folder(node: Node, other: Node) -> None:
    assert clients(other) == []  # so that the agent has started, and looks for broken-off starts no more
    begin_start(node)
    node.kill_agent()
    node_agent.forget(Forget(kernel="k1", start="of another start"))
    assert clients(other) == ["k1"]
    node_agent.forget(Forget(kernel="k1", start="s1"))
    assert clients(other) == [] and kernel_folder.all_kernels() == []


def test_no_other_agent_removes_the_folder_of_a_start_under_way(node: Node, other: Node) -> None:
    answer, file = begin_start(node)
    with pytest.raises(NodeError, match=r"^the kernel k1 starts at present$"):
        other.request(Forget(kernel="k1", start="s1"))
    broken_start.discard_all()
    assert clients(other) == ["k1"] and "secret" in file.read_text()
    pid = answer.result(WAIT)["pid"]
    broken_start.discard_all()
    assert keeper.start_ticks(pid) and kernel_folder.KernelFolder("k1").started().pid == pid


def test_a_start_replaces_the_broken_off_start_of_the_same_kernel(node: Node) -> None:
    _, file = begin_start(node)
    node.kill_agent()
    file.unlink()  # so that no start waits for a reader any more
    started = node.request(start_request(start="s2"))
    broken_start.discard_all()
    assert clients(node) == ["k1"] and kernel_folder.KernelFolder("k1", "s2").started().pid == started["pid"]
