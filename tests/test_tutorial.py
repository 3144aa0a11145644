"""Every command of the tutorial, as it is written there, in its order: in a shell, and in two notebooks.

Left out are those that need a GPU (their twins for the simulated device are run), and the installation.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking import BlockingKernelClient
from traitlets.config import Config

from jupyter_gpushare import environment
from jupyter_gpushare.config import GpuShare

from .support import waiting

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^(?:<!-- (?P<where>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.S | re.M)
TOKEN = "tutorial"
until = functools.partial(waiting.until, seconds=60.0)


class Block(NamedTuple):
    where: str
    language: str
    text: str


def blocks() -> list[Block]:
    found = BLOCK.finditer(TUTORIAL.read_text())
    return [Block(one["where"] or "shell", one["language"], one["text"].strip()) for one in found]


class Notebook:
    """A notebook that the server has open."""

    def __init__(self, connection_file: Path) -> None:
        self._kernel = BlockingKernelClient(connection_file=str(connection_file))
        self._kernel.load_connection_file()
        self._kernel.start_channels()
        until(self._ready)

    def _ready(self) -> bool:
        try:
            self._kernel.wait_for_ready(timeout=60)
        except RuntimeError:  # it does not answer yet, which a client without a manager takes for the kernel's end
            return False
        return True

    def run(self, code: str) -> str:
        """What a cell shows; it must not fail."""
        shown: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text", "") + content.get("data", {}).get("text/plain", ""))

        reply = self._kernel.execute_interactive(code, timeout=60, output_hook=hear, allow_stdin=False)
        assert reply["content"]["status"] == "ok", (code, reply["content"])
        return "".join(shown)

    def begin(self, code: str) -> None:
        self._kernel.execute(code)

    def close(self) -> None:
        self._kernel.stop_channels()


class Reader:
    """Does what the tutorial says, on a host of its own."""

    def __init__(self, home: Path, own_host: Path) -> None:
        self.home = home
        self.shown: list[tuple[Block, str]] = []
        self.notebooks: dict[str, Notebook] = {}
        left_out = ("JUPYTER_", "GPUSHARE_", "IPYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self.env = kept | {
            "HOME": str(home),
            "COLUMNS": "200",
            "JUPYTER_PATH": os.pathsep.join(filter(None, [str(home / "share"), os.environ.get("JUPYTER_PATH")])),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "GPUSHARE_SOCKET": str(own_host / "run" / "tutorial.sock"),
            "GPUSHARE_LOCK_DIR": str(own_host / "locks"),
            "GPUSHARE_SIM_STATE": str(home / "devices"),
        }
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
                notebook.begin(block.text)
            else:
                shown = notebook.run(block.text)
        self.shown.append((block, shown))

    def saw(self, command: str) -> str:
        """All that was shown by the blocks in which a command is."""
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
            self.notebooks[name] = Notebook(self.home / "runtime" / f"kernel-{kernel}.json")
        return self.notebooks[name]

    def _api(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self._url}api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def close(self) -> None:
        for notebook in self.notebooks.values():
            notebook.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait(20)


# What is to be seen of a command, wherever it stands.
SHOWN = [
    ("doctor --simulate", ["ok  driver: simulated driver", "kernels: shared: python3-gpushare"]),
    ("print(gpu.name)", ["Simulated GPU"]),
    ("x.wrong(1 + launches)", ["0 wrong elements"]),
    ("%gpushare", ["train.ipynb", "imulated"]),
    ("jupyter gpushare status", ["train.ipynb", "explore.ipynb", "suspended"]),
    ("%gpushare quota", ["memory 800 MiB", "share 0.3"]),
    ("gpushare quota explore.ipynb", ["share=0.4"]),
    ("%gpushare hold", ["keep"]),
    ("%gpushare release", ["."]),
    ("jupyter gpushare suspend", ["gets no turns", "takes part again"]),
    ("%gpushare history", ["waited"]),
    ("GpuShareView", ["GpuShareView: "]),
    ("time_quantum 5", ["time_quantum", "5"]),
]


@pytest.fixture
def reader(own_host: Path, tmp_path: Path) -> Iterator[Reader]:
    kernels = tmp_path / "share" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "python3-gpushare").symlink_to(environment.PACKAGE / "kernelspec" / "python3-gpushare")
    one = Reader(tmp_path, own_host)
    yield one
    one.close()


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.text.splitlines()[-1])
def test_every_block_says_where_it_runs(block: Block) -> None:
    python = r"settings|in (train|explore)\.ipynb(, goes on)?"
    assert re.fullmatch(python if block.language == "python" else "shell|server|install|needs a GPU", block.where)


@pytest.mark.timeout(300)
def test_each_step_works_and_shows_what_it_is_about(reader: Reader) -> None:
    for block in blocks():
        reader.does(block)
    for command, words in SHOWN:
        for word in words:
            assert word in reader.saw(command), command


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", TUTORIAL.read_text())
    assert [link for link in links if not link.startswith("https:") and not (TUTORIAL.parent / link).exists()] == []


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
