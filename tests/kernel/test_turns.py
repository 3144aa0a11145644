"""Notebooks that share the simulated device: what their users notice of each other's cells."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from .programs import SETUP

pytestmark = pytest.mark.usefixtures("own_device")


@pytest.fixture
def notebooks(coordinator: Any, start: Any) -> tuple[Any, Any]:
    """Two notebooks with the device initialised, in that order."""
    pair = start(env={"JPY_SESSION_NAME": "one.ipynb"}), start(env={"JPY_SESSION_NAME": "two.ipynb"})
    for notebook in pair:
        ran = notebook.run(SETUP)
        assert ran.status == "ok", ran
    return pair


def phase(coordinator: Any, notebook: Any) -> str:
    return str(coordinator.clients()[notebook.manager.kernel_id]["phase"])


def test_release_gives_up_the_turn(coordinator: Any, notebooks: tuple[Any, Any], eventually: Any) -> None:
    one, other = notebooks
    one.kernel.execute("work(0.01)\n%gpushare release\nimport time\nwhile True: time.sleep(0.01)")
    began = time.monotonic()
    assert other.run("work(0.01)").status == "ok"
    assert time.monotonic() - began < 5
    one.manager.interrupt_kernel()


def test_status_tells_who_waits(coordinator: Any, notebooks: tuple[Any, Any], eventually: Any, tmp_path: Path) -> None:
    one, other = notebooks
    one.kernel.execute("import os\nwhile not os.path.exists('go'): work(0.02)\n%gpushare")
    eventually(lambda: phase(coordinator, one) == "running")
    other.kernel.execute("work(0.01)")
    eventually(lambda: phase(coordinator, other) == "waiting")
    (tmp_path / "go").touch()
    message = {"msg_type": ""}
    while message["msg_type"] != "display_data":
        message = one.kernel.get_iopub_msg(timeout=20)
    text = message["content"]["data"]["text/plain"]
    assert re.search(r"state +running · up to \d+ s left", text), text
    assert "running  one.ipynb (this kernel)" in text and "#1  waiting  two.ipynb" in text
    assert "imulated" in text
