"""What a kernel is called when its notebook is renamed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

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


async def test_a_renamed_notebook_is_called_so(
    jp_environ: Any, jp_kernel_dir: Path, jp_fetch: Any, jp_serverapp: Any, coordinator: Any
) -> None:
    argv = [sys.executable, "-m", "pytest_jupyter.echo_kernel", "-f", "{connection_file}"]
    environment = {"GPUSHARE_CLIENT": "k1", "GPUSHARE_TOKEN": "secret"}
    (jp_kernel_dir / "shared").mkdir()
    spec = {"argv": argv, "display_name": "shared", "language": "echo", "env": environment}
    (jp_kernel_dir / "shared" / "kernel.json").write_text(json.dumps(spec))
    body = {"path": "Untitled.ipynb", "name": "", "type": "notebook", "kernel": {"name": "shared"}}
    answer = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
    session = json.loads(answer.body)["id"]
    await coordinator.start()
    kernel = await AsyncClient.connect(coordinator.path)
    kernel.send(messages.Attach(client="k1", token="secret", label="Untitled.ipynb"))

    assert await names(coordinator, "Untitled.ipynb")
    body = {"path": "models/train.ipynb"}
    await jp_fetch("api", "sessions", session, method="PATCH", body=json.dumps(body))
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


async def test_a_rename_without_a_coordinator_disturbs_nobody(
    jp_fetch: Any, jp_serverapp: Any, jp_environ: Any
) -> None:
    body = {"path": "a.ipynb", "name": "", "type": "notebook", "kernel": {"name": "echo"}}
    answer = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
    path = ("api", "sessions", json.loads(answer.body)["id"])
    answer = await jp_fetch(*path, method="PATCH", body=json.dumps({"path": "b.ipynb"}))
    assert json.loads(answer.body)["path"] == "b.ipynb"


async def test_a_label_of_the_kernelspec_is_kept(
    jp_environ: Any, jp_kernel_dir: Path, jp_fetch: Any, jp_serverapp: Any, coordinator: Any
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
        body = {"path": f"{name}-2.ipynb"}
        await jp_fetch("api", "sessions", session, method="PATCH", body=json.dumps(body))
    assert await names(coordinator, "nightly", "weekly", "plain-2.ipynb")
