"""Tests of what another user of the node, and a recording of its network, can learn about a kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.node import kernel_folder

from .conftest import RemoteNotebook
from .packets import recorded_packets

SECRET_CELL = "'a text that only the two ends may read' * 100"
NOBODY = 65534
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture
def recording() -> Iterator[Callable[[], bytes]]:
    with recorded_packets() as packets:
        yield packets


@pytest.mark.parametrize("encryption", ["required", "off"])
def test_a_recording_has_no_text_of_a_cell(
    start_notebook: Callable[..., RemoteNotebook], recording: Callable[[], bytes], encryption: str
) -> None:
    """Without encryption the recording has the text, so the test would find it."""
    notebook = start_notebook(encryption=encryption)
    notebook.run(SECRET_CELL)
    notebook.manager.shutdown_kernel(now=True)
    assert (b"only the two ends may read" in recording()) == (encryption == "off")


def test_the_pipe_of_the_engine_has_neither_keys_nor_tokens(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path
) -> None:
    script = f'tee -a {tmp_path}/sent | "$@" | tee -a {tmp_path}/received'
    notebook = start_notebook(engine=f"sh -c '{script}' sh {{agent}}")
    info = notebook.manager.get_connection_info()
    token = notebook.value("__import__('os').environ['GPUSHARE_TOKEN']")
    recorded = (tmp_path / "sent").read_bytes() + (tmp_path / "received").read_bytes()
    assert b"gpushare-node" in recorded
    for secret in (info["key"], info["curve_secretkey"].encode(), token.encode()):
        assert secret not in recorded


def test_another_user_can_neither_read_nor_interrupt_the_kernel(
    start_notebook: Callable[..., RemoteNotebook],
) -> None:
    notebook = start_notebook()
    notebook.run("x = 41")
    (folder,) = kernel_folder.all_kernels()
    for path in (folder.path, folder.path.parent):
        assert path.stat().st_mode & 0o077 == 0
    for file in folder.path.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    pids = " ".join(map(str, folder.processes()))
    attack = f"for pid in {pids}; do kill -INT $pid && echo interrupted; done; cat {folder.connection_file}; echo end"
    done = subprocess.run(["sh", "-c", attack], user=NOBODY, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "end\n"
    assert notebook.value("x + 1") == 42
