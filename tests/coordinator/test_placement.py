"""Tests of placement by a coordinator: options, tenants, topology, failed devices, and devices of other users."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError
from jupyter_gpushare.wire.page import IN

from .conftest import Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import ProtocolProcess, wait_until

A, B = "GPU-a", "GPU-b"
SIZE = 8 << 30  # bytes of a device in the report of a fake process


@pytest.fixture
def two(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> CoordinatorProcess:
    """Provide a coordinator that has two devices by the hello of a process."""
    idle_coordinator.start(quantum=60)
    processes("first", A, B).disconnect()
    idle_coordinator.request(messages.Unregister(client="first"))
    wait_until(lambda: not idle_coordinator.status()["clients"])
    return idle_coordinator


def register(coordinator: CoordinatorProcess, client: str, quota: str = "", gpus: int = 1) -> list[str]:
    result = coordinator.request(messages.Register(client=client, token="secret", quota=quota, gpus=gpus))
    return list(result["devices"])


def refused(coordinator: CoordinatorProcess, client: str, quota: str = "", gpus: int = 1) -> tuple[str, str]:
    with pytest.raises(CoordinatorError) as error:
        register(coordinator, client, quota, gpus)
    assert coordinator.client(client) is None
    return error.value.reason, str(error.value)


def device(coordinator: CoordinatorProcess, uuid: str) -> dict[str, Any]:
    return next(one for one in coordinator.status()["devices"] if one["uuid"] == uuid)


def test_placement_options_choose_the_device(two: CoordinatorProcess) -> None:
    pair = register(two, "a", "affinity=pair share=0.5")
    assert register(two, "b", "affinity=pair") == pair
    assert register(two, "d", f"device={B}") == [B]
    assert (two.client("a") or {})["labels"] == {"affinity": "pair"}
    reason, message = refused(two, "e", "affinity=pair share=0.6")
    assert reason == "no_room"
    assert "has 0.5 of its share left" in message


def test_a_process_gets_the_devices_of_its_client_as_it_needs_them(
    two: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The device of the registration has a client at work by then, and the other device has none."""
    (before,) = register(two, "new")
    processes("busy", before).run_turn()
    request = messages.Bind(client="new", token="secret")
    (after,) = two.request(request)["devices"]
    assert {before, after} == {A, B}
    assert two.client("new")["devices"] == [after]  # type: ignore[index]
    processes("new", before)
    assert two.request(request)["devices"] == [before], "the device of the process that runs"


@pytest.mark.parametrize(
    ("client", "token", "reason"), [("absent", "secret", "unknown_client"), ("new", "wrong", "forbidden")]
)
def test_a_process_of_no_client_gets_no_devices(two: CoordinatorProcess, client: str, token: str, reason: str) -> None:
    before = register(two, "new")
    with pytest.raises(CoordinatorError) as error:
        two.request(messages.Bind(client=client, token=token))
    assert error.value.reason == reason
    assert two.client("new")["devices"] == before  # type: ignore[index]


@pytest.mark.parametrize("half", ["0.5", "50%"])
def test_memory_can_be_a_part_of_the_device(two: CoordinatorProcess, processes: ProcessFactory, half: str) -> None:
    (uuid,) = register(two, "a", f"memory={half}")
    process = processes("a", uuid, quota=f"memory={half}")
    assert process.control.memory_limit == SIZE // 2
    two.request(messages.SetQuota(client="a", changes={"memory": "0.25"}))
    assert process.control.memory_limit == SIZE // 4
    with pytest.raises(CoordinatorError, match="affinity is a placement option"):
        two.request(messages.SetQuota(client="a", changes={"affinity": "x"}))


def test_disabled_device_is_avoided_and_its_clients_are_notified(
    two: CoordinatorProcess, processes: ProcessFactory
) -> None:
    (uuid,) = register(two, "a")
    process = processes("a", uuid)
    assert two.request(messages.Device(device=uuid, failed="maintenance")) == {"clients": ["a"]}
    assert device(two, uuid)["failed"] == "maintenance"
    (notice,) = (two.client("a") or {})["notes"]
    assert "has failed (maintenance): the client moves to" in notice
    other = B if uuid == A else A
    assert [register(two, name) for name in "bcd"] == [[other]] * 3
    process.disconnect()
    wait_until(lambda: not (two.client("a") or {})["processes"])
    assert register(two, "a") == [other], "a restarted kernel gets the failed device"
    two.request(messages.Device(device=uuid))
    assert device(two, uuid)["failed"] is None
    assert (two.client("a") or {})["notes"] == []
    with pytest.raises(CoordinatorError, match=r"has no device 'GPU-z': allowed are GPU-"):
        two.request(messages.Device(device="GPU-z", failed="x"))


def tenants(**cells: int) -> str:
    return json.dumps({"mine": {"users": [os.getuid()], "limit": 0.5, "max_clients": 2, "cells": cells}})


