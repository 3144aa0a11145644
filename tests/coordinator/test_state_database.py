"""Tests of the file of the state store: any version, corrupt, on a full disk, or unusable."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from jupyter_gpushare.coordinator.storage import state_database, state_store
from jupyter_gpushare.coordinator.storage.state_database import (
    MIGRATIONS,
    ClientRecord,
    DatabaseCorrupt,
    DatabaseUnusable,
    StateDatabase,
    hash_token,
)
from jupyter_gpushare.coordinator.storage.state_store import StateStore
from jupyter_gpushare.coordinator.storage.usage_record import UsageKey, UsageOwner, UsageTotals
from jupyter_gpushare.wire import messages

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until
from .test_restart_recovery import RECORD, file_of, reported_problems, stored_clients, take_turn, warnings

# Statements that create a file of each version; version 0 is an empty file.
_CLIENTS = f"""
    CREATE TABLE clients (
        id TEXT NOT NULL UNIQUE, user TEXT NOT NULL, token TEXT NOT NULL,
        quota TEXT NOT NULL, suspended INTEGER NOT NULL
    );
    INSERT INTO clients VALUES ('a', '1000', '{hash_token("secret")}', '{{"share": 0.5}}', 1);
"""
_USAGE = """
    CREATE TABLE usage (
        hour INTEGER NOT NULL, user TEXT NOT NULL, tenant TEXT NOT NULL, device TEXT NOT NULL,
        gpu_seconds REAL NOT NULL, busy_seconds REAL NOT NULL, wait_seconds REAL NOT NULL,
        waits INTEGER NOT NULL, turns INTEGER NOT NULL, evicted_bytes INTEGER NOT NULL, restored_bytes INTEGER NOT NULL,
        PRIMARY KEY (hour, user, tenant, device)
    ) WITHOUT ROWID;
    INSERT INTO usage VALUES (479999, '1000', '', 'GPU-1', 1.5, 0.5, 2.0, 3, 4, 5, 6);
