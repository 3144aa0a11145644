"""Tests of the devices that a process gets at its first CUDA call, from the coordinator's answer to its request."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from jupyter_gpushare.wire import messages

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator


@pytest.fixture
def devices(machine: NativeHost, coordinator: ScriptedCoordinator) -> list[str]:
    """Return the UUIDs of the two devices of the machine."""
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_DEVICES="2")
    client.end()
    return [device["uuid"] for device in process.hello["devices"]]


def start(machine: NativeHost, chosen: str, visible: str) -> CudaClient:
    """Start a program with these values of GPUSHARE_DEVICES and CUDA_VISIBLE_DEVICES, at its first CUDA call."""
    client = machine.client(
        GPUSHARE_SIM_DEVICES="2",
        GPUSHARE_CLIENT="nb",
        GPUSHARE_TOKEN='a "quoted" token',
        GPUSHARE_DEVICES=chosen,
        CUDA_VISIBLE_DEVICES=visible,
    )
    client.start("cuda = Cuda()")
    return client


@contextlib.contextmanager
def accept_request(coordinator: ScriptedCoordinator) -> Iterator[socket.socket]:
    """Accept the program's request, and close its connection in the end."""
    connection = coordinator.accept_raw()
    with connection:
        line = connection.makefile().readline()
        assert json.loads(line) == {"type": "bind", "id": 1, "client": "nb", "token": 'a "quoted" token'}
        yield connection


def answer(coordinator: ScriptedCoordinator, *parts: bytes) -> None:
    """Answer the request of the program by these parts of a line."""
    with accept_request(coordinator) as connection:
        for part in parts:
            connection.sendall(part)


def devices_of(coordinator: ScriptedCoordinator, client: CudaClient) -> tuple[list[str], ProcessConnection]:
    process = coordinator.accept().welcome()
    client.result()
    return [device["uuid"] for device in process.hello["devices"]], process


def reply(*uuids: str) -> bytes:
    return json.dumps({"type": "reply", "id": 1, "result": {"devices": uuids}}, separators=(",", ":")).encode() + b"\n"


def test_the_program_uses_the_devices_of_the_answer(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]
) -> None:
    client = start(machine, devices[0], devices[0])
    answer(coordinator, reply(devices[1]))
    found, process = devices_of(coordinator, client)
    assert found == devices[1:]
    process.open(1)
    assert client.run("cuda.spin()") == 0


def test_processes_of_the_program_inherit_the_devices(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]
) -> None:
    """The list of both devices counts as chosen by placement again, so that a child's request may be answered."""
    client = start(machine, devices[0], devices[0])
    answer(coordinator, reply(*reversed(devices)))
    found, _ = devices_of(coordinator, client)
    assert found == devices[::-1]
    names = "'GPUSHARE_DEVICES', 'CUDA_VISIBLE_DEVICES'"
    script = f"import os; print(*(os.environ[name] for name in ({names})))"
    inherited = client.run(f"__import__('subprocess').check_output([sys.executable, '-c', {script!r}], text=True)")
    assert inherited.split() == [",".join(devices[::-1])] * 2


def test_a_choice_of_the_user_stays_without_a_request(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]
) -> None:
    assert devices_of(coordinator, start(machine, devices[0], "1,0"))[0] == devices[::-1]


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"error","id":1,"reason":"unknown_client","message":"\\"devices\\": none"}\n',
        reply(),
        b'{"type":"reply","id":1,"result":{"devices":["GPU-a b"]}}\n',
        b'{"type":"reply","id":1,"result":{"devices":["GPU-a"\n',
        b'{"type":"reply","id":1,"result":{"devices":["' + b"a" * messages.MAX_LINE + b'"]}}\n',
        b"",
    ],
    ids=["refused", "one-device", "no-uuid", "cut", "too-long", "closed"],
)
def test_without_a_useful_answer_the_devices_stay(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str], line: bytes
) -> None:
    client = start(machine, devices[0], devices[0])
    answer(coordinator, line)
    assert devices_of(coordinator, client)[0] == devices[:1]


def test_the_program_starts_without_an_answer(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]
) -> None:
    client = start(machine, devices[0], devices[0])
    with accept_request(coordinator):
        assert devices_of(coordinator, client)[0] == devices[:1]


def test_an_answer_in_parts_is_whole(machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]) -> None:
    client = start(machine, devices[0], devices[0])
    line = reply(devices[1])
    answer(coordinator, line[:30], line[30:60], line[60:])
    assert devices_of(coordinator, client)[0] == devices[1:]


def test_the_shim_asks_nothing_where_it_is_disabled(
    machine: NativeHost, coordinator: ScriptedCoordinator, devices: list[str]
) -> None:
    client = machine.client(
        GPUSHARE_DISABLE="1", GPUSHARE_SIM_DEVICES="2", GPUSHARE_DEVICES=devices[0], CUDA_VISIBLE_DEVICES=devices[0]
    )
    client.run("cuda = Cuda()")
    assert not coordinator.has_connection()
