"""Tests of the coordinator of the whole host: users and admins, configuration by root, and systemd units."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator.config import system_config
from jupyter_gpushare.wire import address, messages

from ..coordinator.protocol_process import wait_until
from ..support import tier
from .conftest import COORDINATOR, MAX_CLIENTS, ROOT, SOCKET, Host, busy

TURN = 0.2  # seconds
TURNS = tier.strength(60, 600)
UNITS = ROOT / "jupyter_gpushare/share/systemd"

STATUS = """
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client
with Client(timeout=60) as client:
    status = client.request(messages.Status())
result = [client.path, status["viewer"], status["config"]["max_clients"]]
"""


def test_every_user_connects_and_only_named_users_are_admins(host: Host) -> None:
    for user, admin in (("ada", False), ("bob", False), ("carol", True)):
        assert host.run(user, STATUS) == [SOCKET, {"user": user, "admin": admin}, MAX_CLIENTS]
    assert stat.S_IMODE(Path(host.socket).stat().st_mode) == 0o666


def test_users_change_what_is_theirs_within_the_ceilings_and_all_of_it_is_recorded(host: Host) -> None:
    register: list[Any] = ["Register", {"client": "adas", "token": "t"}]
    assert host.ask("ada", register) == [""]
    every: list[list[Any]] = [
        ["SetQuota", {"client": "adas", "changes": {"limit": 0.5}}],
        ["Release", {"client": "adas"}],
        ["Hold", {"client": "adas", "seconds": 5}],
        ["Evict", {"client": "adas"}],
        ["Interrupt", {"client": "adas"}],
        ["Suspend", {"client": "adas"}],
        ["Resume", {"client": "adas"}],
        ["WaitStatus", {"client": "adas"}],
        ["Unregister", {"client": "adas"}],
        register,
        ["Config", {"changes": {"time_quantum": 60}}],
        ["Device", {"device": "d", "failed": "x"}],
        ["Stop", {}],
    ]
    assert set(host.ask("bob", *every)) == {"forbidden"}
    beyond: list[list[Any]] = [
        ["SetQuota", {"client": "adas", "changes": changes}]
        for changes in ({"limit": 1.0}, {"memory": "5GiB"}, {"memory": None})
    ]
    assert host.ask("ada", *beyond) == ["placement_failed"] * 3
    within: list[list[Any]] = [
        ["SetQuota", {"client": "adas", "changes": {"limit": 0.7, "memory": "1GiB"}}],
        ["Config", {"changes": {"tenants": {}}}],
    ]
    assert host.ask("ada", *within) == ["", "forbidden"]
    assert host.ask("carol", ["Suspend", {"client": "adas"}]) == [""]
    record = host.state / "audit.log"
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(entry["uid"], entry["what"]) for entry in entries] == [
        (host.uid("ada"), "quota"),
        (host.uid("carol"), "suspend"),
    ]
    assert (entries[0]["old"]["limit"], entries[0]["new"]["limit"]) == (0.9, 0.7)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert host.run("ada", f"import os\nresult = os.access({str(record)!r}, os.R_OK)") is False


def test_five_programs_of_one_user_get_as_much_time_as_one_of_another(bare_host: Host) -> None:
    """Under the shipped policy, with shorter turns, since the parts of users hold over many turns."""
    bare_host.coordinator(settings=f"c.GpuShare.time_quantum = {TURN}\n")
    clients = [("bob", "single"), *(("ada", f"one-of-five-{number}") for number in range(5))]
    programs = [busy(bare_host, user, client) for user, client in clients]

    def granted() -> dict[str, float]:
        return {one["id"]: one["gpu_seconds"] for one in bare_host.request(messages.Status())["clients"]}

    for program in programs:
        program.wait_for_event("begin")
    before = granted()

    def is_fair() -> bool:
        """Return whether the parts are equal after many turns; a process that has been stopped has a longer turn."""
        used = {client: seconds - before[client] for client, seconds in granted().items()}
        total = sum(used.values())
        return total >= TURNS * TURN and used["single"] / total == pytest.approx(0.5, abs=0.1)

    wait_until(is_fair, 10 * TURNS * TURN, lambda: f"{before}, then {granted()}")


def test_user_configuration_does_not_change_the_host_coordinator(bare_host: Host) -> None:
    """The coordinator of the host ignores the configuration in home directories."""
    home = bare_host.machine.users["gpushare"].home
    (home / ".jupyter").mkdir()
    (home / ".jupyter/jupyter_gpushare_config.py").write_text("c.GpuShare.max_clients = 77\n")
    bare_host.coordinator(environment={"JUPYTER_CONFIG_DIR": str(home / ".jupyter")})
    assert bare_host.run("ada", STATUS)[2] == MAX_CLIENTS


def complaint(host: Host, *command: str) -> str:
    """Return the output of a coordinator that does not start."""
    program = host.start(*(command or COORDINATOR), user="gpushare", env=host.service())
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 2
    return output


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_configuration_that_a_user_could_change_is_refused(bare_host: Host, what: str) -> None:
    bare_host.config.write_text("c.GpuShare.tenants = {}\n")
    os.chown(bare_host.config if what == "file" else bare_host.config.parent, bare_host.uid("ada"), -1)
    assert "only if it and every folder above belong to root" in complaint(bare_host)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("c.GpuShare.tenants = {", "never closed"),
        ("c.GpuShare.tenant = {}", "line 2: unknown setting c.GpuShare.tenant; did you mean c.GpuShare.tenants?"),
        ("c.GpuShar.tenants = {}", "line 2: unknown setting c.GpuShar; did you mean c.GpuShare?"),
        ("c.GpuShare.devices = {'0': {'colour': 'red'}}", "devices: 0: setting 'colour' is unknown: allowed are"),
    ],
)
def test_invalid_configuration_ends_the_coordinator(bare_host: Host, line: str, error: str) -> None:
    """A coordinator without its configuration would have no ceilings."""
    bare_host.config.write_text(f"c.ServerApp.port = 8888\n{line}\n")
    assert error in complaint(bare_host)


ACTIVATE = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen(64)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--system"])
"""


