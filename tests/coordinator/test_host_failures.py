"""Tests of failures of the host: a full disk, a read-only folder, a failing driver, and the use of the wall clock.

`docs/explanation/reliability.md` lists what is lost meanwhile.
"""

from __future__ import annotations

import ast
import contextlib
import os
import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import IN

from .conftest import CoordinatorProcess
from .protocol_process import UUID, ProtocolProcess, wait_until

PACKAGE = Path(sys.modules[messages.__name__].__file__ or "").parents[2]
# Files that may read the wall clock, with the purpose.
WALL_CLOCK = {
    "coordinator/monitoring/usage.py": "the hour of usage, and the age of usage, which decides on its deletion",
    "coordinator/config/settings_override.py": "the time since a coordinator was killed, across a start of the host",
    "coordinator/storage/audit_log.py": "the time of a change, which users read",
    "coordinator/clients/limit_times.py": "the time since which a limit is in force, which users read",
}

NVML = """
import sys
sys.path.insert(0, {root!r})
from tests.coordinator.fake_nvml import FileDrivenNvml
sys.modules[__name__] = FileDrivenNvml({file!r}, {uuid!r})
"""


def take_turns(coordinator: CoordinatorProcess, *names: str) -> None:
    """Let two clients have a turn, one after the other."""
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(closing(ProtocolProcess(coordinator.path, name))) for name in names)
        first.send_hello()
        first.run_turn()
        second.send_hello()
        second.start_waiting()
        wait_until(lambda: first.phase != IN)
        first.drain()
        second.wait_phase(IN)


def is_logged(coordinator: CoordinatorProcess, text: str) -> bool:
    return text in coordinator.log.read_text()


def test_full_disk_keeps_turns_going(coordinator: CoordinatorProcess) -> None:
    """A limit on file sizes stands for a full disk or a disk quota. The log cannot be written either."""
    take_turns(coordinator, "before", "as-well")
    _, hard = resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (0, hard))
    changed = coordinator.request(messages.Config(changes={"max_wait": 99.0}))
    assert changed["max_wait"] == 99.0
    take_turns(coordinator, "meanwhile", "too")
    resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (hard, hard))
    coordinator.request(messages.Config(changes={"max_wait": 98.0}))
    take_turns(coordinator, "afterwards", "again")
    assert '"max_wait": 98.0' in Path(coordinator.path + ".settings").read_text()


def test_settings_that_cannot_be_stored_apply_with_a_warning(coordinator: CoordinatorProcess) -> None:
    (Path(coordinator.path + ".settings.new")).mkdir()
    assert coordinator.request(messages.Config(changes={"max_wait": 99.0}))["max_wait"] == 99.0
    wait_until(lambda: is_logged(coordinator, "cannot write changed settings to"))


def test_coordinator_reports_an_unwritable_folder_and_ends(idle_coordinator: CoordinatorProcess, folder: Path) -> None:
    argv, reason = idle_coordinator.argv(), "Permission denied"
    if os.getuid() == 0:  # root may write to every folder, unless its file system is read-only
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        argv, reason = ["unshare", "--mount", "sh", "-c", script, str(folder), *argv], "Read-only file system"
        if subprocess.run([*argv[:5], str(folder), "true"], capture_output=True).returncode:
            pytest.skip("root may not mount here")
    folder.chmod(0o555)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    folder.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert f"the coordinator cannot serve {idle_coordinator.path}" in done.stderr and reason in done.stderr
    assert "Traceback" not in done.stderr


def test_only_listed_files_read_the_wall_clock() -> None:
    """A jump of the wall clock therefore changes no turn, deadline or heartbeat.

    `test_usage_accumulator.py` covers usage.
    """
    readers = set()
    for part in ("core", "coordinator", "wire"):
        for path in (PACKAGE / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                    "time.time",
                    "time.time_ns",
                    "datetime.now",
                ):
                    readers.add(str(path.relative_to(PACKAGE)))
    assert readers <= WALL_CLOCK.keys()


def test_driver_failure_hang_and_lost_device_keep_turns_going(
    idle_coordinator: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"

    def set_state(to: str) -> None:
        (tmp_path / "fresh").write_text(to)
        (tmp_path / "fresh").replace(state)

    set_state("well")
    (tmp_path / "pynvml.py").write_text(NVML.format(root=str(PACKAGE.parent), file=str(state), uuid=UUID))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    idle_coordinator.by_command_line = True  # a new interpreter imports the module above
    coordinator = idle_coordinator.start()
    (device,) = coordinator.status()["devices"]
    assert (device["memory_used"], device["memory_used_is_estimate"], device["failed"]) == (1 << 30, False, None)

    set_state("gone")
    wait_until(lambda: coordinator.status()["devices"][0]["memory_used"] == 0)
    take_turns(coordinator, "without", "it")
    assert coordinator.status()["devices"][0]["failed"] is None, "a failure of the library counts as one of the device"

    set_state("hangs")
    take_turns(coordinator, "during", "this")
    wait_until(lambda: is_logged(coordinator, "NVML has not answered"))
    assert coordinator.status()["devices"][0]["utilisation_is_estimate"]

    set_state("lost")
    wait_until(lambda: is_logged(coordinator, "NVML, which answers again"))
    wait_until(lambda: coordinator.status()["devices"][0]["failed"])
    assert coordinator.status()["devices"][0]["failed"] == "lost (error 15)"
    assert is_logged(coordinator, f"device {UUID}, which has failed: lost (error 15)")
    take_turns(coordinator, "there", "still")

    set_state("well")
    wait_until(lambda: coordinator.status()["devices"][0]["failed"] is None)
    assert is_logged(coordinator, f"device {UUID} again")
