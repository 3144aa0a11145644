"""Tests of `%gpushare move NODE`, with a Jupyter server, two nodes and an open page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.polling import wait_until
from .conftest import WAIT, JupyterServer
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
# A variable whose load waits until a file of the test exists. The load writes another file.
SLOW = """
class Slow:
    def __reduce__(self):
        def load(folder):
            import os, time
            open(f"{{folder}}/loads", "w").close()
            while not os.path.exists(f"{{folder}}/go"):
                time.sleep(0.02)
            return 5
        return load, ({folder!r},)
slow = Slow()
x = 41
"""


@pytest.fixture
def server(start_server: Callable[..., JupyterServer], separate_nodes: str) -> JupyterServer:
    return start(start_server, separate_nodes)


@pytest.fixture
def kernel(server: JupyterServer) -> Iterator[str]:
    found: str = server.request("POST", "kernels", {"name": "remote"})["id"]
    yield found
    with contextlib.suppress(OSError):
        server.request("DELETE", f"kernels/{found}")


def other_node(kernel: str) -> str:
    return NODES[1 - NODES.index(node_of(kernel))]


async def move(page: Page, node: str) -> None:
    """Run the cell that moves the kernel until its reply, or until another kernel has answered."""
    page.printed = ""
    with contextlib.suppress(KeyError):  # the reply of a cell that ends with an error has no values
        await asyncio.wait_for(page.value("1", code=f"%gpushare move {node}"), WAIT)


async def shows(page: Page, sentence: str) -> None:
    """Assert that the page shows a sentence, also if the output of a cell comes after the cell's reply."""
    deadline = time.monotonic() + WAIT
    while sentence not in page.printed:
        assert time.monotonic() < deadline, f"{sentence!r} not in {page.printed!r}"
        await asyncio.wait_for(page.value("1", code="pass"), WAIT)


async def test_the_variables_move_with_the_kernel_under_an_open_page(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code=VARIABLES)
    await move(page, there)
    await shows(page, f"This kernel moves to {there} with 7 variables")
    await shows(page, "Not taken along: stream (TypeError: cannot pickle 'generator' object")
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    value = "[next_number(), same is numbers, point.x, type(point) is Point, system.sep, 'stream' in globals()]"
    found = await asyncio.wait_for(page.value(value, code="numbers.append(7); step = 3"), WAIT)
    assert found == "[10, True, 3, True, '/', False]", "functions and classes of the notebook belong to it as before"
    await shows(page, f"gpushare: this kernel has moved from {here} to {there}, with 7 variables")
    assert server.request("GET", f"gpushare/api/kernels/{kernel}")["node"] == there
    await page.close()
    files = f"{here}/state/gpushare/*/kernels/{kernel}"
    await asyncio.to_thread(wait_until, lambda: not list(tmp_path.glob(files)), WAIT)


async def test_a_kernel_moves_back_and_a_restart_has_no_variables(server: JupyterServer, kernel: str) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code="import os, zlib; large = os.urandom(9 << 20); crc = zlib.crc32(large)")
    for node in (there, here):
        await move(page, node)
        await asyncio.to_thread(wait_until, lambda node=node: node_of(kernel) == node, WAIT)
        found = await asyncio.wait_for(page.value("[len(large) >> 20, zlib.crc32(large) == crc]", code="pass"), WAIT)
        assert found == "[9, True]"
        assert "large" in await asyncio.wait_for(page.value("get_ipython().run_line_magic('who_ls', '')"), WAIT)
    await asyncio.to_thread(server.request, "POST", f"kernels/{kernel}/restart")
    page.printed = ""
    await page.close()
    assert await asyncio.wait_for(page.value("'large' in globals()", code="pass"), WAIT) == "False"
    assert "moved" not in page.printed and node_of(kernel) == here
    await page.close()


async def test_a_variable_that_cannot_be_loaded_leaves_the_kernel_with_all(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("class Thing: pass\n")
    code = f"import sys; sys.path.append({str(tmp_path / 'lib')!r}); import only_here; del sys"
    await page.value("1", code=f"{code}\nthing = only_here.Thing(); pair = [thing]; x = 41; del only_here")
    await move(page, there)
    await shows(page, f"This kernel moves to {there} with 3 variables")
    reasons = (
        "thing (ModuleNotFoundError: No module named 'only_here'); pair (GpuShareError: shares objects with thing)"
    )
    await shows(
        page, f"this kernel stays on {here} with its variables: {there}: variables cannot be loaded there: {reasons}"
    )
    found = await page.value("[x, pair[0] is thing, type(thing).__name__]", code="pass")
    assert found == "[41, True, 'Thing']" and node_of(kernel) == here
    await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, there, kernel), WAIT)
    await page.value("1", code="del thing, pair")
    await move(page, there)
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    assert await asyncio.wait_for(page.value("x", code="pass"), WAIT) == "41"
    await page.close()


