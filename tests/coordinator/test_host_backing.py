"""Tests of the host memory of each client for what leaves its devices, within the limits of its cgroups.

The usable part of 640 MiB of free memory is 512 MiB.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.coordinator.clients.process_handle import MAX_BYTES, ProcessHandle
from jupyter_gpushare.coordinator.host.host_memory import usable_bytes
from jupyter_gpushare.coordinator.monitoring.host_backing import HostBacking
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.wire import page as pages

from ..support import tier
from .cgroup_double import GIB, CgroupDouble
from .page_sync_harness import DEVICE, MIB, PageSyncHarness

LIMIT = 2048 * MIB
FREE = 640 * MIB  # of which 512 MiB are usable
PLAIN = next(number for number in range(9) if pages.memory_mode(number) == "plain")


class Host(PageSyncHarness):
    """Harness on a double of the host, in which memory that leaves a device counts in its cgroup."""

    def __init__(self, folder: Path) -> None:
        self.double = CgroupDouble(folder)
        self.used: dict[str, int] = {}
        self.paths: dict[str, str] = {}
        super().__init__(self.double.proc)

    def add_cgroup(self, path: str, free: int = FREE, maximum: int | None = LIMIT) -> None:
        self.used[path] = LIMIT - free
        self.double.set_cgroup(path, self.used[path], maximum)

    def add(self, name: str, mib: int, path: str, runs: bool = False) -> ProcessHandle:
        """Add a client that has `mib` MiB on the device, with a process in a cgroup."""
        pid = self.double.add_process(100 + len(self.handles), path)
        handle = self.process(name, mib, runs=runs, pid=pid)
        self.paths[name] = path
        self.sample_host_memory()
        return handle

    def charge(self, path: str, mib: int) -> None:
        """Let a process take host memory in a cgroup, or release it."""
        while path:
            if path in self.used:
                self.used[path] += mib * MIB
                self.double.set_cgroup(path, self.used[path], LIMIT)
            path = path.rpartition("/")[0]

    def move(self, name: str, mib: int, keeps_host_memory: bool = False) -> None:
        """Evict memory of a client, or restore it; unified memory keeps its host memory then."""
        report = self.handles[name].page.report
        evicted = report.allocated - report.resident + mib * MIB
        on_host = max(evicted, report.host_pageable if keeps_host_memory else 0)
        self.charge(self.paths[name], (on_host - report.host_pageable) // MIB)
        report.resident -= mib * MIB
        report.host_pageable = on_host
        self.sample_host_memory()

    def backing(self, name: str) -> HostBacking:
        return self.host_backing.of_client(name)

    def max_evicted(self, *names: str) -> list[int | None]:
        """Return the bounds of the clients in MiB."""
        found = [self.backing(name).max_evicted for name in names]
        return [None if bytes_ is None else bytes_ // MIB for bytes_ in found]

    def unbacked(self, name: str) -> int:
        """Return the MiB of a client that the scheduler takes for unbacked."""
        return self.scheduler.clients[name].memory_use.unbacked // MIB


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def test_memory_beyond_the_room_of_the_cgroup_is_unbacked(host: Host) -> None:
    host.add_cgroup("/a")
    handle = host.add("a", 900, "/a")
    assert host.max_evicted("a") == [512]
    assert host.unbacked("a") == 388
    assert host.scheduler.clients["a"].memory_use.unmovable == 388 * MIB
    assert handle.page.control.evicted_limit == 512 * MIB
    assert (host.backing("a").cgroup, host.backing("a").is_known) == ("/a", True)


def test_memory_within_the_room_is_backed(host: Host) -> None:
    host.add_cgroup("/a")
    host.add("a", 500, "/a")
    assert (host.max_evicted("a"), host.unbacked("a")) == ([512], 0)


@pytest.mark.parametrize("keeps_host_memory", [False, True], ids=["swap", "unified"])
def test_memory_that_leaves_is_counted_once(host: Host, keeps_host_memory: bool) -> None:
    """The reserve of the cgroup stays, and restored memory can leave again."""
    host.add_cgroup("/a")
    host.add("a", 900, "/a")
    for moved in (300, 212, -300, -212, 512):
        host.move("a", moved, keeps_host_memory)
        assert (host.max_evicted("a"), host.unbacked("a")) == ([512], 388)


def test_host_memory_of_the_program_takes_the_backing(host: Host) -> None:
    host.add_cgroup("/a")
    host.add("a", 900, "/a")
    host.move("a", 320)
    host.charge("/a", 480)
    host.sample_host_memory()
    assert (host.max_evicted("a"), host.unbacked("a")) == ([320], 580)
    host.charge("/a", -480)
    host.sample_host_memory()
    assert (host.max_evicted("a"), host.unbacked("a")) == ([512], 388)


def test_unmade_memory_gets_host_memory_of_its_own(host: Host) -> None:
    """The host holds nothing of unmade memory, which leaves the devices only after it has been there."""
    host.add_cgroup("/pod")
    handle = host.add("a", 100, "/pod")
    handle.page.report.allocated += 700 * MIB
    handle.page.report.unmade = 700 * MIB
    host.sample_host_memory()
    assert host.max_evicted("a") == [512]
    host.add("b", 300, "/pod", runs=True)
    assert host.max_evicted("a", "b") == [512, 0]


def test_process_with_unmade_memory_may_evict_it_later(host: Host) -> None:
    host.add_cgroup("/a")
    first = host.add("a", 100, "/a")
    second = host.add("helper", 0, "/a")
    host.runtimes["a"].processes[second.number] = host.runtimes["helper"].processes.pop(second.number)
    second.page.report.allocated = second.page.report.unmade = 100 * MIB
    host.sample_host_memory()
    assert [handle.page.control.evicted_limit // MIB for handle in (first, second)] == [256, 256]


def test_small_changes_of_the_free_memory_have_no_effect(host: Host) -> None:
    host.add_cgroup("/a")
    host.add("a", 900, "/a")
    version = host.scheduler.devices[DEVICE].memory_version
    host.charge("/a", 5)
    host.sample_host_memory()
    before = host.unbacked("a")
    host.charge("/a", 5)
    host.sample_host_memory()
    assert host.unbacked("a") == before
    assert host.scheduler.devices[DEVICE].memory_version == version + 1


def test_cgroup_above_the_clients_counts_their_sum(host: Host) -> None:
    """Memory of the client that has been idle longest leaves first."""
    host.add_cgroup("/pod")
    for name in ("one", "two"):
        host.add_cgroup(f"/pod/{name}", maximum=None)
        host.add(name, 400, f"/pod/{name}")
        host.scheduler.clients[name].last_turn_ended_at = float(len(host.handles))
    host.sample_host_memory()
    assert host.max_evicted("one", "two") == [400, 96]
    assert (host.unbacked("one"), host.unbacked("two")) == (0, 304)
    host.scheduler.clients["one"].last_turn_ended_at = 9.0
    host.sample_host_memory()
    assert host.max_evicted("one", "two") == [96, 400]


def test_memory_of_a_running_client_leaves_after_that_of_idle_clients(host: Host) -> None:
    host.add_cgroup("/pod")
    host.add("runs", 400, "/pod", runs=True)
    host.add("idle", 400, "/pod")
    host.add("waits", 100, "/pod")
    host.dispatch(ev.GateWaitStarted(host.handles["waits"].number))
    host.sample_host_memory()
    assert host.max_evicted("idle", "runs", "waits") == [400, 96, 0]


def test_what_no_client_needs_is_divided(host: Host) -> None:
    host.add_cgroup("/pod")
    host.add("one", 100, "/pod")
    host.add("two", 12, "/pod")
    assert host.max_evicted("one", "two") == [300, 212]


def test_nearest_limit_binds(host: Host) -> None:
    host.add_cgroup("/users", free=1280 * MIB)
    host.add_cgroup("/users/ada", free=FREE)
    host.add_cgroup("/users/bob", free=2000 * MIB)
    host.add("ada", 900, "/users/ada")
    host.add("bob", 900, "/users/bob")
    host.sample_host_memory()
    assert host.max_evicted("ada", "bob") == [512, 512]
    assert (host.backing("ada").cgroup, host.backing("bob").cgroup) == ("/users/ada", "/users")


def test_every_cgroup_of_a_clients_processes_counts(host: Host) -> None:
    host.add_cgroup("/a", free=1280 * MIB)
    host.add_cgroup("/b")
    host.add("a", 400, "/a")
    first = host.handles["a"]
    second = host.add("helper", 0, "/b")
    host.runtimes["a"].processes[second.number] = host.runtimes["helper"].processes.pop(second.number)
    second.page.report.allocated = second.page.report.resident = 200 * MIB
    host.sample_host_memory()
    assert host.max_evicted("a") == [512]
    limits = [handle.page.control.evicted_limit for handle in (first, second)]
    assert sum(limits) <= 512 * MIB and limits[0] // MIB == 2 * (limits[1] // MIB) + 1


def test_client_without_a_limit_has_none(host: Host) -> None:
    host.add_cgroup("/a", maximum=None)
    handle = host.add("a", 900, "/a")
    assert (host.max_evicted("a"), host.unbacked("a")) == ([None], 0)
    assert handle.page.control.evicted_limit == pages.UNKNOWN
    assert (host.backing("a").cgroup, host.backing("a").is_known) == ("", True)


def test_cgroup_that_cannot_be_read_leaves_the_memory_of_the_host(host: Host) -> None:
    """The coordinator's own cgroup counts for such a client, as in a container that both are in."""
    host.double.set_available(10 * GIB)
    handle = host.add("a", 900, "/../elsewhere")
    assert (host.max_evicted("a"), host.unbacked("a"), host.backing("a").is_known) == ([None], 0, False)
    assert handle.page.control.memory_backing == 1024 * MIB + usable_bytes(10 * GIB, 0)
    host.add_cgroup("/own")
    host.double.add_process(os.getpid(), "/own")
    host.sample_host_memory()
    assert handle.page.control.memory_backing == (1024 + 512) * MIB


