"""Tests of `GpuShareView()` in real kernels, with a page in place of a front end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("own_device")

VIEW = "import jupyter_gpushare as gs\nview = gs.GpuShareView()\nview"

WORK = """
from jupyter_gpushare.demo.gpu import Gpu
import os, time
gpu = Gpu()
array = gpu.full(4 << 20, 0.0)
def work_until(name):
    while not os.path.exists(name):
        gpu.work(array, 0.02)
"""


def threads(notebook: Any) -> list[str]:
    names = notebook.value("[t.name for t in __import__('threading').enumerate()]")
    return [name for name in names if name == "gpushare-view"]


def sockets(notebook: Any) -> int:
    links = []
    for descriptor in os.listdir(f"/proc/{notebook.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # The kernel has closed the descriptor.
            links.append(os.readlink(f"/proc/{notebook.pid}/fd/{descriptor}"))
    return sum(link.startswith("socket:") for link in links)


@pytest.fixture
def notebook(coordinator: Any, start: Any) -> Any:
    started = start(env={"JPY_SESSION_NAME": "one.ipynb"})
    assert started.run("import ipywidgets, jupyter_gpushare.widgets").status == "ok"
    return started


def test_view_updates_while_cells_run(coordinator: Any, notebook: Any, start: Any, page: Any, tmp_path: Any) -> None:
    coordinator.set(policy="fcfs", sharing="exclusive")
    other = start(env={"JPY_SESSION_NAME": "two <b>.ipynb"})
    for one in (notebook, other):
        assert one.run(WORK).status == "ok"
    seen = page(notebook)
    assert "GpuShareView: " in notebook.run(VIEW).displays[0]["text/plain"]
    seen.wait_for_text("GPU: idle", "Simulated GPU", "class online", "no client runs or waits")
    notebook.kernel.execute("work_until('one-done')")
    seen.wait_for_text("GPU: running", "(this kernel)", "A cell is running")
    other.kernel.execute("work_until('two-done')")
    seen.wait_for_text("#1", "two &lt;b&gt;.ipynb", "s left")
    (tmp_path / "one-done").touch()
    seen.wait_for_text("GPU: idle", "two &lt;b&gt;.ipynb")
    notebook.kernel.execute("work_until('one-done'); gpu.work(array, 0.02)")
    seen.wait_for_text("GPU: #1 in queue")
    (tmp_path / "two-done").touch()
    seen.wait_for_text("GPU: idle", "no client runs or waits")


@pytest.fixture
def seen(notebook: Any, page: Any) -> Any:
    """Open a page with the view on a notebook that has memory on the GPU."""
    opened = page(notebook)
    assert notebook.run(WORK).status == "ok"
    notebook.run(VIEW)
    return opened


@pytest.fixture
def client(coordinator: Any, notebook: Any) -> Callable[[], Any]:
    """Return a function that returns the notebook's client in the present snapshot."""
    return lambda: coordinator.clients()[notebook.manager.kernel_id]


def test_button_executes_its_action(notebook: Any, seen: Any, client: Callable[[], Any]) -> None:
    seen.wait_for_text("GPU: idle")  # a hold that begins in a turn reads "held · 5 min left"
    seen.press("Hold the GPU")
    seen.wait_for_text("held for ", "keep")
    seen.press("No longer")
    seen.wait_for_text("This kernel no longer holds the GPU")
    seen.press("Move Memory off the GPU")
    seen.wait_for_text("memory of this kernel (17 MiB) moves off the GPU and returns with the next turn")
    seen.wait_until(lambda: client()["resident"] == 0)
    seen.press("Suspend GPU Use")
    seen.wait_for_text("GPU: suspended", "its next GPU call waits until you resume the kernel")
    seen.wait_until(lambda: seen.enabled_buttons() == {"Resume GPU Use", "Change GPU Quota"})
    seen.press("Resume GPU Use")
    seen.wait_for_text("This kernel takes turns again", "GPU: idle")
    notebook.run("gpu.work(array, 0.02)\nview.actions.buttons['release'].click()")
    seen.wait_for_text("This kernel gives up the rest of its turn")
    seen.press("Hold the GPU")
    seen.wait_until(lambda: "Give Up the GPU Turn" in seen.enabled_buttons())


