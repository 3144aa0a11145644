"""Tests of the audit log: its records of changes, its bounds, and files that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator.storage import audit_log
from jupyter_gpushare.coordinator.storage.audit_log import AuditLog
from jupyter_gpushare.wire import messages

from .conftest import CoordinatorProcess, ProcessFactory


class AdminConnection:
    user, uid, pid, admin = "ada", 1000, 17, True


def entries(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "audit.log").read_text().splitlines()]


def test_every_change_is_recorded(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory, folder: Path
) -> None:
    state = folder / "state"
    idle_coordinator.start(f"--CoordinatorApp.state_directory={state}")
    processes("a")
    request = idle_coordinator.request
    request(messages.SetQuota(client="a", changes={"limit": 0.5}))
    request(messages.SetQuota(client="a"))
    request(messages.Config(changes={"cell_linger": 1}))
    request(messages.Config())
    request(messages.Suspend(client="a"))
    request(messages.Suspend(client="a"))
    request(messages.Resume(client="a"))
    request(messages.Hold(client="a", seconds=30))
    request(messages.Release(client="a"))
    request(messages.Release(client="a"))
    request(messages.Device(device="GPU-00000000-fake", failed="hot"))
    request(messages.Stop())
    assert idle_coordinator.wait() == 0
    found = entries(state)
    assert {(entry["user"], entry["uid"], entry["pid"]) for entry in found} == {
        (str(os.getuid()), os.getuid(), os.getpid())
    }
    assert [entry["what"] for entry in found] == [
        "quota",
        "settings",
        "suspend",
        "resume",
        "hold",
        "release",
        "device",
        "stop",
    ]
    quota, settings, suspend, resume, hold, release, device, _ = found
    assert (quota["subject"], quota["old"]["limit"], quota["new"]["limit"]) == ("a", 1.0, 0.5)
    assert (settings["old"], settings["new"]) == ({"cell_linger": 0.05}, {"cell_linger": 1.0})
    assert (suspend["new"], resume["new"]) == ({"suspended": True}, {"suspended": False})
    assert hold["old"] is None and 29 < hold["new"] <= 30
    assert (release["old"], release["new"]) == ({"turn": False, "hold": True}, {"turn": False, "hold": False})
    assert (device["subject"], device["old"], device["new"]) == ("GPU-00000000-fake", "", "hot")
    assert all(entry["when"][:2] == "20" for entry in found)
    assert stat.S_IMODE((state / "audit.log").stat().st_mode) == 0o600


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 2000)
    record = AuditLog(tmp_path)
    for number in range(200):
        record.record(AdminConnection(), "quota", "a", number, number + 1)  # type: ignore[arg-type]
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]
    assert all(file.stat().st_size < 2400 for file in files)
    assert json.loads(files[1].read_text().splitlines()[-1])["new"] in (199, 200) or files[0].stat().st_size


def test_unwritable_audit_log_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("a file")
    record = AuditLog(tmp_path / "state")
    for number in range(3):
        record.record(AdminConnection(), "quota", "a", number, number + 1)  # type: ignore[arg-type]
    assert len(caplog.records) == 1 and "cannot record changes in the audit log" in caplog.text


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "target")
    AuditLog(tmp_path).record(AdminConnection(), "quota", "a", 0, 1)  # type: ignore[arg-type]
    assert not (tmp_path / "target").exists()


def test_many_changes_of_one_user_keep_the_records_of_others(tmp_path: Path) -> None:
    class UserConnection(AdminConnection):
        user, admin = "bob", False

    now = 0.0
    record = AuditLog(tmp_path, lambda: now)
    for number in range(audit_log.MAX_CHANGES + 50):
        record.record(UserConnection(), "quota", "b", number, number + 1)  # type: ignore[arg-type]
    record.record(AdminConnection(), "quota", "a", 0, 1)  # type: ignore[arg-type]
    found = entries(tmp_path)
    assert len(found) == audit_log.MAX_CHANGES + 1
    assert (found[-2]["user"], found[-2]["what"], found[-1]["user"]) == ("bob", "too many changes", "ada")
    now = audit_log.WINDOW_SECONDS
    record.record(UserConnection(), "quota", "b", 0, 1)  # type: ignore[arg-type]
    assert len(entries(tmp_path)) == audit_log.MAX_CHANGES + 2


def test_a_disk_that_becomes_full_leaves_no_half_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = AuditLog(tmp_path)
    record.record(AdminConnection(), "quota", "a", 0, 1)  # type: ignore[arg-type]
    size = (tmp_path / "audit.log").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        record.record(AdminConnection(), "quota", "a", 1, 2)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    record.record(AdminConnection(), "quota", "a", 2, 3)  # type: ignore[arg-type]
    assert [entry["new"] for entry in entries(tmp_path)] == [1, 3]
    assert "No space left" in caplog.text
