"""Tests of the identification of users by uid, socket and cgroup, and of admins."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from traitlets.config import Config

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.tenant_lookup import TenantLookup
from jupyter_gpushare.coordinator.host import user_database
from jupyter_gpushare.coordinator.host.user_database import user_account
from jupyter_gpushare.coordinator.transport import peer_identity
from jupyter_gpushare.coordinator.transport.peer_identity import (
    IdentificationFailed,
    Identity,
    PeerIdentifier,
    cgroup_paths,
    user_from_cgroup,
)
from jupyter_gpushare.core.base.errors import Refused

ME = os.getuid()
POD = "0f6b1c2d_3e4f_4a5b_8c9d_0e1f2a3b4c5d"
CONTAINER = "6f" * 32
PATTERN = re.compile(GpuShare().cgroup_user)


def settings(**values: Any) -> GpuShare:
    return GpuShare(config=Config({"GpuShare": values}))


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """Provide one end of a connection whose other end is in this process."""
    own, other = socket.socketpair()
    with contextlib.closing(own), contextlib.closing(other):
        yield own


def test_a_peer_is_its_uid(connection: socket.socket) -> None:
    assert PeerIdentifier(settings()).identify(connection) == Identity(str(ME), True, os.getpid(), ME)


def test_user_of_a_per_user_socket_overrides_the_uid(connection: socket.socket) -> None:
    sockets = {"ada": "/run/gpushare/users/ada/c.sock"}
    identifier = PeerIdentifier(settings(identity="socket", sockets=sockets))
    assert identifier.identify(connection, "ada") == Identity("ada", False, os.getpid(), ME)
    named = PeerIdentifier(settings(identity="socket", sockets=sockets, admins=["ada"]))
    assert named.identify(connection, "ada").admin


@pytest.mark.skipif(not peer_identity._has_peer_pidfd(), reason="needs Linux 6.5")
def test_process_in_the_coordinators_cgroup_is_identified_by_uid(connection: socket.socket) -> None:
    assert PeerIdentifier(settings(identity="cgroup")).identify(connection) == Identity(str(ME), True, os.getpid(), ME)


@pytest.mark.skipif(not peer_identity._has_peer_pidfd(), reason="needs Linux 6.5")
def test_exited_process_has_no_user(tmp_path: Path) -> None:
    """The pid may belong to another process soon, or already."""
    identifier = PeerIdentifier(settings(identity="cgroup"))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        child = os.fork()
        if not child:
            socket.socket(socket.AF_UNIX).connect(str(tmp_path / "s"))
            os._exit(0)
        with contextlib.closing(listener.accept()[0]) as accepted:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            with pytest.raises(IdentificationFailed, match=f"process {child} .*connect again"):
                identifier.identify(accepted)
            os.waitpid(child, 0)
            with pytest.raises(IdentificationFailed, match=f"process {child} "):
                identifier.identify(accepted)


def test_cgroup_identity_is_refused_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_identity, "_has_peer_pidfd", lambda: False)
    with pytest.raises(Refused, match=r"needs Linux 6\.5 or newer.*allowed on this host are 'uid' and 'socket'"):
        PeerIdentifier(settings(identity="cgroup"))


@pytest.mark.parametrize(
    ("path", "user"),
    [
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-{CONTAINER}.scope", POD),
        (f"/kubepods/besteffort/pod{POD.replace('_', '-')}/{CONTAINER}", POD.replace("_", "-")),
        (f"/system.slice/docker-{CONTAINER}.scope", CONTAINER),
        (f"/docker/{CONTAINER}", CONTAINER),
        ("/system.slice/jupyter-ada.service", "ada"),
        ("/user.slice/user-1000.slice/session-3.scope", "1000"),
        # The user may have created the lower levels, so they do not count.
        (f"/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{CONTAINER}.scope", "1000"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter-ada.service", "1000"),
        (f"/system.slice/docker-{CONTAINER}.scope/user-0.slice/x", CONTAINER),
    ],
)  # fmt: skip
def test_users_in_cgroups(path: str, user: str) -> None:
    assert user_from_cgroup([path], PATTERN) == user


def test_cgroup_without_a_user_is_refused() -> None:
    with pytest.raises(IdentificationFailed, match=r"the cgroup /system\.slice/cron\.service names no user"):
        user_from_cgroup(["/system.slice/cron.service", "/"], PATTERN)
    with pytest.raises(IdentificationFailed, match=r"\(none\)"):
        user_from_cgroup([], PATTERN)


def test_version_2_counts_before_version_1() -> None:
    assert cgroup_paths("4:memory:/m\n1:name=systemd:/s\n0::/unified:with:colons\nnonsense\n") == (
        "/unified:with:colons",
        "/m",
        "/s",
    )


def test_admins_are_named_by_uid_name_and_group() -> None:
    me = pwd.getpwuid(ME)
    group = grp.getgrgid(me.pw_gid)
    for named in (
        {"admins": [me.pw_name]},
        {"admins": [str(ME)]},
        {"admin_groups": [group.gr_name]},
        {"admin_groups": [str(group.gr_gid)]},
    ):
        assert PeerIdentifier(settings(**named))._is_listed_admin(str(ME))
        assert not PeerIdentifier(settings(**named))._is_listed_admin("54321")
    assert not PeerIdentifier(settings())._is_listed_admin(str(ME))


def test_unknown_user_has_its_identifier_as_name() -> None:
    assert user_account("54321") == (("54321",), ())
    assert user_account("pod/../x") == (("pod/../x",), ())
    assert user_account("9" * 40) == (("9" * 40,), ())


def test_user_database_is_queried_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second query, a user would have no groups, and so no ceilings, until the coordinator's end."""
    user_database._look_up.cache_clear()
    lookup = TenantLookup({"mine": {"groups": [str(pwd.getpwuid(ME).pw_gid)]}})

    def out_of_reach(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    with monkeypatch.context() as context:
        context.setattr(pwd, "getpwuid", out_of_reach)
        assert lookup.tenant_of(str(ME)) == ""
    assert lookup.tenant_of(str(ME)) == ""  # no query yet, because each may hang
    later = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert lookup.tenant_of(str(ME)) == "mine"
