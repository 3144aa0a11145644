"""Tests of the labels of kernels after their notebooks are renamed."""

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

from .conftest import ECHO


def names(coordinator: Any, *labels: str) -> Callable[[], Awaitable[bool]]:
    """Return a condition that is true while the clients have exactly these labels."""

    async def condition() -> bool:
        status = await coordinator.request(messages.Status())
        return sorted(client["label"] for client in status["clients"]) == sorted(labels)

    return condition


@pytest.fixture
def open_notebook(create: Any) -> Callable[..., Awaitable[str]]:
    """Return a function that creates the session of a notebook, as a front end does."""

    async def open_one(path: str, kernel: str) -> Any:
        return await create("sessions", path=path, name=path, type="notebook", kernel={"name": kernel})

    return open_one


@pytest.fixture
def rename(jp_root_dir: Path, jp_fetch: Any) -> Callable[..., Awaitable[None]]:
    """Return a function that creates a notebook and renames it, as a front end does.

    `drive` is the name of a drive in the session's path.
    """

    async def rename(session: str | None, source: str, path: str, drive: str = "") -> None:
        (jp_root_dir / source).touch()
        (jp_root_dir / path).parent.mkdir(exist_ok=True)
        await jp_fetch("api", "contents", source, method="PATCH", body=json.dumps({"path": path}))
        if session:
            await jp_fetch("api", "sessions", session, method="PATCH", body=json.dumps({"path": drive + path}))

    return rename


@pytest.mark.parametrize("drive", ["", "RTC:"])
async def test_a_label_follows_a_renamed_notebook(
    kernelspec: Any, open_notebook: Any, rename: Any, coordinator: Any, wait_until: Any, drive: str
) -> None:
    kernelspec("shared", env={"GPUSHARE_CLIENT": "k1", "GPUSHARE_TOKEN": "secret"})
    session = await open_notebook(f"{drive}Untitled.ipynb", "shared")
    await coordinator.start()
    kernel = await AsyncClient.connect(coordinator.path)
    kernel.send(messages.Attach(client="k1", token="secret", label="Untitled.ipynb"))

    await wait_until(names(coordinator, "Untitled.ipynb"), "its first label")
    await rename(None, "other.ipynb", "models/another.ipynb")
    await rename(session, "Untitled.ipynb", "models/train.ipynb", drive)
    await wait_until(names(coordinator, "train.ipynb"), "the new label")
    # A kernel that restarts sends its old label. A second restart sends the label while corrections pause.
    old_name = msgspec.json.encode(messages.Attach(client="k1", token="secret", label="Untitled.ipynb")) + b"\n"
    writers = []
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(coordinator.path)
        writers.append(writer)
        writer.write(old_name)
        await reader.readline()  # the welcome
        await wait_until(names(coordinator, "train.ipynb"), "the new label again")
    for writer in writers:
        writer.close()
    await kernel.close()


async def test_rename_without_a_coordinator_has_no_effect(jp_fetch: Any, rename: Any, open_notebook: Any) -> None:
    session = await open_notebook("a.ipynb", "echo")
    await rename(session, "a.ipynb", "b.ipynb")
    answer = await jp_fetch("api", "sessions", session)
    assert json.loads(answer.body)["path"] == "b.ipynb"


async def test_a_label_of_the_kernelspec_is_kept(
    kernelspec: Any, open_notebook: Any, rename: Any, coordinator: Any, wait_until: Any
) -> None:
    def metadata(config: dict[str, str]) -> dict[str, Any]:
        return {"kernel_provisioner": {"provisioner_name": "gpushare-provisioner", "config": config}}

    launcher = [sys.executable, "-m", "jupyter_gpushare.launcher", "--simulate", "--label", "weekly"]
    kernelspec("named", metadata=metadata({"label": "nightly"}))
    kernelspec("launched", argv=[*launcher, *ECHO[1:]])
    kernelspec("plain", metadata=metadata({}))
    await coordinator.start()
    sessions = {name: await open_notebook(f"{name}.ipynb", name) for name in ("named", "launched", "plain")}
    await wait_until(names(coordinator, "nightly", "weekly", "plain.ipynb"), "three labels")
    for name, session in sessions.items():
        await rename(session, f"{name}.ipynb", f"{name}-2.ipynb")
    await wait_until(names(coordinator, "nightly", "weekly", "plain-2.ipynb"), "one new label")
