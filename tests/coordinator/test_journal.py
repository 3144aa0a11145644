"""What is kept for a coordinator that comes later, and that nothing about its file stops sharing."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.coordinator import journal, journal_file
from jupyter_gpushare.coordinator.journal import Journal, path_of
from jupyter_gpushare.coordinator.journal_file import MIGRATIONS, Broken, ClientRecord, JournalFile, Unusable, hashed
from jupyter_gpushare.coordinator.tally import Key, Owner, Tally
from jupyter_gpushare.wire import address, messages

from .conftest import Connect, Coordinator, Processes, ask
from .fake_process import Connection, wait_for

RECORD = ClientRecord("1000", hashed("secret"), '{"share": 0.5}', True)


# What files of each version were like, by the statements that made them; 0: just made, and nothing in it yet.
_CLIENTS = f"""
    CREATE TABLE clients (
        id TEXT NOT NULL UNIQUE, user TEXT NOT NULL, token TEXT NOT NULL,
        quota TEXT NOT NULL, suspended INTEGER NOT NULL
    );
    INSERT INTO clients VALUES ('a', '1000', '{hashed("secret")}', '{{"share": 0.5}}', 1);
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
OF_VERSION = {0: "", 1: _CLIENTS, 2: _CLIENTS + _USAGE}


def file_of(coordinator: Coordinator) -> Path:
    return path_of(coordinator.path, address.state_directory())


def kept(coordinator: Coordinator) -> dict[str, ClientRecord]:
    """As another program reads it."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file_of(coordinator)}?mode=ro", uri=True)) as file:
            return {row[0]: ClientRecord(*row[1:]) for row in file.execute("SELECT * FROM clients")}
    except sqlite3.OperationalError:  # it has not been made yet
        return {}


def suspended(coordinator: Coordinator, client: str) -> bool:
    """As the journal knows it."""
    record = kept(coordinator).get(client)
    return bool(record and record.suspended)


@pytest.fixture
def kernels(coordinator: Coordinator) -> Iterator[Kernels]:
    made = Kernels(coordinator.path)
    yield made
    made.clean_up()


class Kernels:
    """Kernels that have not used CUDA yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._made: list[Connection] = []

    def __call__(self, client: str, token: str = "secret") -> Connection:
        connection = Connection(self._path)
        self._made.append(connection)
        connection.send({"type": "attach", "client": client, "token": token})
        assert (connection.receive() or {})["type"] == "welcome"
        return connection

    def clean_up(self) -> None:
        for connection in self._made:
            connection.close()


# --- what survives


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_without_gpu_processes_stays_suspended(
    coordinator: Coordinator, kernels: Kernels, processes: Processes, number: int
) -> None:
    kernels("a"), kernels("b")
    quota = coordinator.request(messages.SetQuota(client="a", changes={"share": 0.25, "memory": "3GiB"}))
    coordinator.request(messages.Suspend(client="a"))
    wait_for(lambda: suspended(coordinator, "a"))
    coordinator.end(number)
    coordinator.start()
    kernels("a"), kernels("b")
    client, other = coordinator.client("a") or {}, coordinator.client("b") or {}
    assert (client["suspended"], client["quota"]) == (True, quota)
    assert (other["suspended"], other["quota"]["memory"]) == (False, None)
    process = processes("a")
    process.wants()
    wait_for(lambda: (coordinator.client("a") or {})["phase"] == "suspended")
    assert process.orders.memory_limit == 3 << 30
    coordinator.request(messages.Resume(client="a"))
    wait_for(lambda: (coordinator.client("a") or {})["phase"] == "running")


def test_all_that_is_a_second_old_survives_many_deaths(coordinator: Coordinator, kernels: Kernels) -> None:
    for number in range(1, 6):
        kernels("a")
        coordinator.request(messages.SetQuota(client="a", changes={"share": number / 10}))
        wait_for(lambda n=number: f'"share": {n / 10}' in str(kept(coordinator).get("a")))  # type: ignore[misc]
        coordinator.end(signal.SIGKILL)
        coordinator.start()
        kernels("a")
        assert (coordinator.client("a") or {})["quota"]["share"] == number / 10


def test_the_page_of_a_running_process_is_newer_than_the_journal(
    coordinator: Coordinator, kernels: Kernels, processes: Processes
) -> None:
    process = processes("a")
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.5}))
    wait_for(lambda: suspended(coordinator, "a"))
    os.kill(coordinator.pid, signal.SIGSTOP)
    process.orders.quota_set &= ~16  # it was resumed, and the coordinator died before it was written
    process.orders.share_ppm = 750_000
    coordinator.end(signal.SIGKILL)
    process.disconnect()
    coordinator.start()
    kernels("a")
    assert (coordinator.client("a") or {})["suspended"], "as far as the journal knows"
    process.connect()
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (False, 0.75)


def test_what_is_said_since_is_newer_than_a_page(
    coordinator: Coordinator, kernels: Kernels, processes: Processes
) -> None:
    process = processes("a")
    coordinator.end(signal.SIGKILL)
    process.disconnect()
    coordinator.start()
    kernels("a")
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.5}))
    process.connect()
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (True, 0.5)


