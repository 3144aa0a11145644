"""Tests of queries of usage: sums, restarts, visibility, limits, deletion, and the command `jupyter gpushare usage`."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import signal
import sqlite3
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jupyter_gpushare import units
from jupyter_gpushare.cli import usage as usage_command
from jupyter_gpushare.coordinator.storage.state_database import StateDatabase, first_hour
from jupyter_gpushare.coordinator.storage.usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import CLOSING, IN

from .conftest import OTHER_UID, Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import UUID, wait_until
from .test_restart_recovery import file_of
from .test_status_and_config_commands import Run

HOUR_OF_MINE = 24 * 20_000  # the first hour of a day


def usage(coordinator: CoordinatorProcess, since: float = 3600.0) -> dict[str, Any]:
    """Return the usage of the only owner and device."""
    result = coordinator.request(messages.Usage(since=since))
    assert result["complete"]
    (row,) = result["rows"]
    assert isinstance(row, dict)
    return row


def use(coordinator: CoordinatorProcess, processes: ProcessFactory) -> float:
    """Let a have a turn while b waits, and return the GPU seconds of all clients in the snapshot."""
    a, b = processes("a"), processes("b")
    a.run_turn()
    b.start_waiting()
    a.wait_phase(CLOSING)
    wait_until(lambda: (coordinator.client("b") or {})["wait_seconds"] > 0.1)
    a.report.gpu_ns, a.report.evicted_bytes, a.report.restored_bytes = 10_000_000, 3 << 20, 1 << 20
    a.drain()
    b.wait_phase(IN)
    coordinator.end_turn(b)
    wait_until(lambda: not coordinator.status()["devices"][0]["grants"])
    return float(sum(client["gpu_seconds"] for client in coordinator.status()["clients"]))


def test_usage_includes_the_present_turn(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    gpu_seconds = use(coordinator, processes)
    row = usage(coordinator)
    assert row["gpu_seconds"] == pytest.approx(gpu_seconds, abs=0.005)
    assert (row["device"], row["device_name"], row["turns"], row["waits"]) == (UUID, "Simulated GPU", 2, 2)
    assert (row["busy_seconds"], row["evicted_bytes"], row["restored_bytes"]) == (0.01, 3 << 20, 1 << 20)
    assert row["wait_seconds"] > 0.1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_usage_survives_coordinators_and_clients(
    coordinator: CoordinatorProcess, processes: ProcessFactory, number: int
) -> None:
    use(coordinator, processes)
    first = usage(coordinator)
    coordinator.stop(number)
    coordinator.start()
    assert usage(coordinator) == {**first, "device_name": ""}
    second = processes("c")
    second.run_turn()
    coordinator.end_turn(second)
    second.close()
    coordinator.request(messages.Unregister(client="c"))
    wait_until(lambda: coordinator.client("c") is None)
    assert usage(coordinator)["turns"] == 3


def test_an_orphan_is_counted_once_and_for_good(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    for _ in range(2):  # a request that is sent again
        coordinator.request(messages.Unregister(client="a", is_orphan=True))
    assert usage(coordinator)["orphans"] == 1
    process.close()
    wait_until(lambda: coordinator.client("a") is None)
    coordinator.stop(signal.SIGKILL)
    coordinator.start()
    assert usage(coordinator)["orphans"] == 1


def test_a_process_that_comes_back_is_not_counted_twice(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    a = processes("a")
    a.run_turn()
    wait_until(lambda: coordinator.client("a")["gpu_seconds"] > 0.1)  # type: ignore[index]
    a.report.gpu_ns, a.report.evicted_bytes = 50_000_000, 1 << 30
    before = usage(coordinator)
    assert (before["busy_seconds"], before["evicted_bytes"]) == (0.05, 1 << 30)
    coordinator.stop(signal.SIGKILL)
    coordinator.start()
    a.disconnect()
    a.send_hello()
    row = usage(coordinator)
    assert (row["busy_seconds"], row["evicted_bytes"]) == (0.05, 1 << 30)
    assert row["gpu_seconds"] >= before["gpu_seconds"]


def test_users_see_their_own_and_admins_all(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    use(coordinator, processes)
    assert ask(as_other_user(), "usage", since=3600)["rows"] == []
    with contextlib.closing(sqlite3.connect(file_of(coordinator))) as file, file:
        file.execute("UPDATE usage SET user = ?", (str(OTHER_UID),))
    (row,) = ask(as_other_user(), "usage", since=3600)["rows"]
    assert row["turns"] == 2
    assert usage(coordinator)["turns"] == 2


def test_usage_queries_of_a_user_are_limited(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    connection = processes.connection()
    connection.send(b"".join(b'{"type":"usage","id":%d,"since":1}\n' % number for number in range(10)))
    answers = [connection.receive() or {} for _ in range(10)]
    assert sorted(answer["id"] for answer in answers) == list(range(10))
    refused = [answer for answer in answers if answer["type"] == "error"]
    assert {answer["reason"] for answer in refused} == {"too_many"} and 0 < len(refused) <= 6
    connection.send(b'{"type":"usage","id":11,"since":1}\n')
    assert (connection.receive() or {})["type"] == "reply"


def test_unreadable_state_store_is_reported(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    path = file_of(idle_coordinator)
    path.mkdir(parents=True)
    idle_coordinator.start()
    gpu_seconds = use(idle_coordinator, processes)
    result = idle_coordinator.request(messages.Usage(since=3600))
    assert not result["complete"]
    assert result["rows"][0]["gpu_seconds"] == pytest.approx(gpu_seconds, abs=0.005)
    path.rmdir()
    wait_until(lambda: idle_coordinator.request(messages.Usage(since=3600))["complete"])
    assert usage(idle_coordinator)["gpu_seconds"] == pytest.approx(gpu_seconds, abs=0.005), "usage was lost or doubled"


# --- the file


def test_old_usage_is_summed_by_days_and_then_deleted(tmp_path: Path) -> None:
    file = StateDatabase(tmp_path / "state.db")
    mine, other = UsageOwner("1000", "", "d"), UsageOwner("1001", "lab", "d")
    now = HOUR_OF_MINE + 24 * 100
    for hour in range(HOUR_OF_MINE, now + 1):
        file.write(
            {},
            {
                UsageKey(hour, mine): UsageTotals(gpu_seconds=1.0, turns=1),
                UsageKey(hour, other): UsageTotals(wait_seconds=2.0),
            },
        )
    before = file.usage(0, "")
    file.prune(now, days=1000)
    file.prune(now, days=1000)
    assert file.usage(0, "") == before, "pruning has changed a sum"
    assert file.usage(0, "1000") == {mine: UsageTotals(gpu_seconds=24 * 100 + 1.0, turns=24 * 100 + 1)}
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as rows:
        (count,) = rows.execute("SELECT count(*) FROM usage").fetchone()
    assert count == 2 * (69 + 24 * 31 + 1)  # 69 rows for days, then 31 days by hours
    start = first_hour((HOUR_OF_MINE + 30) * HOUR_SECONDS, now * HOUR_SECONDS)
    assert start == HOUR_OF_MINE + 24  # the start of the day
    assert file.usage(start, "1000")[mine].turns == 24 * 99 + 1
    assert first_hour((now - 5) * HOUR_SECONDS + 1800, now * HOUR_SECONDS) == now - 5
    file.prune(now, days=10)
    assert file.usage(0, "1000") == {mine: UsageTotals(gpu_seconds=241.0, turns=241)}


def test_absurd_figures_do_not_stop_the_query(tmp_path: Path) -> None:
    file = StateDatabase(tmp_path / "state.db")
    owner = UsageOwner("1000", "", "d")
    for hour in (1, 1, 2, 3):
        file.write({}, {UsageKey(hour, owner): UsageTotals(evicted_bytes=1 << 62)})
    assert file.usage(0, "")[owner].evicted_bytes >= 1 << 62


# --- the command


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("7d", 604800), ("12h", 43200), ("1.5h", 5400), ("90 min", 5400), ("2w", 1209600), (" 1D ", 86400), ("0d", 0)],
)
def test_since_accepts_durations(written: str, seconds: float) -> None:
    assert units.parse_since(written, 2e9) == seconds


def test_since_accepts_dates() -> None:
    now = datetime(2026, 11, 8, 12, 30).astimezone()
    assert (
        units.parse_since("2026-11-01", now.timestamp()) == (now - datetime(2026, 11, 1).astimezone()).total_seconds()
    )
    assert units.parse_since("2026-11-08T12:00", now.timestamp()) == timedelta(minutes=30).total_seconds()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("yesterday", "'yesterday' is neither a duration nor a date (examples: 7d, 12h, 90min, 2026-11-01)"),
        ("7", "neither a duration nor a date"),
        ("-1d", "neither"),
        ("2026-13-01", "neither"),
        ("", "neither"),
        ("9" * 400 + "d", "more than 100 years ago"),
        ("9999-01-01", "in the future"),
        ("40000d", "more than 100 years ago"),
    ],
)
def test_invalid_time_is_refused_with_a_reason(written: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        units.parse_since(written, time.time())


def test_usage_command_prints_a_table(coordinator: CoordinatorProcess, processes: ProcessFactory, command: Run) -> None:
    nothing = command("usage", "--socket", coordinator.path)
    assert nothing.stdout.startswith("No use of a GPU that you may see is recorded since") and nothing.returncode == 0
    use(coordinator, processes)
    row = usage(coordinator)
    table = command("usage", "--socket", coordinator.path, "--since", "1h")
    for words in (row["user"], f"Simulated GPU {UUID}", "3 MiB", "moved out"):
        assert words in table.stdout, table
    output = json.loads(command("usage", "--socket", coordinator.path, "--json").stdout)
    assert output["rows"] == [row] and output["complete"] is True
    (line,) = csv.DictReader(io.StringIO(command("usage", "--socket", coordinator.path, "--csv").stdout))
    assert line == {name: "" if value is None else str(value) for name, value in row.items()}
    wrong = command("usage", "--socket", coordinator.path, "--since", "soon")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--since 'soon' is neither a duration nor a date" in wrong.stderr
    away = command("usage", "--socket", coordinator.path + "x")
    assert away.returncode == 1 and "no coordinator answers" in away.stderr


def test_usage_tables_of_several_devices_fit_into_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Each device has a table under its whole name and identifier, and the last table has the sums."""
    devices = [f"GPU-{digit * 8}-1234-5678-9abc-def012345678" for digit in "67"]
    use = [("ada", devices[0], 3), ("ada", devices[1], 1), ("bob", devices[1], 2)]
    rows = [
        {"user": user, "tenant": None, "device": device, "device_name": "NVIDIA A100-SXM4-80GB"}
        | dict.fromkeys(usage_command.FIGURES, 0)
        | {"gpu_seconds": count * 3600.0, "turns": count}
        for user, device, count in use
    ]
    Console(width=80).print(usage_command.render({"since": 0.0, "rows": rows}))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip() and "──" not in line]
    titles = [["NVIDIA", "A100-SXM4-80GB", device] for device in devices]
    begins = [lines.index(title) for title in [*titles, ["All", "devices"]]]
    tables = [lines[begin + 1 : end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    sums = [{line[0]: line[1:3] for line in table if line[0] in ("ada", "bob", "all")} for table in tables]
    assert sums == [
        {"ada": ["3", "h"]},
        {"ada": ["1", "h"], "bob": ["2", "h"], "all": ["3", "h"]},
        {"ada": ["4", "h"], "bob": ["2", "h"], "all": ["6", "h"]},
    ]