def test_simulated_device_has_its_memory_on_the_host(host: Host) -> None:
    host.add_cgroup("/a", free=0)
    host.add("a", 900, "/a")
    assert host.unbacked("a") == 900
    host.runtimes["a"].is_simulated = True
    host.sample_host_memory()
    assert host.unbacked("a") == 0


def test_memory_of_mode_plain_needs_no_host_memory(host: Host) -> None:
    host.add_cgroup("/a", free=0)
    handle = host.add("a", 0, "/a")
    handle.page.report.memory_mode = PLAIN
    host.sample_host_memory()
    assert handle.memory_mode == "plain"
    assert handle.page.control.memory_backing == 1024 * MIB


def test_false_report_of_host_memory_is_bounded(host: Host) -> None:
    host.add_cgroup("/a")
    handle = host.add("a", 900, "/a")
    handle.page.report.host_pageable = handle.page.report.host_pinned = (1 << 64) - 1
    host.sample_host_memory()
    assert host.unbacked("a") == 0
    other = host.add("b", 0, "/b")
    assert other.page.control.memory_backing < MAX_BYTES


class TestAllocations:
    """Bound of the memory that a client may allocate, on a device of 1024 MiB."""

    def test_host_bounds_all_clients_together(self, host: Host) -> None:
        host.double.set_available(FREE)
        one, two = host.add("one", 100, "/one"), host.add("two", 900, "/two")
        assert one.page.control.memory_backing == (1024 + 512 - 900) * MIB
        assert two.page.control.memory_backing == (1024 + 512 - 100) * MIB

    def test_device_and_cgroup_back_the_only_client(self, host: Host) -> None:
        host.add_cgroup("/a")
        assert host.add("a", 900, "/a").page.control.memory_backing == (1024 + 512) * MIB

    def test_evicted_memory_is_not_counted_twice(self, host: Host) -> None:
        host.add_cgroup("/a")
        handle = host.add("a", 900, "/a")
        host.move("a", 400)
        assert handle.page.control.memory_backing == (1024 + 512) * MIB

    def test_unmade_memory_is_not_on_the_host(self, host: Host) -> None:
        host.double.set_available(300 * MIB)
        waiter = host.add("waiter", 0, "/waiter")
        other = host.add("other", 1000, "/other")
        waiter.page.report.allocated = waiter.page.report.unmade = 400 * MIB
        host.sample_host_memory()
        assert other.page.control.memory_backing == 1024 * MIB + usable_bytes(300 * MIB, 0) - 400 * MIB

    def test_cgroup_bounds_its_clients_together(self, host: Host) -> None:
        host.add_cgroup("/pod")
        one, two = host.add("one", 100, "/pod"), host.add("two", 60, "/pod")
        assert one.page.control.memory_backing == (1024 + 512 - 60) * MIB
        assert two.page.control.memory_backing == (1024 + 512 - 100) * MIB

    def test_other_clients_must_be_able_to_run(self, host: Host) -> None:
        """Memory beyond the room of the cgroup stays on the device, so the largest other client needs room there."""
        host.add_cgroup("/a")
        host.add("b", 700, "/b")
        host.add("c", 300, "/c")
        handle = host.add("a", 0, "/a")
        assert handle.page.control.memory_backing == (512 + 1024 - 700) * MIB

    def test_client_gets_what_unbacked_memory_leaves(self, host: Host) -> None:
        host.add_cgroup("/a")
        host.add("a", 900, "/a")
        other = host.add("b", 0, "/b")
        assert other.page.control.memory_backing == (1024 - 388) * MIB


