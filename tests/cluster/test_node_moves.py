"""Tests of `%gpushare move NODE`, with a Jupyter server, two nodes and an open page."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import time
import urllib.error
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.node.keeper import write_file

from ..support.polling import wait_until
from .conftest import NODES, WAIT, JupyterServer, separate_nodes
from .test_lost_nodes import Page, node_of

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


class Moving:
    """Kernel with an open page on the node `here`, which moves to the node `there`."""

    def __init__(self, server: JupyterServer, kernelspec: str = "remote") -> None:
        self.server = server
        self.kernel: str = server.request("POST", "kernels", {"name": kernelspec})["id"]
        self.here = node_of(self.kernel)
        self.there = NODES[1 - NODES.index(self.here)]
        self.page = Page(server, self.kernel)

    async def move(self, node: str = "") -> None:
        """Run the cell that moves the kernel until its reply, or until another kernel has answered."""
        self.page.printed = ""
        with contextlib.suppress(KeyError):  # the reply of a cell that ends with an error has no values
            await self.value("1", code=f"%gpushare move {node or self.there}")

    async def value(self, expression: str, code: str = "pass") -> str:
        return await asyncio.wait_for(self.page.value(expression, code=code), WAIT)

    async def is_on(self, node: str) -> None:
        await asyncio.to_thread(wait_until, lambda: node_of(self.kernel) == node, WAIT)

    def files(self, node: str) -> list[Path]:
        """Return the files of the kernel on a node, also while the node removes the files' folder."""
        folder = self.server.folder
        return [folder / file for file in glob(f"{node}/state/gpushare/*/kernels/{self.kernel}/*", root_dir=folder)]

    def lock_move(self) -> None:
        """Lock the move on both nodes, as the server does with its last requests before it saves the record."""
        renamed = {"move": "locked", "unconfirmed": "confirmed"}
        for path in [*self.files(self.here), *self.files(self.there)]:
            before, dash, move = path.name.partition("-")
            if before in renamed:
                path.rename(path.with_name(renamed[before] + dash + move))

    async def has_no_files(self, node: str) -> None:
        await asyncio.to_thread(wait_until, lambda: not self.files(node), WAIT)

    async def shows(self, sentence: str) -> None:
        """Assert that the page shows a sentence, also if the output of a cell comes after the cell's reply."""
        deadline = time.monotonic() + WAIT
        while sentence not in self.page.printed:
            assert time.monotonic() < deadline, f"{sentence!r} not in {self.page.printed!r}"
            await self.value("1")

    async def begin_slow_move(self, folder: Path) -> asyncio.Task[None]:
        """Move a kernel with a variable that loads until there is a file `go`, and return when it loads."""
        await self.value("1", code=SLOW.format(folder=str(folder)))
        moving = asyncio.ensure_future(self.move())
        await asyncio.to_thread(wait_until, lambda: moving.done() or (folder / "loads").exists(), WAIT)
        assert not moving.done(), self.page.printed
        return moving

    async def end(self, moving: asyncio.Task[None]) -> None:
        """Close the page of a kernel that has ended, or whose server has ended."""
        moving.cancel()
        await asyncio.wait([moving])
        await self.page.close()

    async def replace_server(self, server: JupyterServer) -> None:
        """Go on with a server that adopts the kernel."""
        self.server = server
        await asyncio.to_thread(wait_until, lambda: has_kernels(server), WAIT)
        self.page = Page(server, self.kernel)


def has_kernels(server: JupyterServer) -> bool:
    """Return whether the server has adopted kernels. The list of kernels fails while one of them starts."""
    with contextlib.suppress(urllib.error.HTTPError):
        return bool(server.request("GET", "kernels"))
    return False


def moving_kernel(server: JupyterServer, loop: asyncio.AbstractEventLoop) -> Iterator[Moving]:
    made = Moving(server)
    yield made
    loop.run_until_complete(made.page.close())
    with contextlib.suppress(OSError):
        made.server.request("DELETE", f"kernels/{made.kernel}")