def test_clients_count_for_their_users_tenant(two: CoordinatorProcess) -> None:
    changes = {"tenants": json.loads(tenants(device=1)), "default_quota": "limit=0.9"}
    two.request(messages.Config(changes=changes))
    assert "limit=0.8 is above that of tenant 'mine': allowed is up to 0.5" in refused(two, "a", "limit=0.8")[1]
    assert "share=0.8 is above limit=0.5: allowed is a share up to the limit" in refused(two, "a", "share=0.8")[1]
    owned = [one["uuid"] for one in two.status()["devices"] if one["guaranteed_to"] == "mine"]
    assert register(two, "a") == register(two, "b") == owned
    client = two.client("a") or {}
    assert (client["tenant"], client["quota"]["limit"]) == ("mine", 0.5)
    assert "tenant 'mine' has 2 clients: allowed are 2" in refused(two, "c")[1]
    with pytest.raises(CoordinatorError, match=r"limit=0.9 is above that of tenant 'mine': allowed is up to 0.5"):
        two.request(messages.SetQuota(client="a", changes={"limit": 0.9}))
    with pytest.raises(CoordinatorError, match="more cells than exist: 3 device"):
        two.request(messages.Config(changes={"tenants": json.loads(tenants(device=3))}))
    with pytest.raises(CoordinatorError, match="tenants: tenant 'x': unknown key 'user'"):
        two.request(messages.Config(changes={"tenants": {"x": {"user": []}}}))


def test_guest_is_preempted_when_the_owner_registers(
    two: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    guest = processes("guest", A, connect=False)
    guest.send_hello(through=as_other_user())
    guest.run_turn()
    both = {"mine": {"users": [os.getuid()], "cells": {"device": 2}}}
    two.request(messages.Config(changes={"tenants": both}))
    register(two, "one")
    assert guest.control.quota_flags == 1
    (again,) = register(two, "two", f"device={A}")
    wait_until(lambda: guest.control.quota_flags == 1 | 64)
    owner = processes("two", again)
    owner.start_waiting()
    guest.end_turn()
    owner.wait_phase(IN)
    assert (two.client("guest") or {})["is_preemptible_guest"]
    (visible,) = [one for one in ask(as_other_user(), "status")["clients"] if one["id"] == "guest"]
    assert "guaranteed to tenant mine: the client runs only while that tenant is idle" in visible["notes"][0]


def test_a_topology_is_read_from_a_file(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory, tmp_path: Path
) -> None:
    file = tmp_path / "topology.json"
    file.write_text(json.dumps({"n": {"s": {"w0": [A], "w1": [B, "GPU-c"]}}}))
    idle_coordinator.start("--GpuShare.topology", str(file), quantum=60)
    processes("x", A, B, "GPU-c").disconnect()
    assert register(idle_coordinator, "pair", gpus=2) == [B, "GPU-c"]


def test_a_device_is_taken_out_of_use_by_command(
    two: CoordinatorProcess, processes: ProcessFactory, command: Any
) -> None:
    (uuid,) = register(two, "a")
    processes("a", uuid)
    done = command("device", uuid, "--fail", "fan [broken]", "--socket", two.path)
    assert (done.returncode, done.stdout) == (0, f"{uuid}: out of use; clients on the device: a\n")
    shown = command("status", "--socket", two.path).stdout
    assert "FAILED: fan [broken]" in shown
    assert "a: device Simulated GPU has failed (fan [broken]): the client moves to device 1" in shown
    assert command("device", uuid, "--recover", "--socket", two.path).returncode == 0
    assert "FAILED" not in command("status", "--socket", two.path).stdout
    unknown = command("device", "GPU-z", "--recover", "--socket", two.path)
    assert (unknown.returncode, "GPU-z" in unknown.stderr) == (2, True)


def test_status_works_with_an_automatic_quantum(two: CoordinatorProcess, command: Any) -> None:
    two.request(messages.Config(changes={"time_quantum": "auto"}))
    assert "quantum auto" in command("status", "--socket", two.path).stdout


def test_a_program_that_cannot_be_placed_does_not_start(
    two: CoordinatorProcess, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SOCKET", two.path)
    for name in "ab":
        register(two, name, "anti_affinity=rank")
    done = command("run", "--place", "anti_affinity=rank", "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has a client with anti_affinity=rank" in done.stderr
    done = command("run", "--place", "rank=1", "--", "echo", "started")
    assert (done.returncode, "label 'rank=1' is invalid: allowed are device=NAME" in done.stderr) == (2, True)


@pytest.fixture
def others(as_other_user: Connect, processes: ProcessFactory) -> Callable[..., ProtocolProcess]:
    """Provide processes of another user."""

    def made(client: str, *devices: str, **options: Any) -> ProtocolProcess:
        process = processes(client, *devices, connect=False, **options)
        process.send_hello(through=as_other_user())
        return process

    return made


def test_unverified_device_of_another_user_is_never_assigned(
    two: CoordinatorProcess, others: Callable[..., ProtocolProcess]
) -> None:
    liar = others("liar", "GPU-made-up", quota="affinity=pair")
    assert {
        register(two, client, words)[0] for client, words in zip("abcdef", ["affinity=pair", *5 * [""]], strict=True)
    } == {A, B}
    assert "does not exist" in refused(two, "h", "device=GPU-made-up")[1]
    assert refused(two, "i", gpus=3)[0] == "too_many_devices"
    liar.run_turn()  # the process may use the device that it has reported
    assert device(two, "GPU-made-up")["grants"][0]["client"] == "liar"


def test_unverified_devices_of_a_user_are_limited(
    two: CoordinatorProcess, others: Callable[..., ProtocolProcess]
) -> None:
    for number in range(4):
        others("liar", *(f"GPU-{number}-{device}" for device in range(16))).close()
    with pytest.raises(AssertionError, match="the most a user may have"):
        others("liar", "GPU-4")
    others("honest", A).run_turn()
    assert len(two.status()["devices"]) == 2 + 64