def test_client_waits_for_room_until_the_cgroup_has_memory(host: Host) -> None:
    host.add_cgroup("/a")
    host.add("a", 900, "/a")
    waiter = host.add("b", 0, "/b")
    waiter.page.report.allocated = 800 * MIB
    host.sample_host_memory()
    host.dispatch(ev.GateWaitStarted(waiter.number))
    client = host.scheduler.clients["b"]
    assert client.is_short_of_room and not (client.permit and client.permit.may)
    assert host.handles["a"].page.control.resident_target[0] == pages.UNKNOWN
    host.charge("/a", -640)
    host.sample_host_memory()
    assert client.permit and client.permit.may
    assert host.scheduler.residency.target("a", DEVICE) == 224 * MIB


def test_request_for_room_waits_for_host_memory(host: Host) -> None:
    """The refusal takes some time, because memory of the cgroup may become free."""
    host.add_cgroup("/a", free=0)
    host.add("a", 600, "/a")
    handle = host.add("b", 400, "/b", runs=True)
    report = handle.page.report
    report.allocated = report.resident = 500 * MIB
    report.unmet_bytes, report.unmet_request_seq = 100 * MIB, 7
    for _ in range(15):
        host.page_sync.handle_memory_shortage([handle])
        assert handle.page.control.refused_request_seq == 0
        host.now += 1.0
        host.sample_host_memory()
    host.now += 2.0
    host.page_sync.handle_memory_shortage([handle])
    assert handle.page.control.refused_request_seq == 7


