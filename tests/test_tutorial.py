"""Tests of the tutorial: every command in its order, in a shell and in two notebooks.

The test omits the installation and the commands that need a GPU; it runs their variants for the simulated device.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from jupyter_gpushare.config.traits import GpuShare

from .hub.hub import http_request
from .provisioner.conftest import Notebook
from .support import fresh_user, polling

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial" / "two-notebooks.md"
BLOCK = re.compile(r"^(?:<!-- (?P<where>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.S | re.M)
TOKEN = "tutorial"
until = functools.partial(polling.wait_until, seconds=60.0)


class Block(NamedTuple):
    where: str
    language: str
    text: str


def blocks() -> list[Block]:
    found = BLOCK.finditer(TUTORIAL.read_text())
    return [Block(one["where"] or "shell", one["language"], one["text"].strip()) for one in found]


def opened(connection_file: Path) -> Notebook:
    """Return a notebook that is open in the server."""
    kernel = BlockingKernelClient(connection_file=str(connection_file))
    kernel.load_connection_file()
    kernel.start_channels()

    def ready() -> bool:
        try:
            kernel.wait_for_ready(timeout=60)
        except RuntimeError:  # the kernel does not answer yet, which a client without a manager takes for its end
            return False
        return True

    until(ready)
    return Notebook(KernelManager(), kernel)


class Reader:
    """Reader of the tutorial, who runs its blocks on a host of their own."""

    def __init__(self, home: Path, own_host: Path) -> None:
        self.home = home
        self.shown: list[tuple[Block, str]] = []
        self.notebooks: dict[str, Notebook] = {}
        self.env = fresh_user.fresh_environment(home, own_host) | {"COLUMNS": "200"}
        self._server: subprocess.Popen[str] | None = None
        self._url = ""

    def does(self, block: Block) -> None:
        where, _, how = block.where.partition(", ")
        shown = ""
        if where == "shell":
            shown = self._shell(block.text)
        elif where == "server":
            self._serve(block.text)
        elif where.startswith("in "):
            notebook = self._notebook(where.removeprefix("in "))
            if how:
                notebook.send(block.text)
            else:
                ran = notebook.run(block.text, timeout=60)
                assert ran.status == "ok", (block.text, ran)
                shown = ran.stdout + "".join(data["text/plain"] for data in ran.displays)
        self.shown.append((block, shown))

    def saw(self, command: str) -> str:
        """Return the output of all blocks that contain a command."""
        return "\n".join(shown for block, shown in self.shown if command in block.text)

    def _shell(self, text: str) -> str:
        ran = subprocess.run(["bash", "-ec", text], env=self.env, cwd=self.home, text=True, capture_output=True)
        assert ran.returncode == 0, (text, ran.stdout, ran.stderr)
        return ran.stdout

    def _serve(self, text: str) -> None:
        more = f" --no-browser --allow-root --port=0 --log-level=ERROR --IdentityProvider.token={TOKEN}"
        self._server = subprocess.Popen(["bash", "-c", f"exec {text}{more}"], env=self.env, cwd=self.home, text=True)
        info = until(lambda: list((self.home / "runtime").glob("jpserver-*.json")))[0]
        self._url = until(lambda: json.loads(info.read_text() or "{}").get("url"))
        until(self._answers)
        names = [spec["spec"]["display_name"] for spec in self._api("kernelspecs")["kernelspecs"].values()]
        assert "Python 3 (shared GPU)" in names

    def _answers(self) -> bool:
        with contextlib.suppress(urllib.error.URLError):
            return bool(self._api("status"))
        return False

    def _notebook(self, name: str) -> Notebook:
        if name not in self.notebooks:
            body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3-gpushare"}}
            kernel = self._api("sessions", body)["kernel"]["id"]
            self.notebooks[name] = opened(self.home / "runtime" / f"kernel-{kernel}.json")
        return self.notebooks[name]

    def _api(self, path: str, body: Any = None) -> Any:
        return http_request(f"{self._url}api/{path}", TOKEN, "GET" if body is None else "POST", body)

    def close(self) -> None:
        for notebook in self.notebooks.values():
            notebook.kernel.stop_channels()
        if self._server is not None:
            self._server.terminate()
            self._server.wait(60)


# Texts in the output of a command, in any block.
EXPECTED = [
    ("doctor --simulate", ["ok  driver: simulated driver", "kernels: shared: python3-gpushare"]),
    ("print(gpu.name)", ["Simulated GPU"]),
    ("x.wrong(1 + launches)", ["0 wrong elements"]),
    ("%gpushare", ["train.ipynb", "imulated"]),
    ("jupyter gpushare status", ["train.ipynb", "explore.ipynb", "suspended"]),
    ("%gpushare quota", ["memory 800 MiB", "share 0.3"]),
    ("gpushare quota explore.ipynb", ["share=0.4"]),
    ("%gpushare hold", ["keep"]),
    ("%gpushare release", ["."]),
    ("jupyter gpushare suspend", ["gets no turns", "takes turns again"]),
    ("%gpushare history", ["waited"]),
    ("GpuShareView", ["GpuShareView: "]),
    ("time_quantum 5", ["time_quantum", "5"]),
]


@pytest.fixture
def reader(own_host: Path, tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path, own_host)
    yield one
    one.close()


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.text.splitlines()[-1])
def test_every_block_has_its_location(block: Block) -> None:
    python = r"settings|in (train|explore)\.ipynb(, goes on)?"
    assert re.fullmatch(python if block.language == "python" else "shell|server|install|needs a GPU", block.where)


@pytest.mark.timeout(300)
def test_each_step_runs_with_the_documented_output(reader: Reader) -> None:
    for block in blocks():
        reader.does(block)
    for command, texts in EXPECTED:
        for text in texts:
            assert text in reader.saw(command), command


def test_the_installation_names_extras_that_exist() -> None:
    (command,) = [block.text for block in blocks() if block.where == "install"]
    extras = re.findall(r"\w+", re.search(r"\[(.*)\]", command)[1])  # type: ignore[index]
    metadata = (ROOT / "pyproject.toml").read_text()
    assert extras and all(re.search(rf"^{extra} = \[", metadata, re.M) for extra in extras)


def test_settings_are_accepted() -> None:
    (text,) = [block.text for block in blocks() if block.where == "settings"]
    config = Config()
    exec(text, {"c": config})
    settings = GpuShare(config=config)
    assert (settings.time_quantum, settings.policy) == (5.0, "fair")
