"""Which client a kernel is, and interrupts of kernels that are interrupted by a message."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.server import kernels as module
from jupyter_gpushare.server.kernels import Kernels, UnknownKernel
from jupyter_gpushare.wire import messages


@pytest.fixture
def spec(jp_environ: Any, jp_kernel_dir: Path) -> Any:
    """Add a kernelspec of the echo kernel."""

    def add(name: str, **fields: Any) -> str:
        argv = [sys.executable, "-m", "pytest_jupyter.echo_kernel", "-f", "{connection_file}"]
        (jp_kernel_dir / name).mkdir()
        text = json.dumps({"argv": argv, "display_name": name, "language": "echo", **fields})
        (jp_kernel_dir / name / "kernel.json").write_text(text)
        return name

    return add


@pytest.fixture
def start(spec: Any, jp_fetch: Any) -> Any:
    """Start a kernel; returns its id."""

    async def start_kernel(name: str) -> str:
        answer = await jp_fetch("api", "kernels", method="POST", body=json.dumps({"name": name}))
        return str(json.loads(answer.body)["id"])

    return start_kernel


async def test_unknown_kernel(refused: Any, coordinator: Any) -> None:
    refusal = await refused("GET", "kernels", "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001")
    assert (refusal.status, refusal.reason) == (404, "unknown_kernel")
    assert coordinator.pid == 0


async def test_kernel_that_does_not_share(start: Any, refused: Any, coordinator: Any) -> None:
    kernel = await start("echo")
    refusal = await refused("GET", "kernels", kernel)
    assert (refusal.status, refusal.reason) == (404, "not_shared")
    assert kernel in refusal.message
    assert coordinator.pid == 0, "front ends ask this about every notebook"


async def test_kernel_that_the_launcher_made_a_client(start: Any, spec: Any, api: Any) -> None:
    kernel = await start(spec("launched", env={"GPUSHARE_CLIENT": "launched-17"}))
    assert await api("GET", "kernels", kernel) == {"kernel": kernel, "client": "launched-17"}


async def test_shared_kernel_alone_keeps_the_coordinator(
    start: Any, spec: Any, coordinator: Any, extension: Any, eventually: Any
) -> None:
    await coordinator.start()
    await start(spec("launched", env={"GPUSHARE_CLIENT": "launched-17"}))
    await eventually(lambda: extension.supervisor.status, "supervised since the kernel started")
    killed = coordinator.kill()
    await eventually(lambda: coordinator.pid not in (0, killed), "another coordinator", timeout=5)
    await eventually(lambda: extension.supervisor.status, "supervised again")


class Recorder:
    """A coordinator that only notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def serve(self, path: str) -> asyncio.Server:
        return await asyncio.start_unix_server(self._answer, path)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            request = msgspec.json.decode(line, type=messages.Incoming)
            self.requests.append(request)
            empty: dict[str, Any] = {"devices": [], "clients": [], "config": {}, "coordinator": {}}
            writer.write(msgspec.json.encode(messages.Reply(id=request.id, result=empty)) + b"\n")
        writer.close()

    def interrupted(self) -> list[str]:
        return [request.client for request in self.requests if isinstance(request, messages.Interrupt)]


async def test_interrupts_by_message_reach_the_coordinator(
    start: Any, spec: Any, jp_fetch: Any, coordinator: Any, eventually: Any
) -> None:
    recorder = Recorder()
    server = await recorder.serve(coordinator.path)
    shared = {"GPUSHARE_CLIENT": "by-message"}
    by_signal = await start(spec("signal", env={"GPUSHARE_CLIENT": "by-signal"}))
    unshared = await start(spec("unshared", interrupt_mode="message"))
    by_message = await start(spec("message", interrupt_mode="message", env=shared))
    for kernel in (by_signal, unshared, by_message):
        await jp_fetch("api", "kernels", kernel, "interrupt", method="POST", body="")
    await eventually(recorder.interrupted, "an interrupt")
    assert recorder.interrupted() == ["by-message"]
    server.close()


async def test_interrupt_without_a_coordinator_is_only_logged(
    start: Any, spec: Any, jp_fetch: Any, coordinator: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = await start(spec("message", interrupt_mode="message", env={"GPUSHARE_CLIENT": "by-message"}))
    answer = await jp_fetch("api", "kernels", kernel, "interrupt", method="POST", body="")
    assert answer.code == 204
    await eventually(lambda: f"interrupt of kernel {kernel} not passed on" in caplog.text, "a line in the log")


class FakeKernel:
    def __init__(self, pid: int | None, spec: Any = None) -> None:
        self.provisioner = type("Provisioner", (), {"pid": pid})()
        self.kernel_spec = spec


class FakeManager(dict[str, FakeKernel]):
    """As much of a kernel manager as `Kernels` uses."""

    def get_kernel(self, kernel_id: str) -> FakeKernel:
        return self[kernel_id]

    def list_kernel_ids(self) -> list[str]:
        return list(self)


def test_kernel_of_another_user_is_found_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_environment", lambda pid: None)
    kernels = Kernels(FakeManager(a=FakeKernel(11), b=FakeKernel(12), c=FakeKernel(13), d=FakeKernel(14)))
    status = {
        "clients": [
            {"id": "a", "processes": []},
            {"id": "other", "processes": [{"pid": 12}], "kernel_pids": []},
            {"id": "third", "processes": [], "kernel_pids": [13]},
        ]
    }
    assert [kernels.client_of(kernel, status) for kernel in "abcd"] == ["a", "other", "third", ""]
    assert kernels.client_of("a", None) == "", "no snapshot, nothing known"
    with pytest.raises(UnknownKernel):
        kernels.client_of("e", status)


def test_kernel_without_a_process_yet_is_what_its_spec_says() -> None:
    spec = type("Spec", (), {"metadata": {"kernel_provisioner": {"provisioner_name": "gpushare-provisioner"}}})()
    kernels = Kernels(FakeManager(shared=FakeKernel(None, spec), plain=FakeKernel(None)))
    assert kernels.client_of("shared") == "shared"
    assert kernels.client_of("plain") == ""
    assert kernels.any_shared()


def test_kernel_whose_process_is_gone_shares_nothing() -> None:
    process = os.posix_spawn("/bin/true", ["true"], {"GPUSHARE_CLIENT": "gone"})
    os.waitpid(process, 0)
    assert not Kernels(FakeManager(gone=FakeKernel(process))).any_shared()
