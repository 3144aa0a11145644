"""Tests of the server's kernels: the client of a kernel, and interrupts by a message."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jupyter_gpushare.server.kernel_services import kernels as module
from jupyter_gpushare.server.kernel_services.kernels import Kernels, UnknownKernel

from ..support.listener import Listener, reply


@pytest.fixture
def start(kernelspec: Any, create: Any) -> Any:
    """Return a function that starts a kernel of a kernelspec with these fields, and returns its id."""

    async def start_kernel(name: str, **fields: Any) -> Any:
        return await create("kernels", name=kernelspec(name, **fields))

    return start_kernel


async def test_unknown_kernel(refused: Any, coordinator: Any) -> None:
    refusal = await refused("GET", "kernels", "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001")
    assert (refusal.status, refusal.reason) == (404, "unknown_kernel")
    assert coordinator.pid == 0


async def test_kernel_that_does_not_share(start: Any, refused: Any, coordinator: Any) -> None:
    kernel = await start("plain")
    refusal = await refused("GET", "kernels", kernel)
    assert (refusal.status, refusal.reason) == (404, "not_shared")
    assert kernel in refusal.message
    assert coordinator.pid == 0, "front ends send this request for every notebook"


async def test_kernel_that_the_launcher_made_a_client(start: Any, api: Any) -> None:
    kernel = await start("launched", env={"GPUSHARE_CLIENT": "launched-17"})
    assert await api("GET", "kernels", kernel) == {"kernel": kernel, "client": "launched-17", "node": ""}


async def test_only_a_shared_kernel_keeps_the_coordinator(
    start: Any, coordinator: Any, extension: Any, wait_until: Any
) -> None:
    await coordinator.start()
    await start("launched", env={"GPUSHARE_CLIENT": "launched-17"})
    await wait_until(lambda: extension.supervisor.status, "a snapshot after the start of the kernel")
    killed = coordinator.kill()
    await wait_until(lambda: coordinator.pid not in (0, killed), "another coordinator")
    await wait_until(lambda: extension.supervisor.status, "another snapshot")


async def test_interrupts_by_message_reach_the_coordinator(
    start: Any, jp_fetch: Any, coordinator: Any, wait_until: Any
) -> None:
    status: dict[str, Any] = {"devices": [], "clients": [], "config": {}, "coordinator": {}}
    listener = Listener(coordinator.path)
    listener.answer = lambda request: [reply(request, status)]
    by_signal = await start("signal", env={"GPUSHARE_CLIENT": "by-signal"})
    unshared = await start("unshared", interrupt_mode="message")
    by_message = await start("message", interrupt_mode="message", env={"GPUSHARE_CLIENT": "by-message"})
    for kernel in (by_signal, unshared, by_message):
        await jp_fetch("api", "kernels", kernel, "interrupt", method="POST", body="")
    expected = {"type": "interrupt", "client": "by-message"}
    await wait_until(lambda: [one for one in listener.requests if expected.items() <= one.items()], "an interrupt")
    assert [one["type"] for one in listener.requests].count("interrupt") == 1
    listener.close()


async def test_interrupt_without_a_coordinator_is_only_logged(
    start: Any, jp_fetch: Any, coordinator: Any, wait_until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = await start("message", interrupt_mode="message", env={"GPUSHARE_CLIENT": "by-message"})
    answer = await jp_fetch("api", "kernels", kernel, "interrupt", method="POST", body="")
    assert answer.code == 204
    await wait_until(
        lambda: f"could not interrupt the GPU calls of kernel {kernel}" in caplog.text, "a line in the log"
    )


class FakeKernel:
    def __init__(self, pid: int | None, spec: Any = None) -> None:
        self.provisioner = type("Provisioner", (), {"pid": pid})()
        self.kernel_spec = spec


class FakeManager(dict[str, FakeKernel]):
    """Fake of the part of a kernel manager that `Kernels` uses."""

    def get_kernel(self, kernel_id: str) -> FakeKernel:
        return self[kernel_id]

    def list_kernel_ids(self) -> list[str]:
        return list(self)


def test_kernel_of_another_user_is_found_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_process_environment", lambda pid: None)
    kernels = Kernels(FakeManager(a=FakeKernel(11), b=FakeKernel(12), c=FakeKernel(13), d=FakeKernel(14)))
    status = {
        "clients": [
            {"id": "a", "processes": []},
            {"id": "other", "processes": [{"pid": 12}], "kernel_pids": []},
            {"id": "third", "processes": [], "kernel_pids": [13]},
        ]
    }
    assert [kernels.client_of(kernel, status) for kernel in "abcd"] == ["a", "other", "third", ""]
    assert kernels.client_of("a", None) == "", "without a snapshot, the client is unknown"
    with pytest.raises(UnknownKernel):
        kernels.client_of("e", status)


def test_kernel_without_a_process_is_described_by_its_spec() -> None:
    spec = type("Spec", (), {"metadata": {"kernel_provisioner": {"provisioner_name": "gpushare-provisioner"}}})()
    kernels = Kernels(FakeManager(shared=FakeKernel(None, spec), plain=FakeKernel(None)))
    assert kernels.client_of("shared") == "shared"
    assert kernels.client_of("plain") == ""
    assert kernels.has_shared_kernels()


def test_kernel_with_an_exited_process_is_unshared() -> None:
    process = os.posix_spawn("/bin/true", ["true"], {"GPUSHARE_CLIENT": "gone"})
    os.waitpid(process, 0)
    assert not Kernels(FakeManager(gone=FakeKernel(process))).has_shared_kernels()