async def test_a_move_without_sense_changes_nothing(server: JupyterServer, kernel: str) -> None:
    """An unknown node counts as a device, and the coordinator names the allowed ones."""
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code="x = 41")
    refused = {
        here: f"this kernel runs on {here} already",
        "nosuch": f"(other nodes: {there})",
        f"{there}\ny = 1": f"%gpushare move {there} must be the only line of its cell",
    }
    for line, sentence in refused.items():
        await move(page, line)
        await shows(page, sentence)
    await move(page, "0")
    await shows(page, "gets its device at its first CUDA call: there is nothing to move yet")
    assert "other nodes" not in page.printed, "the error of a known device is not about nodes"
    await page.value("1", code="import sys; sys.modules['dill'] = None")
    await move(page, there)
    await shows(page, "needs the package dill")
    assert await page.value("x + 1") == "42" and node_of(kernel) == here
    await page.close()


async def test_a_kernel_whose_kernelspec_names_the_node_stays(server: JupyterServer, tmp_path: Path) -> None:
    (file,) = tmp_path.glob("jupyter/**/remote/kernel.json")
    spec = json.loads(file.read_text())
    spec["metadata"]["kernel_provisioner"]["config"] = {"node": NODES[0]}
    file.write_text(json.dumps(spec))
    kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
    page = Page(server, kernel)
    await move(page, NODES[1])
    await shows(page, f"{NODES[1]}: the kernelspec of the kernel names the node {NODES[0]}")
    await page.close()
    server.request("DELETE", f"kernels/{kernel}")


async def test_a_lost_node_leaves_the_kernel_with_its_variables(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code="x = 41")
    (tmp_path / f"{there}.lost").touch()
    for agent in server.children("agent"):
        os.kill(agent, signal.SIGKILL)
    await move(page, there)
    await shows(page, f"this kernel stays on {here} with its variables: {there}: ")
    await shows(page, "no route to the host")
    assert await page.value("x + 1", code="pass") == "42" and node_of(kernel) == here
    (tmp_path / f"{there}.lost").unlink()
    await move(page, there)
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    assert await asyncio.wait_for(page.value("x + 1", code="pass"), WAIT) == "42"
    await page.close()


async def test_a_start_that_fails_leaves_the_kernel_and_nothing_on_the_other_node(
    start_server: Callable[..., JupyterServer], separate_nodes: str, tmp_path: Path
) -> None:
    """Both nodes need the same five ports, so the second kernel finds none."""
    addresses = dict.fromkeys(NODES, "127.0.0.1")
    server = start_server(engine=separate_nodes, nodes=list(NODES), addresses=addresses, ports="27610-27614")
    kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
    there = other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code="x = 41")
    await move(page, there)
    await shows(page, f"{there}: the node has no free port")
    assert await page.value("x + 1", code="pass") == "42"
    await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, there, kernel), WAIT)
    here = files_of(tmp_path, node_of(kernel), kernel)
    assert not [path for path in here if "-" in path.name], "files of the move"
    await page.close()


def files_of(tmp_path: Path, node: str, kernel: str) -> list[Path]:
    return list(tmp_path.glob(f"{node}/state/gpushare/*/kernels/{kernel}/*"))


async def begin_slow_move(page: Page, node: str, folder: Path) -> asyncio.Task[None]:
    """Move a kernel with a variable that loads until there is a file `go`, and return when it loads."""
    await page.value("1", code=SLOW.format(folder=str(folder)))
    moving = asyncio.ensure_future(move(page, node))
    await asyncio.to_thread(wait_until, lambda: moving.done() or (folder / "loads").exists(), WAIT)
    assert not moving.done(), page.printed
    return moving


async def end(moving: asyncio.Task[None], page: Page) -> None:
    """Close the page of a kernel that has ended, or whose server has ended."""
    moving.cancel()
    await asyncio.wait([moving])
    await page.close()