def test_a_client_that_is_over_is_forgotten(coordinator: Coordinator) -> None:
    coordinator.request(messages.Register(client="a", token="t"))
    wait_for(lambda: "a" in kept(coordinator))
    coordinator.request(messages.Forget(client="a"))
    wait_for(lambda: "a" not in kept(coordinator))


def test_who_has_another_token_begins_anew(coordinator: Coordinator, kernels: Kernels) -> None:
    kernels("a")
    coordinator.request(messages.Suspend(client="a"))
    wait_for(lambda: suspended(coordinator, "a"))
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    kernels("a", "another")
    assert not (coordinator.client("a") or {})["suspended"]
    wait_for(lambda: hashed("another") in str(kept(coordinator).get("a")))


def test_nobody_takes_the_name_of_a_client_that_is_away(
    coordinator: Coordinator, kernels: Kernels, as_other: Connect
) -> None:
    kernels("a")
    wait_for(lambda: "a" in kept(coordinator))
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    Path(coordinator.path).chmod(0o666)
    assert ask(as_other(), "register", client="a", token="secret") == "forbidden"
    kernels("a")


def test_a_quota_that_is_none_is_not_used(coordinator: Coordinator, kernels: Kernels) -> None:
    kernels("a")
    coordinator.request(messages.Suspend(client="a"))
    wait_for(lambda: suspended(coordinator, "a"))
    coordinator.end(signal.SIGKILL)
    with contextlib.closing(sqlite3.connect(file_of(coordinator))) as file, file:
        file.execute("UPDATE clients SET quota = ?", ('{"share": 7}',))
    coordinator.start()
    kernels("a")
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (True, 0)


def test_no_secret_and_no_notebook_is_in_it(coordinator: Coordinator, processes: Processes) -> None:
    coordinator.request(messages.Register(client="a", token="my-token", label="diary.ipynb"))
    wait_for(lambda: "a" in kept(coordinator))
    path = file_of(coordinator)
    beside = [one for one in path.parent.iterdir() if one.name.startswith(path.name)]
    assert path in beside
    for one in beside:
        assert stat.S_IMODE(one.stat().st_mode) == 0o600, one
        assert b"my-token" not in one.read_bytes() and b"diary" not in one.read_bytes()


# --- what goes wrong


def warnings(coordinator: Coordinator) -> list[str]:
    return [line for line in coordinator.log.read_text().splitlines() if " WARNING " in line and "journal" in line]


def in_status(coordinator: Coordinator) -> str:
    problems = wait_for(lambda: coordinator.status()["coordinator"]["problems"], 10)
    return "\n".join(problems)


def shares(coordinator: Coordinator, processes: Processes) -> None:
    process = processes("works")
    process.run_turn()
    process.close()


def test_a_broken_file_is_put_aside(idle_coordinator: Coordinator, processes: Processes) -> None:
    path = file_of(idle_coordinator)
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in (1, 2):
        path.write_bytes(b"scribble" * 4096)
        idle_coordinator.start()
        aside = path.with_name(f"{path.name}.broken-{number}")
        assert str(aside) in in_status(idle_coordinator)
        assert aside.read_bytes() == b"scribble" * 4096
        shares(idle_coordinator, processes)
        wait_for(lambda: "works" in kept(idle_coordinator))
        assert len(warnings(idle_coordinator)) == number
        idle_coordinator.end()


def test_no_place_for_it(idle_coordinator: Coordinator, processes: Processes) -> None:
    """Even for root, whom no mode keeps out."""
    path = file_of(idle_coordinator)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir()
    idle_coordinator.start()
    assert "restart would forget it: Is a directory" in in_status(idle_coordinator)
    shares(idle_coordinator, processes)
    path.rmdir()
    wait_for(lambda: not idle_coordinator.status()["coordinator"]["problems"], 15)
    assert "works" in kept(idle_coordinator), "all that was said meanwhile"
    assert len(warnings(idle_coordinator)) == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "journal.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unusable, match="symbolic links"):
        JournalFile(tmp_path / "journal.db").clients()
    assert not (tmp_path / "elsewhere").exists()


