"""Tests of the paths of the coordinator's socket and of lock files, and of folders that are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from jupyter_gpushare.wire import address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUSHARE_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(address, "SYSTEM_SOCKET", str(tmp_path / "system.sock"))


def test_socket_path_follows_the_documented_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = str(tmp_path / "gpushare" / "coordinator.sock")
    assert address.socket_path() == own
    with socket.socket(socket.AF_UNIX) as system:
        system.bind(address.SYSTEM_SOCKET)
        assert address.socket_path() == own, "it does not answer"
        system.listen()
        assert address.socket_path() == address.SYSTEM_SOCKET
        monkeypatch.setenv("GPUSHARE_SOCKET", "/environment.sock")
        assert address.socket_path() == "/environment.sock"
        assert address.socket_path("unix:/explicit.sock") == "/explicit.sock"


def test_runtime_directory_defaults_to_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "/nonexistent/folder"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert address.runtime_directory() == Path(f"/tmp/gpushare-{os.getuid()}")


@pytest.mark.parametrize("path", ["relative", "./relative", "unix:relative", "~/socket", "tcp://host:1"])
def test_relative_paths_are_refused(path: str) -> None:
    with pytest.raises(address.BadAddress, match="is not an absolute path"):
        address.socket_path(path)


def test_the_length_limit_is_the_kernel_s_in_bytes(tmp_path: Path) -> None:
    longest = "/tmp/" + "x" * (address.MAX_SOCKET_PATH - 5)
    assert address.socket_path(longest) == longest
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(FileNotFoundError):
        probe.connect(longest)
    for too_long in (longest + "x", "/tmp/" + "é" * 52):
        with pytest.raises(address.BadAddress, match="exceeds 107 bytes"):
            address.socket_path(too_long)


def test_a_private_directory_is_made_or_checked(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    address.make_private_directory(made)
    assert made.stat().st_mode & 0o777 == 0o700
    address.make_private_directory(made)
    for mode in (0o770, 0o702):
        made.chmod(mode)
        with pytest.raises(PermissionError, match="no other user may write to"):
            address.make_private_directory(made)


def test_link_to_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError):
        address.make_private_directory(tmp_path / "link")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to make a directory of another user")
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PermissionError, match=f"must be a directory that belongs to uid {os.getuid()}"):
        address.make_private_directory(tmp_path / "theirs")


def test_is_accepting_detects_a_listening_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert not address.is_accepting(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert not address.is_accepting(path)
        listener.listen(0)
        for _ in range(3):  # the listener accepts no connection, so its queue is soon full
            assert address.is_accepting(path)
    assert not address.is_accepting(path), "a stale socket"


def test_state_is_kept_per_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert address.state_directory() == tmp_path / "gpushare" / socket.gethostname()


def test_lock_directory_follows_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSHARE_LOCK_DIR", raising=False)
    assert address.lock_directory() == Path("/dev/shm/gpushare")
    monkeypatch.setenv("GPUSHARE_LOCK_DIR", "/elsewhere")
    assert address.lock_directory() == Path("/elsewhere")