async def test_a_stop_while_the_variables_load_withdraws_the_move(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    moving = await begin_slow_move(page, there, tmp_path)
    await asyncio.to_thread(server.request, "POST", f"kernels/{kernel}/interrupt")
    await moving
    await shows(page, f"The move is withdrawn, and this kernel stays on {here} with its variables.")
    assert await page.value("x + 1", code="pass") == "42"
    (tmp_path / "go").touch()
    await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, there, kernel), WAIT)
    assert await page.value("x + 1", code="pass") == "42" and node_of(kernel) == here
    await page.close()


async def test_a_kernel_that_dies_while_it_loads_leaves_the_old_one(
    server: JupyterServer, kernel: str, tmp_path: Path
) -> None:
    there = other_node(kernel)
    page = Page(server, kernel)
    moving = await begin_slow_move(page, there, tmp_path)
    (state,) = [path for path in files_of(tmp_path, there, kernel) if path.name == "state"]
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    await moving
    await shows(page, f"{there}: the kernel has ended with status -9 while it loaded the variables")
    assert await page.value("x + 1", code="pass") == "42"
    await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, there, kernel), WAIT)
    await page.close()


@pytest.mark.parametrize("is_restart", [True, False])
async def test_a_restart_or_an_end_goes_before_a_move(
    server: JupyterServer, kernel: str, tmp_path: Path, is_restart: bool
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    moving = await begin_slow_move(page, there, tmp_path)
    if is_restart:
        await asyncio.to_thread(server.request, "POST", f"kernels/{kernel}/restart")
    else:
        await asyncio.to_thread(server.request, "DELETE", f"kernels/{kernel}")
        await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, here, kernel), WAIT)
    await end(moving, page)
    await asyncio.to_thread(wait_until, lambda: not files_of(tmp_path, there, kernel), WAIT)
    if is_restart:
        assert await asyncio.wait_for(page.value("'x' in globals()", code="pass"), WAIT) == "False"
        assert node_of(kernel) == here
        await page.close()


async def test_a_server_that_is_killed_meanwhile_leaves_the_old_kernel(
    server: JupyterServer, kernel: str, start_server: Callable[..., JupyterServer], separate_nodes: str, tmp_path: Path
) -> None:
    here, there = node_of(kernel), other_node(kernel)
    page = Page(server, kernel)
    moving = await begin_slow_move(page, there, tmp_path)
    server.process.kill()
    await asyncio.to_thread(server.process.wait, WAIT)
    await end(moving, page)
    next_server = await asyncio.to_thread(start, start_server, separate_nodes)
    await asyncio.to_thread(wait_until, lambda: has_kernels(next_server), WAIT)
    page = Page(next_server, kernel)
    assert await asyncio.wait_for(page.value("x + 1"), WAIT) == "42" and node_of(kernel) == here
    (tmp_path / "go").touch()
    await move(page, there)
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    assert await asyncio.wait_for(page.value("[x, slow]", code="pass"), WAIT) == "[41, 5]"
    await page.close()
    next_server.request("DELETE", f"kernels/{kernel}")


async def test_a_server_that_is_killed_afterwards_leaves_the_new_kernel(
    server: JupyterServer, kernel: str, start_server: Callable[..., JupyterServer], separate_nodes: str
) -> None:
    """The old kernel takes a long time to end, so that the server is killed before it has connected to the new one."""
    there = other_node(kernel)
    page = Page(server, kernel)
    await page.value("1", code="import atexit, time; atexit.register(time.sleep, 600); x = 41")
    moving = asyncio.ensure_future(move(page, there))
    await asyncio.to_thread(wait_until, lambda: node_of(kernel) == there, WAIT)
    server.process.kill()
    await asyncio.to_thread(server.process.wait, WAIT)
    await end(moving, page)
    next_server = await asyncio.to_thread(start, start_server, separate_nodes)
    await asyncio.to_thread(wait_until, lambda: has_kernels(next_server), WAIT)
    page = Page(next_server, kernel)
    assert await asyncio.wait_for(page.value("x + 1"), WAIT) == "42" and node_of(kernel) == there
    await page.close()
    next_server.request("DELETE", f"kernels/{kernel}")


def has_kernels(server: JupyterServer) -> bool:
    """Return whether the server has adopted kernels. The list of kernels fails while one of them starts."""
    with contextlib.suppress(urllib.error.HTTPError):
        return bool(server.request("GET", "kernels"))
    return False


def start(start_server: Callable[..., JupyterServer], engine: str) -> JupyterServer:
    return start_server(engine=engine, nodes=list(NODES), addresses=dict.fromkeys(NODES, "127.0.0.1"))
