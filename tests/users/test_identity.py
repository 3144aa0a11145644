"""Tests of containers in which all users have the same uid: the socket or the cgroup identifies the user."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator.transport import peer_identity

from .conftest import ASK, Host

NAMES = ("ada", "bob")
UID = "carol"  # the user with the uid of all programs in containers, an admin on the host
CGROUPS = Path("/sys/fs/cgroup/unified")
SOCKETS = {name: f"/run/gpushare/users/{name}/coordinator.sock" for name in NAMES}

Inside = Callable[..., list[Any]]


def inside(host: Host, before: str, *requests: list[Any]) -> list[Any]:
    """Send requests from a container that the shell command `before` enters.

    Return the reason of each refusal or "", and last the viewer.
    """
    uid = host.uid(UID)
    enter = f'{before} && exec setpriv --reuid={uid} --regid={uid} --clear-groups -- "$@"'
    command = ("sh", "-ec", enter, "sh", sys.executable, "-c", ASK, json.dumps(requests))
    program = host.start("unshare", "--mount", "--propagation", "private", *command, env=host.environment(UID))
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, output
    result: list[Any] = json.loads(output.splitlines()[-1])
    return result


def check_separation(ask: Inside) -> None:
    """Check that two users with one uid cannot change each other's clients, with `ask(name, request…)`."""
    for name in NAMES:
        mine = ["Register", {"client": f"{name}s", "token": "t"}]
        assert ask(name, mine) == ["", {"user": name, "admin": False}]
    for name, other in (NAMES, NAMES[::-1]):
        theirs: list[list[Any]] = [
            ["Register", {"client": f"{other}s", "token": "t"}],
            ["SetQuota", {"client": f"{other}s", "changes": {"limit": 0.5}}],
            ["Suspend", {"client": f"{other}s"}],
            ["Unregister", {"client": f"{other}s"}],
            ["Config", {"changes": {"time_quantum": 60}}],
        ]
        assert ask(name, *theirs)[:-1] == ["forbidden"] * 5
        mine = ["SetQuota", {"client": f"{name}s", "changes": {"limit": 0.7}}]
        assert ask(name, mine, ["SetQuota", {"client": f"{name}s", "changes": {"limit": 1.0}}])[:-1] == [
            "",
            "placement_failed",
        ]


def test_container_with_a_users_socket_is_that_user(bare_host: Host) -> None:
    bare_host.coordinator(settings=f'c.GpuShare.identity = "socket"\nc.GpuShare.sockets = {SOCKETS!r}\n')
    check_separation(
        lambda name, *asked: inside(bare_host, f"mount --bind /run/gpushare/users/{name} /run/gpushare", *asked)
    )
    tried = bare_host.run("bob", """
import os, socket
result = []
for path in paths:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        result.append("connected")
    except OSError as error:
        result.append(type(error).__name__)
""", paths=[*SOCKETS.values(), "/run/gpushare/coordinator.sock"])  # fmt: skip
    assert tried == ["PermissionError"] * 3, "programs on the host cannot use a container's socket"


@pytest.fixture
def cgroups() -> Iterator[dict[str, Path]]:
    """Yield one cgroup for each user, as a container engine makes them."""
    if not peer_identity._has_peer_pidfd():
        pytest.skip("needs Linux 6.5")
    root = next((folder for folder in (CGROUPS, CGROUPS.parent) if (folder / "cgroup.procs").exists()), None)
    if root is None:
        pytest.skip("needs cgroups of version 2")
    with contextlib.ExitStack() as stack:
        made = {}
        try:
            for name in NAMES:
                made[name] = root / f"gpushare-test-of-{name}"
                made[name].mkdir()
                stack.callback(made[name].rmdir)
        except OSError as error:
            pytest.skip(f"needs the right to make cgroups: {error}")
        yield made


def test_process_in_a_users_cgroup_is_that_user(cgroups: dict[str, Path], bare_host: Host) -> None:
    bare_host.coordinator(
        settings='c.GpuShare.identity = "cgroup"\nc.GpuShare.cgroup_user = "gpushare-test-of-([a-z]+)"\n'
    )
    check_separation(lambda name, *asked: inside(bare_host, f"echo $$ > {cgroups[name]}/cgroup.procs", *asked))
    output = bare_host.start(sys.executable, "-c", ASK, "[]", user="bob").communicate(timeout=60)[0]
    assert "Unreachable" in output or "closed" in output, "a process without a user's cgroup is refused"
    assert "names no user" in bare_host.log.read_text()
