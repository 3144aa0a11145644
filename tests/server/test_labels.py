"""Labels of kernels whose notebooks are renamed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import AsyncClient


async def names(coordinator: Any, *labels: str) -> bool:
    """Whether that is what the clients are called before long, and no others are there."""
    for _ in range(500):
        status = await coordinator.request(messages.Status())
        if sorted(client["label"] for client in status["clients"]) == sorted(labels):
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.fixture
def rename(jp_root_dir: Path, jp_fetch: Any) -> Callable[..., Awaitable[None]]:
    """Create a notebook and rename it, as a front end does; `drive` is that of the session's path."""

    async def rename(session: str | None, source: str, path: str, drive: str = "") -> None:
        (jp_root_dir / source).touch()
        (jp_root_dir / path).parent.mkdir(exist_ok=True)
        await jp_fetch("api", "contents", source, method="PATCH", body=json.dumps({"path": path}))
        if session:
            await jp_fetch("api", "sessions", session, method="PATCH", body=json.dumps({"path": drive + path}))

    return rename


@pytest.mark.parametrize("drive", ["", "RTC:"])
async def test_a_label_follows_a_renamed_notebook(
    jp_environ: Any, jp_kernel_dir: Path, jp_fetch: Any, rename: Any, coordinator: Any, drive: str
) -> None:
    argv = [sys.executable, "-m", "pytest_jupyter.echo_kernel", "-f", "{connection_file}"]
    environment = {"GPUSHARE_CLIENT": "k1", "GPUSHARE_TOKEN": "secret"}
    (jp_kernel_dir / "shared").mkdir()
    spec = {"argv": argv, "display_name": "shared", "language": "echo", "env": environment}
    (jp_kernel_dir / "shared" / "kernel.json").write_text(json.dumps(spec))
    body = {"path": f"{drive}Untitled.ipynb", "name": "", "type": "notebook", "kernel": {"name": "shared"}}
    answer = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
    session = json.loads(answer.body)["id"]
    await coordinator.start()
    kernel = await AsyncClient.connect(coordinator.path)
    kernel.send(messages.Attach(client="k1", token="secret", label="Untitled.ipynb"))

    assert await names(coordinator, "Untitled.ipynb")
    await rename(None, "other.ipynb", "models/another.ipynb")
    await rename(session, "Untitled.ipynb", "models/train.ipynb", drive)
    assert await names(coordinator, "train.ipynb")
    # A kernel that restarts says its old name; one that restarts twice says it again while corrections pause.
    old_name = msgspec.json.encode(messages.Attach(client="k1", token="secret", label="Untitled.ipynb")) + b"\n"
    writers = []
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(coordinator.path)
        writers.append(writer)
        writer.write(old_name)
        await reader.readline()  # welcome: it was heard
        assert await names(coordinator, "train.ipynb")
    for writer in writers:
        writer.close()
    await kernel.close()


async def test_a_rename_without_a_coordinator_disturbs_nobody(jp_fetch: Any, rename: Any, jp_environ: Any) -> None:
    body = {"path": "a.ipynb", "name": "", "type": "notebook", "kernel": {"name": "echo"}}
    answer = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
    session = json.loads(answer.body)["id"]
    await rename(session, "a.ipynb", "b.ipynb")
    answer = await jp_fetch("api", "sessions", session)
    assert json.loads(answer.body)["path"] == "b.ipynb"


async def test_a_label_of_the_kernelspec_is_kept(
    jp_environ: Any, jp_kernel_dir: Path, jp_fetch: Any, rename: Any, coordinator: Any
) -> None:
    echo = ["-m", "pytest_jupyter.echo_kernel", "-f", "{connection_file}"]
    launched = [sys.executable, "-m", "jupyter_gpushare.launcher", "--simulate"]
    specs = {
        "named": ([sys.executable, *echo], {"label": "nightly"}),
        "launched": ([*launched, "--label", "weekly", *echo], None),
        "plain": ([sys.executable, *echo], {}),
    }
    await coordinator.start()
    sessions = {}
    for name, (argv, config) in specs.items():
        ours = {"provisioner_name": "gpushare-provisioner", "config": config}
        metadata = {"kernel_provisioner": ours} if config is not None else {}
        spec = {"argv": argv, "display_name": name, "language": "echo", "metadata": metadata}
        (jp_kernel_dir / name).mkdir()
        (jp_kernel_dir / name / "kernel.json").write_text(json.dumps(spec))
        path = f"{name}.ipynb"
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": name}}
        answer = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
        sessions[name] = json.loads(answer.body)["id"]
    assert await names(coordinator, "nightly", "weekly", "plain.ipynb")
    for name, session in sessions.items():
        await rename(session, f"{name}.ipynb", f"{name}-2.ipynb")
    assert await names(coordinator, "nightly", "weekly", "plain-2.ipynb")