"""
_ORPHANS = "ALTER TABLE usage ADD COLUMN orphans INTEGER NOT NULL DEFAULT 0;"
OF_VERSION = {0: "", 1: _CLIENTS, 2: _CLIENTS + _USAGE, 3: _CLIENTS + _USAGE + _ORPHANS}


def test_corrupt_file_is_set_aside(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    path = file_of(idle_coordinator)
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in (1, 2):
        path.write_bytes(b"scribble" * 4096)
        idle_coordinator.start()
        aside = path.with_name(f"{path.name}.broken-{number}")
        assert str(aside) in reported_problems(idle_coordinator)
        assert aside.read_bytes() == b"scribble" * 4096
        take_turn(idle_coordinator, processes)
        wait_until(lambda: "works" in stored_clients(idle_coordinator))
        assert len(warnings(idle_coordinator)) == number
        idle_coordinator.stop()


def test_unusable_state_path_is_reported_until_it_works(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """A directory at the path fails also for root, unlike a file mode."""
    path = file_of(idle_coordinator)
    path.mkdir(parents=True)
    idle_coordinator.start()
    assert "suspensions and usage: Is a directory" in reported_problems(idle_coordinator)
    take_turn(idle_coordinator, processes)
    path.rmdir()
    wait_until(lambda: not idle_coordinator.status()["coordinator"]["problems"])
    assert "works" in stored_clients(idle_coordinator), "a change during the failure was lost"
    assert len(warnings(idle_coordinator)) == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state.db").symlink_to(tmp_path / "target")
    with pytest.raises(DatabaseUnusable, match="symbolic links"):
        StateDatabase(tmp_path / "state.db").clients()
    assert not (tmp_path / "target").exists()


def test_state_file_of_a_later_version_is_left_unchanged(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    path = file_of(idle_coordinator)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(f"CREATE TABLE new (x); PRAGMA user_version = {len(MIGRATIONS) + 1};")
    before = path.read_bytes()
    idle_coordinator.start()
    assert "a later coordinator has written the file" in reported_problems(idle_coordinator)
    take_turn(idle_coordinator, processes)
    assert not idle_coordinator.request(messages.Usage(since=3600.0))["complete"]
    assert len(warnings(idle_coordinator)) == 1
    idle_coordinator.stop()
    assert path.read_bytes() == before, "the file of a later version was changed"


@pytest.mark.parametrize("version", OF_VERSION)
def test_migration_keeps_the_stored_state(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript(f"{OF_VERSION[version]} PRAGMA user_version = {version};")
    file = StateDatabase(path)
    assert file.clients() == ({"a": RECORD} if version >= 1 else {})
    owner = UsageOwner("1000", "", "GPU-1")
    used = UsageTotals(1.5, 0.5, 2.0, 3, 4, 5, 6)
    assert file.usage(0, "") == ({owner: used} if version >= 2 else {})
    file.write({"b": RECORD}, {UsageKey(480_000, owner): used})
    file.close()
    assert "b" in StateDatabase(path).clients() and owner in StateDatabase(path).usage(480_000, "")
    with contextlib.closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_migration_from_every_version_is_tested() -> None:
    assert list(OF_VERSION) == list(range(len(MIGRATIONS) + 1)), "add the statements for a file of the new version"


def test_full_disk_during_a_migration_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(f"{OF_VERSION[1]} PRAGMA user_version = 1;")
        (pages,) = old.execute("PRAGMA page_count").fetchone()
        old.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            state_database._migrate(old, 1)
    assert StateDatabase(path).clients() == {"a": RECORD}


@pytest.mark.parametrize(
    "script",
    [
        "PRAGMA user_version = 2;",  # no tables
        "CREATE TABLE clients (id TEXT NOT NULL UNIQUE);",  # tables of no version
        "CREATE TABLE clients (id, user); CREATE TABLE usage (hour); PRAGMA user_version = 2;",
        "PRAGMA user_version = -1;",
    ],
)
def test_foreign_file_is_set_aside(tmp_path: Path, script: str) -> None:
    """No retry could make such a file usable."""
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(script)
    file = StateDatabase(path)
    with pytest.raises(DatabaseCorrupt, match="broken-1"):
        file.write({"a": RECORD}, {})
    assert path.with_name("state.db.broken-1").exists()
    file.write({"a": RECORD}, {})
    assert file.clients() == {"a": RECORD}


def test_changes_during_a_full_disk_are_stored_later(tmp_path: Path) -> None:
    file = StateDatabase(tmp_path / "state.db")
    file.write({"a": RECORD}, {})
    with file._transaction() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DatabaseUnusable, match="full"):
        file.write({str(number): RECORD for number in range(1000)}, {})
    assert file.clients() == {"a": RECORD}
    file.write({str(number): RECORD for number in range(1000)}, {})
    assert len(file.clients()) == 1001


def test_folder_is_private(tmp_path: Path) -> None:
    StateDatabase(tmp_path / "gpushare" / "host" / "state.db").clients()
    assert stat.S_IMODE((tmp_path / "gpushare" / "host").stat().st_mode) == 0o700


def test_stored_clients_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_database, "MAX_CLIENTS", 3)
    file = StateDatabase(tmp_path / "state.db")
    for name in ("a", "b", "c", "a", "d"):
        file.write({name: RECORD}, {})
    assert set(file.clients()) == {"b", "c", "d"}
    file.write({"b": None}, {})
    assert set(file.clients()) == {"c", "d"}


def test_pending_clients_are_bounded_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "MAX_CLIENTS", 100)
    (tmp_path / "file").write_text("")
    store = StateStore(tmp_path / "file" / "state.db", lambda *_: None)
    store.save_client("stays", RECORD)
    for number in range(1000):
        store.save_client(str(number), RECORD)
        store.save_client(str(number), None)
    wait_until(lambda: bool(store.problems))
    store.close()
    assert "stays" in store._clients and len(store._clients) <= 101


def test_a_folder_that_cannot_be_written_delays_no_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = StateStore(tmp_path / "file" / "state.db", lambda *_: None)
    store.load(lambda _: None, wait=600.0)  # longer than a test may last
    wait_until(lambda: bool(store.problems))
    store.close()


def test_hanging_disk_delays_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_answers, loaded = threading.Event(), threading.Event()
    monkeypatch.setattr(StateDatabase, "clients", lambda file: disk_answers.wait(60) and {"a": RECORD})
    store = StateStore(tmp_path / "state.db", lambda call, *words: (call(*words), loaded.set()))
    found: list[dict[str, ClientRecord]] = []
    store.load(found.append, wait=0.01)
    store.save_client("b", RECORD)
    assert not found
    disk_answers.set()
    assert loaded.wait(60)
    assert found == [{"a": RECORD}]
    store.close()
    monkeypatch.undo()
    assert set(StateDatabase(tmp_path / "state.db").clients()) == {"b"}


def test_file_that_becomes_corrupt_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    file = StateDatabase(path)
    file.write({"a": RECORD}, {})
    file.close()
    path.write_bytes(path.read_bytes()[:100] + b"\0" * 8192)
    with pytest.raises(DatabaseCorrupt, match="broken-1"):
        file.clients()
    file.write({"b": RECORD}, {})
    assert set(file.clients()) == {"b"}
