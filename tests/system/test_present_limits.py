"""Tests of what limits a client under the shipped defaults, in the snapshot and by `%gpushare why`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_gpushare.wire import messages

from ..support.polling import wait_until
from .notebook_client import Notebook
from .system_host import SystemHost

TIME_LIMIT = "no turn: it has run for as long as the limit of its quota allows so far"
SUSPENDED = "no turn: it is suspended"


def client_with(host: SystemHost, name: str, *reasons: str) -> dict[str, Any] | None:
    """Return the client if it has limits with these reasons and no others."""
    client = host.clients()[name]
    return client if [limit["reason"] for limit in client["limits"]] == [*reasons] else None


def test_a_notebook_that_has_used_up_its_limit_has_the_reason(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """The work is in a thread, so that the kernel can run `%gpushare why` while the work waits."""
    host, notebook = default_settings_host, start()
    assert client_with(host, notebook.client_id)
    notebook.run("%gpushare limit=0.05")
    notebook.run("def work_in_thread(): cuda.make_current(); work(600)")
    notebook.run("threading.Thread(target=work_in_thread, daemon=True).start()")
    client = wait_until(lambda: client_with(host, notebook.client_id, "time_limit"))
    assert client["limit_text"] == TIME_LIMIT
    wait_until(lambda: f"This kernel is limited: {TIME_LIMIT}" in notebook.run("%gpushare why"))


def test_a_suspended_notebook_has_the_reason(default_settings_host: SystemHost, start: Callable[..., Notebook]) -> None:
    host, notebook = default_settings_host, start()
    assert "suspended" not in notebook.run("%gpushare why")
    host.request(messages.Suspend(client=notebook.client_id))
    client = client_with(host, notebook.client_id, "suspended")
    assert client and client["limit_text"] == SUSPENDED
    assert SUSPENDED in notebook.run("%gpushare why")
    host.request(messages.Resume(client=notebook.client_id))
    assert SUSPENDED not in notebook.run("%gpushare why")
