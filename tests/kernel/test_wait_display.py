"""Tests of the wait display, which a kernel publishes under a cell that waits for the GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.kernel.wait_display import MIME_TYPE
from jupyter_gpushare.wire import messages

from ..support.polling import WAIT_SECONDS

SETUP = """
from jupyter_gpushare.demo.gpu import Gpu
gpu = Gpu()
array = gpu.full(1000, 0.0)
def work(seconds):
    gpu.work(array, seconds)
    gpu.synchronize()
work(0.01)
"""
BUSY = "while True: work(0.02)"
PROGRAM = """
import copy, nbclient, nbformat
from nbconvert.preprocessors import ExecutePreprocessor
busy = nbformat.read("work.ipynb", 4)
free = copy.deepcopy(busy)
ExecutePreprocessor().preprocess(busy)
nbformat.write(busy, "busy.ipynb")
nbclient.NotebookClient(free).execute()
nbformat.write(free, "free.ipynb")
"""
WAITS = re.compile(r"Waiting for the GPU: #1, about \d+ s \(one\.ipynb is running, (up to )?\d+ s left\)")


pytestmark = pytest.mark.usefixtures("own_device")


@pytest.fixture
def one(coordinator: Any, start: Any) -> Any:
    """Start a notebook that has used the device, under a policy without turns for short cells."""
    coordinator.set(policy="fcfs", sharing="exclusive")
    notebook = start(env={"JPY_SESSION_NAME": "one.ipynb"})
    assert notebook.run(SETUP).status == "ok"
    return notebook


@pytest.fixture
def two(one: Any, coordinator: Any, start: Any, wait_until: Any) -> Any:
    """Start another notebook while the first one keeps the device busy until an interrupt."""
    notebook = start(env={"JPY_SESSION_NAME": "two.ipynb"})
    assert notebook.run(SETUP).status == "ok"
    keep_busy(coordinator, one, wait_until)
    return notebook


def keep_busy(coordinator: Any, notebook: Any, wait_until: Any) -> None:
    notebook.kernel.execute(BUSY)
    wait_until(lambda: phase(coordinator, notebook) == "running")


def phase(coordinator: Any, notebook: Any) -> str:
    return str(coordinator.clients()[notebook.manager.kernel_id]["phase"])


def outputs(notebook: Any, request: str, until: Callable[[list[dict[str, Any]]], Any] = lambda _: False) -> Any:
    """Return the output messages of a request until its end, or until `until(messages)` is true."""
    received: list[dict[str, Any]] = []
    while not until(received):
        message = notebook.kernel.get_iopub_msg(timeout=WAIT_SECONDS)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
        if message["msg_type"] not in ("status", "execute_input"):
            received.append(message)
    return received


def text(message: dict[str, Any]) -> str:
    return str(message["content"].get("data", {}).get("text/plain", ""))


def ask(notebook: Any, code: str, **options: Any) -> str:
    return str(notebook.kernel.execute(code, **{"allow_stdin": True, **options}))


def test_waiting_cell_shows_the_running_client(coordinator: Any, one: Any, two: Any) -> None:
    request = ask(two, "print('begins'); work(0.01); print('ends')")
    received = outputs(two, request, lambda received: len(received) >= 3)
    first, *updates = received[1:]
    assert first["msg_type"] == "display_data" and WAITS.fullmatch(text(first)), text(first)
    data = first["content"]["data"]
    assert "<script" not in data["text/html"] and 'role="img"' in data["text/html"]
    assert data[MIME_TYPE]["state"] == "waiting" and data[MIME_TYPE]["queue_position"] == 1
    assert {one["msg_type"] for one in updates} == {"update_display_data"}
    one.manager.interrupt_kernel()
    received += outputs(two, request)
    displays = [message for message in received if message["msg_type"].endswith("display_data")]
    assert len({message["content"]["transient"]["display_id"] for message in displays}) == 1
    assert re.fullmatch(r"waited \d+ s for the GPU", text(displays[-1]))
    assert displays[-1]["content"]["data"][MIME_TYPE]["state"] == "ended"
    assert [message["msg_type"] for message in displays].count("display_data") == 1
    streams = "".join(one["content"]["text"] for one in received if one["msg_type"] == "stream")
    assert streams == "begins\nends\n"


def test_captured_output_is_not_disturbed(coordinator: Any, one: Any, two: Any) -> None:
    code = "%%capture captured\nimport contextlib, io\nprint('a')\nto = io.StringIO()\n"
    code += "with contextlib.redirect_stdout(to):\n    print('b')\n    work(0.01)\nprint('c')"
    request = ask(two, code)
    outputs(two, request, lambda received: any(WAITS.fullmatch(text(one)) for one in received))
    one.manager.interrupt_kernel()
    assert text(outputs(two, request)[-1]).startswith("waited")
    assert two.value("[captured.stdout, captured.stderr, len(captured.outputs), to.getvalue()]") == [
        "a\nc\n",
        "",
        0,
        "b\n",
    ]


def test_an_interrupted_wait_leaves_one_line(coordinator: Any, one: Any, two: Any) -> None:
    coordinator.request(messages.Config(changes={"time_quantum": 60.0}))  # the wait does not end by itself
    request = ask(two, "work(0.01)")
    outputs(two, request, lambda received: received)
    two.manager.interrupt_kernel()
    last = outputs(two, request)
    assert text([message for message in last if message["msg_type"] == "update_display_data"][-1]).startswith(
        "stopped waiting for the GPU after "
    )
    assert two.value("1 + 1") == 2


def test_suspended_kernel_shows_how_to_resume(coordinator: Any, two: Any) -> None:
    client = two.manager.kernel_id
    assert two.run("%gpushare suspend").status == "ok"
    request = ask(two, "work(0.01)")
    (shown,) = outputs(two, request, lambda received: received)
    assert "suspended" in text(shown) and "%gpushare resume" in text(shown)
    assert f"jupyter gpushare resume {client}" in text(shown)
    coordinator.request(messages.Resume(client=client))
    outputs(two, request, lambda received: any(WAITS.fullmatch(text(one)) for one in received))


def test_outputs_of_programs_do_not_depend_on_waits(
    coordinator: Any, one: Any, tmp_path: Path, wait_until: Any
) -> None:
    cells = [SETUP, "print('a')\nwork(0.01)\n'b'", "%%gpushare class=offline\nwork(0.01)\n1"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell, id=f"c{number}") for number, cell in enumerate(cells)],
        metadata={"kernelspec": {"name": "python3-gpushare", "display_name": "", "language": "python"}},
    )
    nbformat.write(notebook, tmp_path / "work.ipynb")
    keep_busy(coordinator, one, wait_until)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path) as process:
        wait_until(lambda: [known for known in coordinator.clients().values() if known["wait_seconds"] > 2.2], 60)
        one.manager.interrupt_kernel()
        assert process.wait(WAIT_SECONDS) == 0
    busy, free = (nbformat.read(tmp_path / f"{name}.ipynb", 4) for name in ("busy", "free"))
    done = [[cell.outputs for cell in ran.cells] for ran in (busy, free)]
    assert done[0] == done[1]
    assert [len(outputs) for outputs in done[1]] == [0, 2, 1]
