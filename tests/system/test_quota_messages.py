"""Tests of messages about quotas with the shipped defaults: sizes, and the note on a share that turns ignore."""

from __future__ import annotations

from collections.abc import Callable

from .notebook_client import Notebook
from .system_host import SystemHost

IN_COLOCATION = "among colocated clients"


def output_of(notebook: Notebook, line: str) -> str:
    notebook.text = notebook.errors = ""
    notebook.finish(notebook.start(line))
    return notebook.text + notebook.errors


def test_a_quota_without_a_memory_limit_is_the_memory_of_the_device(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    notebook = start()
    for line in ("%gpushare quota", "print(get_ipython().run_line_magic('gpushare', 'status'))"):
        shown = output_of(notebook, line)
        assert "memory all of the device's (256 MiB)" in shown and "unlimited" not in shown
    typed = default_settings_host.command("quota", notebook.client_id).stdout
    assert "memory=none resident=none class=online; memory=none is all of the device's memory, 256 MiB" in typed


def test_ignored_share_has_a_note(default_settings_host: SystemHost, start: Callable[..., Notebook]) -> None:
    notebook = start()
    assert default_settings_host.command("config", "policy", "fcfs").returncode == 0
    answer = output_of(notebook, "%gpushare share=0.5")
    assert f"Note: share 0.5 counts in placement and {IN_COLOCATION}, not in turns: the policy fcfs" in answer
    typed = default_settings_host.command("quota", notebook.client_id, "share=0.4").stdout
    assert f"note: share 0.4 counts in placement and {IN_COLOCATION}, not in turns" in typed
    assert any("not in turns" in note for note in default_settings_host.clients()[notebook.client_id]["notes"])
    assert notebook.value("__import__('jupyter_gpushare').quota(share=0.3)['share']") == 0.3
    started = default_settings_host.command("run", "--share", "0.2", "--", "true").stderr
    assert started.startswith(f"gpushare: note: share 0.2 counts in placement and {IN_COLOCATION}, not in turns")

    assert default_settings_host.command("config", "sharing", "exclusive").returncode == 0
    answer = output_of(notebook, "%gpushare quota")
    assert "share 0.3 counts in placement, not in turns" in answer and IN_COLOCATION not in answer

    for policy in ("interactive", "fair"):
        assert default_settings_host.command("config", "policy", policy).returncode == 0
        assert "not in turns" not in output_of(notebook, "%gpushare share=0.5")
        assert default_settings_host.clients()[notebook.client_id]["notes"] == []
    assert default_settings_host.command("config", "policy", "best_effort").returncode == 0
    assert "share 0.5 counts in placement, not in turns: the policy best_effort" in output_of(
        notebook, "%gpushare quota"
    )


def test_default_share_has_no_note(default_settings_host: SystemHost, start: Callable[..., Notebook]) -> None:
    notebook = start()
    assert "Note" not in output_of(notebook, "%gpushare memory=128MiB")
    assert "note" not in default_settings_host.command("quota", notebook.client_id).stdout