@pytest.fixture
def moving(server: JupyterServer, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[Moving]:
    yield from moving_kernel(server, jp_asyncio_loop)


@pytest.fixture
def start(start_server: Callable[..., JupyterServer], tmp_path: Path) -> Callable[..., JupyterServer]:
    """Return a function that starts a server of the test's own, with more settings."""
    return functools.partial(start_server, **separate_nodes(tmp_path))


@pytest.fixture
def moving_on_own_server(
    start: Callable[..., JupyterServer], jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Iterator[Moving]:
    """Return a kernel whose server the test kills."""
    yield from moving_kernel(start(), jp_asyncio_loop)


async def test_the_variables_move_with_the_kernel_under_an_open_page(moving: Moving) -> None:
    await moving.value("1", code=VARIABLES)
    await moving.move()
    await moving.shows(f"This kernel moves to {moving.there} with 7 variables")
    await moving.shows("Not taken along: stream (TypeError: cannot pickle 'generator' object")
    await moving.is_on(moving.there)
    value = "[next_number(), same is numbers, point.x, type(point) is Point, system.sep, 'stream' in globals()]"
    found = await moving.value(value, code="numbers.append(7); step = 3")
    assert found == "[10, True, 3, True, '/', False]", "functions and classes of the notebook belong to it as before"
    await moving.shows(f"gpushare: this kernel has moved from {moving.here} to {moving.there}, with 7 variables")
    assert moving.server.request("GET", f"gpushare/api/kernels/{moving.kernel}")["node"] == moving.there
    await moving.has_no_files(moving.here)


async def test_a_kernel_moves_back_and_a_restart_has_no_variables(moving: Moving) -> None:
    page = moving.page
    await moving.value("1", code="import os, zlib; large = os.urandom(9 << 20); crc = zlib.crc32(large)")
    for node in (moving.there, moving.here):
        await moving.move(node)
        await moving.is_on(node)
        assert await moving.value("[len(large) >> 20, zlib.crc32(large) == crc]") == "[9, True]"
        assert "large" in await moving.value("get_ipython().run_line_magic('who_ls', '')", code="")
    await asyncio.to_thread(moving.server.request, "POST", f"kernels/{moving.kernel}/restart")
    page.printed = ""
    await page.close()
    assert await moving.value("'large' in globals()") == "False"
    assert "moved" not in page.printed and node_of(moving.kernel) == moving.here


async def test_a_variable_that_cannot_be_loaded_leaves_the_kernel_with_all(moving: Moving, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("class Thing: pass\n")
    code = f"import sys; sys.path.append({str(tmp_path / 'lib')!r}); import only_here; del sys"
    await moving.value("1", code=f"{code}\nthing = only_here.Thing(); pair = [thing]; x = 41; del only_here")
    await moving.move()
    await moving.shows(f"This kernel moves to {moving.there} with 3 variables")
    reasons = (
        "thing (ModuleNotFoundError: No module named 'only_here'); pair (GpuShareError: shares objects with thing)"
    )
    stays = f"this kernel stays on {moving.here} with its variables: {moving.there}"
    await moving.shows(f"{stays}: variables cannot be loaded there: {reasons}")
    assert await moving.value("[x, pair[0] is thing, type(thing).__name__]") == "[41, True, 'Thing']"
    assert node_of(moving.kernel) == moving.here
    await moving.has_no_files(moving.there)
    await moving.value("1", code="del thing, pair")
    await moving.move()
    await moving.is_on(moving.there)
    assert await moving.value("x") == "41"


async def test_files_keep_their_contents(moving: Moving, tmp_path: Path) -> None:
    """A file of mode `w` that the new kernel opened again would be emptied, also by a move that is refused later."""
    for name in ("closed", "open", "read"):
        (tmp_path / name).write_text("before")
    code = f"""
class Unloaded:
    def __reduce__(self):
        return int, ("no number",)
unloaded = Unloaded()
with open({str(tmp_path / "closed")!r}, "w") as closed:
    closed.write("result")
opened = open({str(tmp_path / "open")!r}, "w")
print("result", file=opened, flush=True, end="")
read = open({str(tmp_path / "read")!r})
log = [closed]
x = 41
"""
    await moving.value("1", code=code)
    for is_refused in (True, False):
        await moving.move()
        for name in ("closed", "opened", "read"):
            await moving.shows(f"Not taken along: {name} (a file)")
        await moving.shows("Not taken along: log (contains a file)")
        if is_refused:
            await moving.shows("unloaded (ValueError: invalid literal")
            assert await moving.value("[opened.closed, x]", code="del unloaded") == "[False, 41]"
        else:
            await moving.is_on(moving.there)
            assert await moving.value("['closed' in globals(), x]") == "[False, 41]"
        contents = {name: (tmp_path / name).read_text() for name in ("closed", "open", "read")}
        assert contents == {"closed": "result", "open": "result", "read": "before"}


async def test_a_move_without_sense_changes_nothing(moving: Moving) -> None:
    """An unknown node counts as a device, and the coordinator names the allowed ones."""
    here, there = moving.here, moving.there
    await moving.value("1", code="x = 41")
    refused = {
        here: f"this kernel runs on {here} already",
        "nosuch": "device='nosuch' does not exist: allowed are ",
        f"{there} # away": f"(other nodes: {there})",
        f"{there}\ny = 1": f"%gpushare move {there} must be the only line of its cell",
    }
    for line, sentence in refused.items():
        await moving.move(line)
        await moving.shows(sentence)
    await moving.move("0")
    await moving.shows("gets its device at its first CUDA call: there is nothing to move yet")
    assert "other nodes" not in moving.page.printed, "the error of a known device is not about nodes"
    await moving.value("1", code="import sys; sys.modules['dill'] = None")
    await moving.move()
    await moving.shows("needs the package dill")
    assert await moving.value("x + 1", code="") == "42" and node_of(moving.kernel) == here


async def test_a_kernel_whose_kernelspec_names_the_node_stays(server: JupyterServer) -> None:
    (file,) = server.folder.glob("jupyter/**/remote/kernel.json")
    spec = json.loads(file.read_text())
    spec["metadata"]["kernel_provisioner"]["config"] = {"node": NODES[0]}
    fixed = file.parent.with_name("fixed")
    fixed.mkdir()
    (fixed / "kernel.json").write_text(json.dumps(spec))
    moving = Moving(server, "fixed")
    assert moving.here == NODES[0]
    await moving.move()
    await moving.shows(f"{NODES[1]}: the kernelspec of the kernel names the node {NODES[0]}")
    await moving.page.close()
    server.request("DELETE", f"kernels/{moving.kernel}")


async def test_a_lost_node_leaves_the_kernel_with_its_variables(moving: Moving) -> None:
    await moving.value("1", code="x = 41")
    lost = moving.server.folder / f"{moving.there}.lost"
    lost.touch()
    try:
        for agent in moving.server.children("agent"):
            os.kill(agent, signal.SIGKILL)
        await moving.move()
        await moving.shows(f"this kernel stays on {moving.here} with its variables: {moving.there}: ")
        await moving.shows("no route to the host")
        assert await moving.value("x + 1") == "42" and node_of(moving.kernel) == moving.here
    finally:
        lost.unlink()
    await moving.move()
    await moving.is_on(moving.there)
    assert await moving.value("x + 1") == "42"


async def test_a_start_that_fails_leaves_the_kernel_and_nothing_on_the_other_node(
    start: Callable[..., JupyterServer],
) -> None:
    """Both nodes need the same five ports, so the second kernel finds none."""
    moving = Moving(start(ports="9610-9614"))
    await moving.value("1", code="x = 41")
    await moving.move()
    await moving.shows(f"{moving.there}: the node has no free port")
    assert await moving.value("x + 1") == "42"
    await moving.has_no_files(moving.there)
    here = moving.files(node_of(moving.kernel))
    assert not [path for path in here if "-" in path.name], "files of the move"
    await moving.page.close()


async def test_a_stop_while_the_variables_load_withdraws_the_move(moving: Moving, tmp_path: Path) -> None:
    move = await moving.begin_slow_move(tmp_path)
    await asyncio.to_thread(moving.server.request, "POST", f"kernels/{moving.kernel}/interrupt")
    await move
    await moving.shows(f"The move is withdrawn, and this kernel stays on {moving.here} with its variables.")
    assert await moving.value("x + 1") == "42"
    (tmp_path / "go").touch()
    await moving.has_no_files(moving.there)
    assert await moving.value("x + 1") == "42" and node_of(moving.kernel) == moving.here


async def test_a_kernel_that_dies_while_it_loads_leaves_the_old_one(moving: Moving, tmp_path: Path) -> None:
    move = await moving.begin_slow_move(tmp_path)
    (state,) = [path for path in moving.files(moving.there) if path.name == "state"]
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    await move
    await moving.shows(f"{moving.there}: the kernel has ended with status -9 while it loaded the variables")
    assert await moving.value("x + 1") == "42"
    await moving.has_no_files(moving.there)


async def test_a_locked_move_whose_server_has_broken_it_off_is_withdrawn(moving: Moving) -> None:
    await moving.value("1", code="x = 41")
    here = moving.files(moving.here)[0].parent
    there = Path(str(here).replace(f"/{moving.here}/", f"/{moving.there}/"))
    move = "0" * 16
    there.mkdir(parents=True, mode=0o700)
    (there / f"variables-{move}").touch()
    write_file(str(here / f"locked-{move}"), {"id": move, "node": moving.there, "size": 0})
    await moving.has_no_files(moving.there)
    await asyncio.to_thread(wait_until, (here / f"answer-{move}").exists, WAIT)
    answer = json.loads((here / f"answer-{move}").read_text())
    assert answer == {"state": "refused", "reason": f"{moving.there}: a Jupyter server has broken off the move"}
    assert await moving.value("x") == "41" and node_of(moving.kernel) == moving.here


@pytest.mark.parametrize("is_restart", [True, False])
async def test_a_restart_or_an_end_goes_before_a_move(moving: Moving, tmp_path: Path, is_restart: bool) -> None:
    move = await moving.begin_slow_move(tmp_path)
    if is_restart:
        await asyncio.to_thread(moving.server.request, "POST", f"kernels/{moving.kernel}/restart")
    else:
        await asyncio.to_thread(moving.server.request, "DELETE", f"kernels/{moving.kernel}")
        await moving.has_no_files(moving.here)
    await moving.end(move)
    await moving.has_no_files(moving.there)
    if is_restart:
        assert await moving.value("'x' in globals()") == "False"
        assert node_of(moving.kernel) == moving.here


@pytest.mark.parametrize("is_locked", [False, True])
async def test_a_server_that_is_killed_meanwhile_leaves_the_old_kernel(
    moving_on_own_server: Moving, start: Callable[..., JupyterServer], tmp_path: Path, is_locked: bool
) -> None:
    """Without a server, a new kernel whose move is locked goes on until its orphan timeout."""
    moving = moving_on_own_server
    move = await moving.begin_slow_move(tmp_path)
    if is_locked:
        moving.lock_move()
    await asyncio.to_thread(moving.server.kill)
    await moving.end(move)
    await moving.replace_server(await asyncio.to_thread(start))
    assert await moving.value("x + 1", code="") == "42" and node_of(moving.kernel) == moving.here
    await moving.has_no_files(moving.there)
    assert "does not move" not in moving.server.log.read_text(), "the next server has not begun the move again"
    (tmp_path / "go").touch()
    await moving.move()
    await moving.is_on(moving.there)
    assert await moving.value("[x, slow]") == "[41, 5]"


async def test_a_server_that_is_killed_afterwards_leaves_the_new_kernel(
    moving_on_own_server: Moving, start: Callable[..., JupyterServer]
) -> None:
    """The old kernel takes a long time to end, so that the server is killed before it has connected to the new one."""
    moving = moving_on_own_server
    await moving.value("1", code="import atexit, time; atexit.register(time.sleep, 600); x = 41")
    move = asyncio.ensure_future(moving.move())
    await moving.is_on(moving.there)
    await asyncio.to_thread(moving.server.kill)
    await moving.end(move)
    await moving.replace_server(await asyncio.to_thread(start))
    assert await moving.value("x + 1", code="") == "42" and node_of(moving.kernel) == moving.there