def test_growth_of_the_bound_wakes_the_process(host: Host) -> None:
    host.add_cgroup("/a")
    handle = host.add("a", 900, "/a")
    rung: list[Any] = []
    handle.ring = lambda: rung.append(1)  # type: ignore[method-assign]
    host.charge("/a", -100)
    host.sample_host_memory()
    assert not rung, "the process was not asked to evict"
    handle.page.control.resident_target[0] = 0
    host.charge("/a", -100)
    host.sample_host_memory()
    assert rung


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, int, int, int, bool]]]:
    """Return the free MiB of each cgroup, and of each client its cgroup, its memory and its host memory in MiB."""
    paths = ["/a", "/a/b", "/a/b/c", "/a/d", "/e"]
    free = {path: draw(st.integers(0, 2000)) for path in paths if draw(st.booleans())}
    clients = []
    for _ in range(draw(st.integers(1, 4))):
        allocated = draw(st.integers(0, 1500))
        resident = draw(st.integers(0, allocated))
        on_host = draw(st.integers(0, allocated))
        clients.append((draw(st.sampled_from(paths)), allocated, resident, on_host, draw(st.booleans())))
    return free, clients


@given(situations())
@settings(max_examples=tier.strength(50, 1000), deadline=None)
def test_no_cgroup_gets_more_than_its_limit_leaves(
    situation: tuple[dict[str, int], list[tuple[str, int, int, int, bool]]],
) -> None:
    """Whatever leaves within the bounds of the clients, each cgroup keeps its reserve, or gets no more at all."""
    free, clients = situation
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        try:
            for path in ("/a", "/a/b", "/a/b/c", "/a/d", "/e"):
                host.add_cgroup(path, free.get(path, 0) * MIB, LIMIT if path in free else None)
            for number, (path, allocated, resident, on_host, waits) in enumerate(clients):
                handle = host.add(f"c{number}", allocated, path)
                handle.page.report.resident = resident * MIB
                handle.page.report.host_pageable = on_host * MIB
                if waits:
                    host.dispatch(ev.GateWaitStarted(handle.number))
            host.sample_host_memory()
            more = dict.fromkeys(free, 0)
            for number, (path, allocated, resident, on_host, _) in enumerate(clients):
                bound = host.handles[f"c{number}"].page.control.evicted_limit
                limited = {one for one in free if (path + "/").startswith(one + "/")}
                assert (bound == pages.UNKNOWN) == (not limited)
                evicted = (allocated - resident) * MIB
                leaves = min(allocated * MIB, bound)
                assert host.unbacked(f"c{number}") >= (allocated * MIB - max(evicted, leaves)) // MIB
                for one in limited:
                    more[one] += max(0, leaves - max(evicted, on_host * MIB))
            for path, added in more.items():
                there = sum(on_host for inside, _, _, on_host, _ in clients if (inside + "/").startswith(path + "/"))
                room = usable_bytes(free[path] * MIB, there * MIB) - there * MIB
                assert added <= max(0, room), path
        finally:
            host.close()
