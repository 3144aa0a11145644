"""Test of notebooks without use for long: they are evicted, then suspended, and the next cell goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_gpushare.wire import messages

from .notebook_client import Notebook
from .system_host import SystemHost, wait_until
from .test_evict import FILL, FIRST

Start = Callable[..., Notebook]


def client_with(host: SystemHost, notebook: Notebook, **fields: Any) -> dict[str, Any]:
    """Return the client as the snapshot has it, once it has these values."""
    client: dict[str, Any] = {}

    def found() -> bool:
        client.update(host.clients()[notebook.client_id])
        return fields.items() <= client.items()

    wait_until(found)
    return client


def test_suspended_notebook_continues_with_its_memory(default_settings_host: SystemHost, start: Start) -> None:
    notebook = start()
    notebook.run("from gpu_program import *\n" + FILL + FIRST)
    client_with(default_settings_host, notebook, resident=64 << 20)
    default_settings_host.request(messages.Config(changes={"idle_evict": 1}))
    evicted = client_with(default_settings_host, notebook, evicted_by_policy=True, resident=0, phase="idle")
    assert evicted["allocated"] == 64 << 20
    assert "its memory has left the GPU" in evicted["notes"][0]

    default_settings_host.request(messages.Config(changes={"idle_suspend": 2}))
    assert (
        "suspended"
        in client_with(default_settings_host, notebook, phase="suspended", suspended_by_policy=True)["notes"][0]
    )
    default_settings_host.request(messages.Config(changes={"idle_evict": 0, "idle_suspend": 0}))

    assert notebook.value("[first(array) for array in arrays]") == [7.0] * 4
    resumed = client_with(
        default_settings_host, notebook, phase="idle", suspended=False, evicted_by_policy=False, resident=64 << 20
    )
    assert resumed["notes"] == []
