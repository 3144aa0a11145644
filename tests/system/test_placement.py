"""Tests of placement on two devices: options of placement, and the choice at the first CUDA call."""

from __future__ import annotations

from collections.abc import Callable

from .notebook_client import SETUP, Notebook
from .system_host import SystemHost

SIZE = 256 << 20  # bytes of each device


def test_affinity_and_fractions_of_memory_reach_the_program(dual_host: SystemHost) -> None:
    first = dual_host.run("--memory", "0.25", "--place", "affinity=pair")
    first.run("cuda = Cuda()")
    assert first.run("cuda.info()")[1] == SIZE // 4
    other = dual_host.command("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
    affine = dual_host.command("run", "--place", "affinity=pair", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    (client,) = dual_host.clients().values()
    assert [affine.stdout.strip()] == client["devices"]
    assert {other, *client["devices"]} == set(dual_host.device_uuids())


def test_a_notebook_gets_the_device_without_work_at_its_first_cuda_call(
    dual_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """Two notebooks have started, one on each device, before a program keeps one of the devices busy."""
    notebooks = [start(setup=False) for _ in range(2)]
    placed = {notebook.client_id: dual_host.clients()[notebook.client_id]["devices"] for notebook in notebooks}
    assert sorted(uuid for uuids in placed.values() for uuid in uuids) == sorted(dual_host.device_uuids())
    worker = dual_host.run()
    worker.run("cuda = Cuda()")
    worker.busy()
    (busy,) = next(client["devices"] for client in dual_host.clients().values() if client["id"] not in placed)
    (unlucky,) = (notebook for notebook in notebooks if placed[notebook.client_id] == [busy])
    unlucky.run(SETUP)
    unlucky.run("work(0.5)")
    client = dual_host.clients()[unlucky.client_id]
    assert client["devices"] == [uuid for uuid in dual_host.device_uuids() if uuid != busy]
    visible = unlucky.value(
        "__import__('subprocess').check_output('echo $CUDA_VISIBLE_DEVICES', shell=True, text=True)"
    )
    assert visible.split() == client["devices"]
    worker.stop()
