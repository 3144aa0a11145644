"""Tests of notes, reasons and findings about memory that cannot leave the GPU."""

from __future__ import annotations

import pytest

from jupyter_gpushare.cli.doctor.clients import unbacked_memory
from jupyter_gpushare.coordinator.monitoring.host_backing import HostBacking
from jupyter_gpushare.coordinator.views.memory_fields import memory_notes, room_refusal, wait_reason
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev

from ..core.simulated_host import SimulatedHost, host_of

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def short_of_room() -> SimulatedHost:
    """Return a host on which clients of two users have unbacked memory, and a third client waits for room."""
    host = host_of("gpu")
    for name, user, unbacked in (("a", "1000", 300), ("b", "1", 200)):
        host.handle_event(ev.ClientRegistered(name, user, f"{name}.ipynb", Quota(), 1))
        host.add_process(name)
        host.report_memory(name, 400 * MIB, 400 * MIB, unbacked * MIB, unbacked=unbacked * MIB)
    host.handle_event(ev.ClientRegistered("waits", "1000", "waits.ipynb", Quota(), 1))
    process = host.add_process("waits")
    host.report_memory("waits", 800 * MIB, 0)
    host.wait_at_gate(process)
    return host


def test_reason_names_the_memory_and_its_owner(short_of_room: SimulatedHost) -> None:
    clients = short_of_room.scheduler.clients
    assert wait_reason(clients["waits"]) == (
        "300 MiB of a.ipynb and memory of 1 other client(s) cannot leave the GPU, because the memory limit of its "
        "container or service is reached"
    )
    assert wait_reason(clients["a"]) == ""
    clients["waits"].user = "2"
    assert wait_reason(clients["waits"]).startswith("300 MiB of a client of ")
    assert "a.ipynb" not in wait_reason(clients["waits"])


def test_reason_names_memory_that_is_unmovable_by_nature(short_of_room: SimulatedHost) -> None:
    for name, unmovable in (("a", 400), ("b", 0)):
        short_of_room.report_memory(name, 400 * MIB, 400 * MIB, unmovable * MIB)
    client = short_of_room.scheduler.clients["waits"]
    assert wait_reason(client) == (
        "400 MiB of a.ipynb cannot leave the GPU: free memory of that client, or end that client"
    )
    assert room_refusal(client).startswith(
        "800 MiB of this program's memory have no room on the device, because 400 MiB of a.ipynb cannot leave the GPU. "
    )


def test_notes_are_for_the_owner_and_for_the_waiting_client(short_of_room: SimulatedHost) -> None:
    clients = short_of_room.scheduler.clients
    (note,) = memory_notes(clients["a"], HostBacking(cgroup="/pods/a"))
    assert "300 MiB of its memory cannot leave the GPU" in note and "(/pods/a)" in note
    (note,) = memory_notes(clients["waits"], HostBacking())
    assert note == f"waits for room: {wait_reason(clients['waits'])}"
    short_of_room.report_memory("a", 100 * MIB)
    short_of_room.report_memory("b", 100 * MIB)
    assert not any(memory_notes(client, HostBacking()) for client in clients.values())


@pytest.mark.parametrize("cgroup", ["/pods/a", None])
def test_doctor_names_memory_that_cannot_leave(cgroup: str | None) -> None:
    client = {"id": "a", "label": "a.ipynb", "user": "ada", "unbacked": 3 * GIB, "cgroup": cgroup}
    (finding,) = unbacked_memory({"clients": [client, {"id": "b", "unbacked": 0, "cgroup_is_known": True}]})
    assert (finding.level, finding.subject) == ("warning", "host memory")
    assert finding.message.startswith("3 GiB of a.ipynb cannot leave the GPU")
    assert (" (cgroup /pods/a) " in finding.message) == (cgroup is not None)
    assert "memory.max" in finding.remedy


def test_doctor_names_clients_with_unknown_limits() -> None:
    clients = [{"id": name, "label": f"{name}.ipynb", "unbacked": 0, "cgroup_is_known": False} for name in "ab"]
    (finding,) = unbacked_memory({"clients": clients})
    assert "cannot read the memory limits of a.ipynb, b.ipynb" in finding.message
    assert "memory quota" in finding.remedy
    assert not list(unbacked_memory({"clients": [{"id": "a", "label": ""}]})), "an older coordinator lacks the fields"
