"""Tests that an idle notebook hibernates: its process leaves the device, and returns with the notebook's next cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.wire import messages

from ..support.polling import wait_until
from ..system.notebook_client import Notebook, kernel_starter
from ..system.test_hibernation import LAST, state
from .card_host import GIB, IS_GPU, MIB, WAIT, CardHost

SIZE = GIB if IS_GPU else 64 * MIB
ARRAY = f"""
import ctypes
size = {SIZE}
array = cuda.alloc(size)[1]
check(cuda.launch("fill_f32", array, 7.0, size // 4))
check(cuda.cuCtxSynchronize())
"""


@pytest.fixture
def start(host: CardHost) -> Iterator[Callable[..., Notebook]]:
    with kernel_starter() as start_kernel:
        yield start_kernel


def test_an_idle_notebook_leaves_the_card_and_returns(
    host: CardHost,
    start: Callable[..., Notebook],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "swap")
    host.start_coordinator()
    witness = host.card_program("")
    free_before = witness.run("cuda.info()[0]")
    notebook = start()
    notebook.run(ARRAY)
    host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(lambda: state(host, notebook.client_id) == "hibernated", WAIT)
    host.request(messages.Config(changes={"hibernate_after": 0}))
    client = host.clients()[notebook.client_id]
    assert (client["resident"], client["context_memory"]) == (0, 0)
    left = free_before - witness.run("cuda.info()[0]")
    assert left <= 64 * MIB
    began = time.monotonic()
    notebook.run("check(cuda.cuStreamQuery(None))", WAIT)
    record_property("return_s", round(time.monotonic() - began, 3))
    notebook.run(LAST, WAIT)
    record_property("hibernated_bytes", client["hibernated"])
    record_property("left_on_the_card_bytes", left)
    assert notebook.value("value.value") == 8.0
