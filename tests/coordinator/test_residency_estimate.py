"""Tests of resident memory by device and client, exact or estimated from the reports of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess

GIB = 1 << 30
UNIFIED, SWAP, PLAIN = 1, 2, 3
ONE, TWO = "GPU-one", "GPU-two"  # of 8 GiB each


def set_memory(process: ProtocolProcess, mode: int, allocated: int, resident: int | None = None) -> ProtocolProcess:
    process.allocate(allocated)
    process.report.memory_mode = mode
    process.report.resident = allocated if resident is None else resident
    return process


def resident(coordinator: CoordinatorProcess, client: str) -> tuple[int, bool]:
    found = coordinator.client(client) or {}
    return found["resident"], found["resident_is_estimate"]


def used(coordinator: CoordinatorProcess) -> dict[str, tuple[int, bool]]:
    return {d["uuid"]: (d["memory_used"], d["memory_used_is_estimate"]) for d in coordinator.status()["devices"]}


def test_exact_residency_is_marked_exact(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Most of the memory is evicted, independently of the order of the turns."""
    set_memory(processes("swaps"), SWAP, 6 * GIB + 5, GIB + 5)
    set_memory(processes("plain"), PLAIN, 2 * GIB)
    assert resident(coordinator, "swaps") == (GIB + 5, False)
    assert resident(coordinator, "plain") == (2 * GIB, False)
    assert list(used(coordinator).values()) == [(3 * GIB + 5, False)]
    (process,) = (coordinator.client("swaps") or {})["processes"]
    assert (process["memory_mode"], process["resident"], process["resident_is_estimate"]) == ("swap", GIB + 5, False)


def test_unified_memory_is_an_estimate(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """The estimate is bounded by the report and by the room on the device, which the last running client gets first."""
    set_memory(processes("plain"), PLAIN, 3 * GIB)
    set_memory(processes("earlier"), UNIFIED, 4 * GIB)
    later = set_memory(processes("later"), UNIFIED, 6 * GIB, 2 * GIB)
    later.run_turn()
    assert resident(coordinator, "later") == (2 * GIB, True)
    assert resident(coordinator, "earlier") == (3 * GIB, True)
    assert list(used(coordinator).values()) == [(8 * GIB, True)]


def test_residency_of_managed_or_unknown_memory_is_an_estimate(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    managed = set_memory(processes("asks"), PLAIN, GIB)
    set_memory(processes("silent"), 0, GIB)
    managed.report.uses_managed_memory = 1
    assert resident(coordinator, "asks") == resident(coordinator, "silent") == (GIB, True)
    modes = [(coordinator.client(name) or {})["processes"][0]["memory_mode"] for name in ("asks", "silent")]
    assert modes == ["plain", None]


def test_several_devices_share_what_one_process_has_on_them(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The process reports one sum, which must be divided and not counted twice."""
    set_memory(processes("wide", ONE, TWO), PLAIN, 6 * GIB)
    wide = coordinator.client("wide") or {}
    assert (wide["resident"], wide["resident_is_estimate"]) == (6 * GIB, False)
    assert wide["resident_by_device"] == {ONE: 3 * GIB, TWO: 3 * GIB}
    assert wide["resident_by_device_is_estimate"]
    assert used(coordinator) == {ONE: (3 * GIB, True), TWO: (3 * GIB, True)}


def test_residency_estimate_moves_overflow_to_the_other_device(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    set_memory(processes("narrow", ONE), PLAIN, 7 * GIB)
    set_memory(processes("wide", ONE, TWO), UNIFIED, 5 * GIB)
    assert used(coordinator) == {ONE: (8 * GIB, True), TWO: (4 * GIB, True)}
    assert resident(coordinator, "wide") == (5 * GIB, True)


def test_residency_is_separate_for_processes_with_a_device_each(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The processes are the ranks of one client."""
    set_memory(processes("ranks", ONE), SWAP, 3 * GIB, GIB)
    set_memory(processes("ranks", TWO), SWAP, 5 * GIB)
    ranks = coordinator.client("ranks") or {}
    assert (ranks["resident_by_device"], ranks["resident_by_device_is_estimate"]) == ({ONE: GIB, TWO: 5 * GIB}, False)
    assert used(coordinator) == {ONE: (GIB, False), TWO: (5 * GIB, False)}


def test_host_memory_of_evicted_memory_is_summed_by_client(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    for process, pinned, pageable in ((processes("a"), GIB, 5), (processes("a"), 7, GIB)):
        process.report.host_pinned, process.report.host_pageable = pinned, pageable
    client = coordinator.client("a") or {}
    assert (client["host_pinned"], client["host_pageable"]) == (GIB + 7, GIB + 5)
    assert [process["host_pinned"] for process in client["processes"]] == [GIB, 7]


def test_unmade_memory_is_summed_by_client(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    for resident, unmade in ((GIB, 2 * GIB), (0, 5)):
        set_memory(processes("a"), SWAP, 4 * GIB, resident).report.unmade = unmade
    assert (coordinator.client("a") or {})["unmade"] == 2 * GIB + 5


def test_invalid_reports_are_clamped(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    liar, honest = processes("liar"), set_memory(processes("honest"), UNIFIED, GIB)
    honest.run_turn()
    report: Any = liar.report
    report.resident = report.unmade = report.host_pinned = report.host_pageable = (1 << 64) - 1
    report.memory_mode = 77
    assert (resident(coordinator, "liar"), (coordinator.client("liar") or {})["unmade"]) == ((0, True), 0)
    report.allocated = (1 << 64) - 1
    assert resident(coordinator, "liar") == (7 * GIB, True)
    assert resident(coordinator, "honest") == (GIB, True)
    assert (coordinator.client("liar") or {})["host_pinned"] <= 1 << 50


def test_status_marks_estimates(
    coordinator: CoordinatorProcess, processes: ProcessFactory, command: Callable[..., Any]
) -> None:
    swaps = set_memory(processes("swaps"), SWAP, 6 * GIB, GIB)
    swaps.report.host_pinned, swaps.report.host_pageable = GIB, 4 * GIB
    output = command("status", "--socket", coordinator.path).stdout
    assert "~" not in output and "estimate" not in output
    assert "4 GiB + 1 GiB pinned" in output
    set_memory(processes("unified"), UNIFIED, 2 * GIB)
    output = command("status", "--socket", coordinator.path).stdout
    assert "~2 GiB" in output and "~3 GiB of 8 GiB" in output and "an estimate" in output
    assert "~1 GiB" not in output
