"""Containers in which everybody has the same uid: users are told apart by their socket, or by their cgroup."""

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
UID = "carol"  # whose uid everybody has in every container; on the host it is an admin's
CGROUPS = Path("/sys/fs/cgroup/unified")
SOCKETS = {name: f"/run/gpushare/users/{name}/coordinator.sock" for name in NAMES}

Inside = Callable[..., list[Any]]


def inside(host: Host, before: str, *requests: list[Any]) -> list[Any]:
    """What comes of requests made in a container, entered by the shell words `before`; and last, who one is there."""
    uid = host.uid(UID)
    enter = f'{before} && exec setpriv --reuid={uid} --regid={uid} --clear-groups -- "$@"'
    words = ("sh", "-ec", enter, "sh", sys.executable, "-c", ASK, json.dumps(requests))
    program = host.start("unshare", "--mount", "--propagation", "private", *words, env=host.environment(UID))
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 0, said
    found: list[Any] = json.loads(said.splitlines()[-1])
    return found


def everybody_is_someone(ask: Inside) -> None:
    """By `ask(name, request…)`: two users, of one uid, and neither changes what is the other's."""
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
    everybody_is_someone(
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
    assert tried == ["PermissionError"] * 3, "on the host nobody comes in by a container's socket"


@pytest.fixture
def cgroups() -> Iterator[dict[str, Path]]:
    """One for each user, as a container's engine makes them."""
    if not peer_identity._has_peer_pidfd():
        pytest.skip("needs Linux 6.5")
    root = next((place for place in (CGROUPS, CGROUPS.parent) if (place / "cgroup.procs").exists()), None)
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
            pytest.skip(f"needs cgroups that it may make: {error}")
        yield made


def test_process_in_a_users_cgroup_is_that_user(cgroups: dict[str, Path], bare_host: Host) -> None:
    bare_host.coordinator(
        settings='c.GpuShare.identity = "cgroup"\nc.GpuShare.cgroup_user = "gpushare-test-of-([a-z]+)"\n'
    )
    everybody_is_someone(lambda name, *asked: inside(bare_host, f"echo $$ > {cgroups[name]}/cgroup.procs", *asked))
    said = bare_host.start(sys.executable, "-c", ASK, "[]", user="bob").communicate(timeout=60)[0]
    assert "Unreachable" in said or "closed" in said, "whom no cgroup names is sent away"
    assert "names no user" in bare_host.log.read_text()
