"""Tests of `%gpushare move NODE`, with a Jupyter server, two nodes and an open page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster import kernel_records

from ..support.polling import wait_until
from .conftest import WAIT, JupyterServer, RemoteNotebook
from .test_lost_nodes import NODES, Page, node_of

VARIABLES = """
import os as system
numbers = list(range(5)); same = numbers
stream = (number for number in numbers)
step = 2
def next_number():
    return numbers[-1] + step
class Point:
    x = 3
point = Point()
"""


@pytest.fixture
def server(start_server: Callable[..., JupyterServer], separate_nodes: str) -> JupyterServer:
    return start_server(engine=separate_nodes, nodes=list(NODES), addresses=dict.fromkeys(NODES, "127.0.0.1"))


@pytest.fixture
def kernel(server: JupyterServer) -> Iterator[str]:
    found: str = server.request("POST", "kernels", {"name": "remote"})["id"]
    yield found
    server.request("DELETE", f"kernels/{found}")


async def failing_cell(page: Page, code: str) -> None:
    """Run a cell that ends with an error, whose reply has no values."""
    with contextlib.suppress(KeyError):
        await page.value("1", code=code)


async def test_the_variables_move_with_the_kernel_under_an_open_page(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here = node_of(kernel)
    there = NODES[1 - NODES.index(here)]
    page = Page(server, kernel)
    await page.value("1", code=VARIABLES)
    await failing_cell(page, f"%gpushare move {there}\nprint('the cell goes on')")
    assert f"This kernel moves to {there} with" in page.printed
    assert "Not taken along: stream (cannot pickle 'generator' object" in page.printed
    assert "the cell goes on" not in page.printed
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    value = "[next_number(), same is numbers, point.x, type(point) is Point, system.sep, 'stream' in globals()]"
    found = await asyncio.wait_for(page.value(value, code="numbers.append(7); step = 3"), WAIT)
    assert found == "[10, True, 3, True, '/', False]", "functions and classes of the notebook belong to it as before"
    assert f"gpushare: this kernel has moved to {there}, with " in page.printed
    assert server.request("GET", f"gpushare/api/kernels/{kernel}")["node"] == there
    await page.close()
    files = f"{here}/state/gpushare/*/kernels/{kernel}"
    await asyncio.to_thread(wait_until, lambda: not list(tmp_path.glob(files)), WAIT)


async def test_a_kernel_that_restarts_later_has_no_variables(server: JupyterServer, kernel: str) -> None:
    here = node_of(kernel)
    there = NODES[1 - NODES.index(here)]
    page = Page(server, kernel)
    await page.value("1", code="x = 1")
    await failing_cell(page, f"%gpushare move {there}")
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    assert await asyncio.wait_for(page.value("x", code="pass"), WAIT) == "1"
    await asyncio.to_thread(server.request, "POST", f"kernels/{kernel}/restart")
    page.printed = ""
    await page.close()
    assert await asyncio.wait_for(page.value("'x' in globals()", code="pass"), WAIT) == "False"
    assert "moved" not in page.printed
    assert node_of(kernel) == there
    await page.close()


async def test_variables_larger_than_a_message_move(server: JupyterServer, kernel: str) -> None:
    there = NODES[1 - NODES.index(node_of(kernel))]
    page = Page(server, kernel)
    await page.value("1", code="import os, zlib; large = os.urandom(9 << 20); crc = zlib.crc32(large)")
    await failing_cell(page, f"%gpushare move {there}")
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    assert await asyncio.wait_for(page.value("[len(large) >> 20, zlib.crc32(large) == crc]", code="pass"), WAIT) == (
        "[9, True]"
    )
    await page.close()


async def test_the_variables_return_to_their_node_if_the_other_one_is_lost(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here = node_of(kernel)
    there = NODES[1 - NODES.index(here)]
    page = Page(server, kernel)
    await page.value("1", code="x = 41")
    before = kernel_records.load(kernel)
    (tmp_path / f"{there}.lost").touch()
    for agent in server.children("agent"):
        os.kill(agent, signal.SIGKILL)
    await failing_cell(page, f"%gpushare move {there}")
    await page.close()
    await asyncio.to_thread(wait_until, lambda: kernel_records.load(kernel) not in (before, None), WAIT)
    assert await page.value("x + 1", code="pass") == "42"
    assert f"gpushare: this kernel has not moved to {there}, and has started anew on {here}: {there}: " in page.printed
    assert "no route to the host" in page.printed
    await page.close()


def test_cells_that_wait_do_not_run(start_notebook: Callable[..., RemoteNotebook], tmp_path: Path) -> None:
    notebook = start_notebook(nodes=["here", "there"])
    other = notebook.value("__import__('os').environ['GPUSHARE_NODES']")
    notebook.client.execute(f"import time; time.sleep(0.2)\n%gpushare move {other}")
    notebook.client.execute(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    wait_until(lambda: not notebook.manager.is_alive(), WAIT)
    assert not (tmp_path / "ran").exists()


def test_a_move_without_sense_changes_nothing(start_notebook: Callable[..., RemoteNotebook]) -> None:
    """An unknown node counts as a device, and the coordinator names the allowed ones."""
    notebook = start_notebook(nodes=["here", "there"])
    notebook.run("x = 1")
    node = notebook.value("__import__('os').environ['GPUSHARE_NODE']")
    other = "there" if node == "here" else "here"
    sentences = {node: f"this kernel runs on {node} already", "nosuch": f"(other nodes for this kernel: {other})"}
    for target, sentence in sentences.items():
        answer = notebook.run(f"%gpushare move {target}")
        assert answer["status"] == "error" and sentence in answer["evalue"]
    assert notebook.value("x") == 1
    answer = notebook.run(f"import sys; sys.modules['dill'] = None\n%gpushare move {other}")
    assert "needs the package dill" in answer["evalue"]
    assert notebook.value("x") == 1
