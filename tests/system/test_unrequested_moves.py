"""Tests of moves that no user has asked for: of idle, waiting and colocated clients, and off a device out of use."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

from ..support.polling import wait_until
from .notebook_client import Notebook
from .system_host import MIB, WAIT, GpuProgram, SystemHost, start_all_busy, stop_all
from .test_moves import ONE_TYPE_BY_NAME, devices_of, fill, increment, move, start_program


def test_clients_in_use_leave_a_device_that_an_admin_takes_out_of_use(
    dual_host: SystemHost, used_notebook: Notebook
) -> None:
    """The clients work, and a program of mode `unified` stays, with the reason in its note."""
    notebook = used_notebook
    (here,) = devices_of(dual_host, notebook.client_id)
    (there,) = {*dual_host.device_uuids()} - {here}
    number = dual_host.device_uuids().index(here)
    program, unified = (start_program(dual_host, mode, mode, device=number) for mode in ("swap", "unified"))
    start_all_busy(program)
    request = notebook.start("work(3.0)")
    wait_until(lambda: dual_host.clients()[notebook.client_id]["state"] in ("running", "waiting"))
    dual_host.request(messages.Device(device=here, failed="maintenance"))
    (note,) = dual_host.clients()["unified"]["notes"]
    assert note.endswith("no move is possible, because the driver moves no unified memory")
    for client in (notebook.client_id, "swap"):
        wait_until(lambda client=client: devices_of(dual_host, client) == [there], 60.0)
    assert notebook.finish(request)["status"] == "ok"
    assert notebook.value("answer") == 42
    stop_all(program)
    assert [increment(program), increment(unified)] == [8.0, 8.0]


def test_an_idle_notebook_leaves_the_device_of_a_busy_program(dual_host: SystemHost, used_notebook: Notebook) -> None:
    notebook = used_notebook
    (here,) = devices_of(dual_host, notebook.client_id)
    (there,) = {*dual_host.device_uuids()} - {here}
    dual_host.request(messages.Config(changes={"idle_move": 1}))
    job = start_program(dual_host, "job", device=dual_host.device_uuids().index(here))
    start_all_busy(job)
    wait_until(lambda: devices_of(dual_host, notebook.client_id) == [there])
    notebook.run("work(0.1)")
    assert notebook.value("answer") == 42
    stop_all(job)
    assert increment(job) == 8.0


def client_named(host: SystemHost, label: str) -> dict[str, Any]:
    return next(client for client in host.clients().values() if client["label"] == label)


def device_named(host: SystemHost, label: str) -> str:
    return ",".join(client_named(host, label)["devices"])


def start_two_on_one_device(host: SystemHost, size: int) -> dict[str, GpuProgram]:
    """Start three busy programs on two devices, and end the program that has a device for itself."""
    programs: dict[str, GpuProgram] = {}
    for label in ("a", "b", "c"):
        program = programs[label] = host.run("--label", label, "--memory-mode", "swap")
        program.run("cuda = Cuda()")
        start_all_busy(fill(program, size))
    devices = {label: device_named(host, label) for label in programs}
    (alone,) = [label for label in programs if list(devices.values()).count(devices[label]) == 1]
    programs.pop(alone).end()
    return programs


@pytest.mark.parametrize("size", [150 * MIB, pytest.param(60 * MIB, marks=pytest.mark.nightly)])
def test_a_program_beside_another_moves_to_a_device_without_work(dual_host: SystemHost, size: int) -> None:
    """Two programs, which have turns or run together, have one of the two devices."""
    programs = start_two_on_one_device(dual_host, size)
    wait_until(lambda: {device_named(dual_host, label) for label in programs} == {*dual_host.device_uuids()}, 60.0)
    wait_until(lambda: all(client_named(dual_host, label)["state"] == "running" for label in programs))
    stop_all(*programs.values())
    assert [increment(program) for program in programs.values()] == [8.0, 8.0]


def test_a_waiting_program_stays_on_the_device_that_its_user_has_chosen(dual_host: SystemHost) -> None:
    dual_host.request(messages.Config(changes={"wait_move": 0.1}))
    first = dual_host.device_uuids()[0]
    programs = [start_program(dual_host, client, size=150 * MIB) for client in ("a", "b")]
    start_all_busy(*programs)
    moment = max(execution.end_ns for execution in dual_host.launches(*programs))
    wait_until(lambda: dual_host.worked_since(moment, *programs))
    assert [devices_of(dual_host, client) for client in ("a", "b")] == [[first], [first]]
    stop_all(*programs)


def test_a_waiting_program_returns_if_the_driver_refuses_its_new_device(host: SystemHost) -> None:
    """The own device of the program has other work meanwhile, so the program returns in a turn with room."""
    host.config = host.folder / "devices.conf"
    host.config.write_text(ONE_TYPE_BY_NAME)
    host.start_coordinator()
    programs = start_two_on_one_device(host, 150 * MIB)
    log = host.folder / "coordinator.log"
    wait_until(lambda: "(CUDA error 1), which returns to its device" in log.read_text())
    moment = max(execution.end_ns for execution in host.launches(*programs.values()))
    wait_until(lambda: host.worked_since(moment, *programs.values()))
    wait_until(lambda: len({device_named(host, label) for label in programs}) == 1)  # no further try is under way
    stop_all(*programs.values())
    assert [increment(program) for program in programs.values()] == [8.0, 8.0]


def test_a_request_replaces_the_move_of_an_idle_notebook(dual_host: SystemHost, used_notebook: Notebook) -> None:
    """The request gets the answer of its own move, and not the end of the replaced one."""
    client = used_notebook.client_id
    (here,) = devices_of(dual_host, client)
    (there,) = {*dual_host.device_uuids()} - {here}
    job = start_program(dual_host, "job", device=dual_host.device_uuids().index(here))
    job.run("check(cuda.spin(600_000))")
    dual_host.request(messages.Config(changes={"idle_move": 1}))
    wait_until(lambda: len(devices_of(dual_host, client)) == 2)
    found: list[Any] = []
    mover = threading.Thread(target=lambda: found.append(move(dual_host, client, there)))
    mover.start()
    wait_until(lambda: "asked for another move" in (dual_host.folder / "coordinator.log").read_text())
    job.end()
    mover.join(WAIT)
    assert found == [{"device": there}]
    assert devices_of(dual_host, client) == [there]