def test_a_quota_is_checked_and_changed(seen: Any, client: Callable[[], Any]) -> None:
    seen.wait_for_text("GPU: ")
    seen.fill("share", "2")
    seen.fill("memory", "lots")
    seen.wait_for_text(
        "share=2 is out of range: allowed is a fraction from 0 to 1", "memory: &#x27;lots&#x27; is not a size"
    )
    seen.press("Change GPU Quota")
    seen.fill("memory", "128MiB")
    assert client()["quota"]["share"] == 0 and client()["quota"]["memory"] is None
    seen.fill("share", "30%")
    seen.press("Change GPU Quota")
    seen.wait_for_text("The quota is now: share 0.3, limit 1, memory 128 MiB")
    assert (client()["quota"]["share"], client()["quota"]["memory"]) == (0.3, 128 << 20)
    seen.fill("memory", "1MiB")
    seen.press("Change GPU Quota")
    seen.wait_for_text('role="alert"', "allocated")  # the coordinator's own message
    assert client()["quota"]["memory"] == 128 << 20


def test_view_shows_the_outage_and_return_of_the_coordinator(coordinator: Any, notebook: Any, page: Any) -> None:
    seen = page(notebook)
    notebook.run(VIEW)
    seen.wait_for_text("GPU: idle")
    coordinator.end()
    seen.wait_for_text("GPU: sharing service unavailable", "take turns by themselves")
    seen.wait_until(lambda: seen.enabled_buttons() == set())
    coordinator.start()
    seen.wait_for_text("GPU: idle")
    seen.wait_until(lambda: "Suspend GPU Use" in seen.enabled_buttons())


def test_closed_view_leaves_no_models(notebook: Any, page: Any) -> None:
    seen = page(notebook)
    before = sockets(notebook)
    for how in ("view.close()\nview.close()", "import ipywidgets; ipywidgets.Widget.close_all()", "from the front end"):
        notebook.run(VIEW)
        seen.wait_for_text("GPU: idle")
        assert threads(notebook) and sockets(notebook) > before
        if how == "from the front end":
            seen.shut(notebook.value("view.model_id"))
        else:
            assert notebook.run(how).status == "ok"
        seen.wait_until(lambda: not seen.models)
        seen.wait_until(lambda: threads(notebook) == [] and sockets(notebook) == before)


def test_hidden_view_has_no_subscription(notebook: Any, page: Any) -> None:
    seen = page(notebook)
    notebook.run("import jupyter_gpushare as gs, ipywidgets\nfor _ in range(3):\n    view = gs.GpuShareView()")
    assert threads(notebook) == []
    seen.wait_until(lambda: "connecting to the coordinator" in seen.text)
    notebook.run("ipywidgets.HBox([view])")
    assert threads(notebook) == []
    view = notebook.value("view.model_id")
    seen.wait_until(lambda: view in seen.models)
    seen.set(view, _view_count=1)
    seen.wait_for_text("GPU: idle")
    assert threads(notebook) == ["gpushare-view"]


def test_view_subscribes_only_while_shown(notebook: Any, page: Any) -> None:
    seen = page(notebook)
    notebook.run(VIEW)
    seen.wait_for_text("GPU: idle")
    view = notebook.value("view.model_id")
    for shown, following in ((1, 1), (2, 1), (1, 1), (0, 0), (1, 1)):
        seen.set(view, _view_count=shown)
        seen.wait_until(lambda following=following: len(threads(notebook)) == following)
    notebook.run("%gpushare quota share=0.25")
    seen.wait_for_text("share 0.25")


def test_unshared_kernel_shows_a_message(start: Any, page: Any) -> None:
    notebook = start("python3")
    seen = page(notebook)
    notebook.run(VIEW)
    seen.wait_for_text("This kernel does not share the GPU", "Python 3 (shared GPU)")
    assert threads(notebook) == [] and seen.enabled_buttons() == set()
    assert notebook.run("view").displays[0]["text/plain"] == "GpuShareView: this kernel does not share the GPU"


def test_without_ipywidgets_the_extra_is_named(start: Any) -> None:
    notebook = start("python3")
    ran = notebook.run(
        "import sys; sys.modules['ipywidgets'] = None\nfrom jupyter_gpushare.widgets import GpuShareView"
    )
    assert ran.reply["ename"] == "ImportError" and "jupyter-gpushare[widgets]" in ran.reply["evalue"]