def test_the_socket_is_systemds_and_stays_when_it_ends(bare_host: Host) -> None:
    program = bare_host.start(sys.executable, "-c", ACTIVATE, SOCKET, user="gpushare", env=bare_host.service())
    wait_until(lambda: address.is_accepting(bare_host.socket))
    assert bare_host.run("ada", STATUS)[:2] == [SOCKET, {"user": "ada", "admin": False}]
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0, program.communicate()
    assert Path(bare_host.socket).exists()


def test_what_is_no_listening_socket_is_refused(bare_host: Host) -> None:
    code = ACTIVATE.replace("os.dup2(listener.fileno(), 3)", "os.dup2(os.open('/dev/null', os.O_RDWR), 3)")
    assert "descriptor 3 of LISTEN_FDS=1" in complaint(bare_host, sys.executable, "-c", code, SOCKET)


def test_the_units_are_what_systemd_takes(tmp_path: Path) -> None:
    for name in ("gpushare.service", "gpushare.socket"):
        text = (UNITS / name).read_text().replace("/opt/jupyter-gpushare/bin/jupyter-gpushare", "/bin/true")
        (tmp_path / name).write_text(text)
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("needs systemd-analyze")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ListenStream={SOCKET}" in (UNITS / "gpushare.socket").read_text()
    assert "coordinator --system" in (UNITS / "gpushare.service").read_text()


def test_group_writable_file_or_folder_is_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to own files as root")
    file = tmp_path / "jupyter_gpushare_config.py"
    system_config.check_owned_by_root(file)
    file.write_text("")
    system_config.check_owned_by_root(file)
    (tmp_path / "link.py").symlink_to(file)
    file.chmod(0o664)
    for name in ("jupyter_gpushare_config.py", "link.py"):
        with pytest.raises(system_config.NotOwnedByRoot, match="mode 664"):
            system_config.check_owned_by_root(tmp_path / name)


def test_unreadable_configuration_is_an_error(tmp_path: Path) -> None:
    """A coordinator without its configuration would have no ceilings."""
    if os.getuid() != 0:
        pytest.skip("needs root, to change its uid")
    (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        system_config.check_owned_by_root(tmp_path / "lost.py")
    for mode in (0o700, 0o600):
        tmp_path.chmod(mode)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                system_config.check_owned_by_root(tmp_path / "jupyter_gpushare_config.py")
        finally:
            os.seteuid(0)


def test_a_host_without_one_has_the_users_own(bare_host: Host) -> None:
    code = "from jupyter_gpushare.wire import address\nresult = address.socket_path()"
    assert bare_host.run("ada", code) == f"/tmp/gpushare-{bare_host.uid('ada')}/coordinator.sock"
    with socket.socket(socket.AF_UNIX) as left_over:  # a socket without a listener
        left_over.bind(bare_host.socket)
    assert bare_host.run("ada", code).startswith("/tmp/")