def test_who_else_has_the_file_keeps_nobody_waiting(
    coordinator: Coordinator, processes: Processes, kernels: Kernels
) -> None:
    kernels("a")
    wait_for(lambda: "a" in kept(coordinator))
    other = sqlite3.connect(file_of(coordinator), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    coordinator.request(messages.Suspend(client="a"))
    assert "locked" in in_status(coordinator)
    shares(coordinator, processes)
    other.execute("ROLLBACK")
    other.close()
    wait_for(lambda: suspended(coordinator, "a"), 15)
    wait_for(lambda: not coordinator.status()["coordinator"]["problems"])
    assert len(warnings(coordinator)) == 1


def test_sharing_goes_on_beside_a_journal_of_a_later_version(
    idle_coordinator: Coordinator, processes: Processes
) -> None:
    path = file_of(idle_coordinator)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(f"CREATE TABLE new (x); PRAGMA user_version = {len(MIGRATIONS) + 1};")
    before = path.read_bytes()
    idle_coordinator.start()
    assert "written by a later coordinator" in in_status(idle_coordinator)
    shares(idle_coordinator, processes)
    assert not idle_coordinator.request(messages.Usage(since=3600.0))["complete"]
    assert len(warnings(idle_coordinator)) == 1
    idle_coordinator.end()
    assert path.read_bytes() == before, "it is there for who knows it"


def test_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    with pytest.raises(Unusable, match=f"of version {len(MIGRATIONS) + 1}, written by a later coordinator"):
        JournalFile(path).write({"a": RECORD}, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", OF_VERSION)
def test_what_an_older_version_kept_is_kept(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript(f"{OF_VERSION[version]} PRAGMA user_version = {version};")
    file = JournalFile(path)
    assert file.clients() == ({"a": RECORD} if version >= 1 else {})
    owner = Owner("1000", "", "GPU-1")
    used = Tally(1.5, 0.5, 2.0, 3, 4, 5, 6)
    assert file.usage(0, "") == ({owner: used} if version >= 2 else {})
    file.write({"b": RECORD}, {Key(480_000, owner): used})
    file.close()
    assert "b" in JournalFile(path).clients() and owner in JournalFile(path).usage(480_000, "")
    with contextlib.closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_every_version_is_tried() -> None:
    assert list(OF_VERSION) == list(range(len(MIGRATIONS) + 1)), "add what a file of the new version looks like"


def test_a_disk_that_is_full_while_it_is_brought_up_to_date_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(f"{OF_VERSION[1]} PRAGMA user_version = 1;")
        (pages,) = old.execute("PRAGMA page_count").fetchone()
        old.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            journal_file._migrate(old, 1)
    assert JournalFile(path).clients() == {"a": RECORD}


@pytest.mark.parametrize(
    "made",
    [
        "PRAGMA user_version = 2;",  # no tables
        "CREATE TABLE clients (id TEXT NOT NULL UNIQUE);",  # of no version
        "CREATE TABLE clients (id, user); CREATE TABLE usage (hour); PRAGMA user_version = 2;",
        "PRAGMA user_version = -1;",
    ],
)
def test_what_is_no_journal_is_put_aside(tmp_path: Path, made: str) -> None:
    """However often it was tried, it would not get any better."""
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(made)
    file = JournalFile(path)
    with pytest.raises(Broken, match="broken-1"):
        file.write({"a": RECORD}, {})
    assert path.with_name("journal.db.broken-1").exists()
    file.write({"a": RECORD}, {})
    assert file.clients() == {"a": RECORD}


def test_a_full_disk_loses_nothing_that_was_said(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal.db")
    file.write({"a": RECORD}, {})
    with file._file() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unusable, match="full"):
        file.write({str(number): RECORD for number in range(1000)}, {})
    assert file.clients() == {"a": RECORD}
    file.write({str(number): RECORD for number in range(1000)}, {})
    assert len(file.clients()) == 1001


def test_its_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    JournalFile(tmp_path / "gpushare" / "host" / "journal.db").clients()
    assert stat.S_IMODE((tmp_path / "gpushare" / "host").stat().st_mode) == 0o700


def test_only_so_many_clients_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "MOST_CLIENTS", 3)
    file = JournalFile(tmp_path / "journal.db")
    for name in ("a", "b", "c", "a", "d"):
        file.write({name: RECORD}, {})
    assert set(file.clients()) == {"b", "c", "d"}
    file.write({"b": None}, {})
    assert set(file.clients()) == {"c", "d"}


def test_clients_that_come_and_go_while_the_disk_is_full_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_CLIENTS", 100)
    (tmp_path / "file").write_text("")
    kept = Journal(tmp_path / "file" / "journal.db", lambda *_: None)
    kept.keep("stays", RECORD)
    for number in range(1000):
        kept.keep(str(number), RECORD)
        kept.keep(str(number), None)
    wait_for(lambda: bool(kept.problems))
    kept.close()
    assert "stays" in kept._clients and len(kept._clients) <= 101


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, told = threading.Event(), threading.Event()
    monkeypatch.setattr(JournalFile, "clients", lambda file: goes_on.wait(30) and {"a": RECORD})
    journal = Journal(tmp_path / "journal.db", lambda call, *words: (call(*words), told.set()))
    found: list[dict[str, ClientRecord]] = []
    journal.load(found.append, wait=0.01)
    journal.keep("b", RECORD)
    assert not found
    goes_on.set()
    assert told.wait(10)
    assert found == [{"a": RECORD}]
    journal.close()
    monkeypatch.undo()
    assert set(JournalFile(tmp_path / "journal.db").clients()) == {"b"}


def test_a_broken_file_in_the_midst(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    file = JournalFile(path)
    file.write({"a": RECORD}, {})
    file.close()
    path.write_bytes(path.read_bytes()[:100] + b"\0" * 8192)
    with pytest.raises(Broken, match="broken-1"):
        file.clients()
    file.write({"b": RECORD}, {})
    assert set(file.clients()) == {"b"}
