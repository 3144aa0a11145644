"""Tests of `import jupyter_gpushare as gs` in a kernel, in a script, and in a program that does not share its GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jupyter_gpushare as gs
from jupyter_gpushare.wire import messages


@pytest.fixture
def notebook(coordinator: Any, start: Any) -> Any:
    notebook = start(env={"JPY_SESSION_NAME": "train.ipynb"})
    assert notebook.run("import jupyter_gpushare as gs").status == "ok"
    return notebook


def test_api_works_in_a_kernel(coordinator: Any, notebook: Any) -> None:
    assert notebook.value("gs.quota(memory='8GiB', share=0.5, service='offline')") == {
        "share": 0.5,
        "limit": 1.0,
        "memory": 8 << 30,
        "resident": None,
        "service": "offline",
    }
    assert coordinator.clients()[notebook.manager.kernel_id]["quota"]["memory"] == 8 << 30
    assert notebook.value("gs.quota(memory=None, class_='online')['memory']") is None
    device = coordinator.request(messages.Status())["devices"][0]["memory_total"]
    assert notebook.value("gs.quota(resident=0.5)['resident']") == device // 2
    assert notebook.value("gs.quota(resident=None)['service']") == "online"
    assert 290 < notebook.value("gs.hold('5min')") <= 300
    assert notebook.value("[gs.release(), gs.release()]") == [True, False]
    assert notebook.value("gs.hold(0)") is None
    assert notebook.value("[gs.release(), gs.evict(), gs.suspend(), gs.suspend(), gs.resume()]") == [
        False,
        0,
        True,
        False,
        True,
    ]
    assert notebook.value("[gs.status().own['label'], gs.status().problem]") == ["train.ipynb", ""]
    (data,) = notebook.run("gs.status()").displays
    assert "train.ipynb" in data["text/plain"] and "train.ipynb" in data["text/html"]
    assert notebook.value("[one['what'] for one in gs.history().entries]")[-1:] == ["cell_started"]


def test_errors_share_a_base_class_and_list_the_allowed_values(coordinator: Any, notebook: Any) -> None:
    code = """
    def error(call):
        try:
            call()
        except gs.GpuShareError as error:
            return [type(error).__name__, str(error), getattr(error, "reason", "")]
    """
    notebook.run(__import__("textwrap").dedent(code))
    kind, text, _ = notebook.value("error(lambda: gs.quota(shares=1))")
    assert kind == "UsageError" and "allowed are share, limit, memory, resident, class" in text
    kind, text, _ = notebook.value("error(lambda: gs.quota(**{'class': 'vip'}))")
    assert (kind, text) == ("UsageError", "class='vip' is unknown: allowed are online, offline")
    kind, text, reason = notebook.value("error(lambda: gs.quota(share=2))")
    assert (kind, reason) == ("Refused", "invalid") and "from 0 to 1" in text
    kind, text, reason = notebook.value("error(lambda: gs.hold('5h'))")
    assert kind == "Refused" and "0 to 600 seconds" in text
    for value in ("float('nan')", "10**400", "True", "[1]"):
        for call in (f"gs.hold({value})", f"gs.quota(memory={value})"):
            kind, text, _ = notebook.value(f"error(lambda: {call})")
            assert (kind, "neither a finite number nor a text" in text) == ("UsageError", True), call
    coordinator.end()
    notebook.run("import sys; sys.modules['_gpushare_kernel.session'].active_session.connection._argv = []")
    kind, text, _ = notebook.value("error(gs.release)")
    assert kind == "Unreachable" and coordinator.socket in text


def test_numbers_of_numpy_are_numbers(coordinator: Any, notebook: Any) -> None:
    assert notebook.run("import numpy as np").status == "ok"
    assert notebook.value("gs.quota(share=np.float32(0.5), memory=np.int64(8 << 30))['share']") == 0.5
    assert notebook.value("gs.quota()['memory']") == 8 << 30
    assert 0 < notebook.value("gs.hold(np.int32(60))") <= 60


def test_api_works_in_a_script(coordinator: Any, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import jupyter_gpushare as gs\nprint(gs.quota(share=0.25)['share'], gs.status().own['label'])"
    )
    run = [sys.executable, "-m", "jupyter_gpushare", "run", "--", sys.executable, "job.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0.25 job.py\n", "")


def test_api_without_sharing_raises_not_shared(no_coordinator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gs.NotShared, match="this program does not share its GPU: it was not started by"):
        gs.quota()
    assert "no coordinator answers" in gs.status().problem
    monkeypatch.delenv("GPUSHARE_SOCKET")
    assert "this program does not share its GPU" in gs.status().problem
    assert "jupyter gpushare run" in gs.status().problem


def test_import_loads_no_submodule() -> None:
    code = (
        "import sys, jupyter_gpushare; print(*[name for name in sys.modules if name.startswith('jupyter_gpushare.')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "\n"
    assert {name for name in dir(gs) if not name.startswith("_")} == set(gs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gs.nothing  # noqa: B018
