"""Labels of clients that follow the names of their notebooks.

A kernel's first label is the name of its notebook at the start, which often is "Untitled".
A label from the kernelspec or the configuration remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...launch.kernel_env import label_of
from ...wire.client import AsyncClient, CoordinatorError
from ...wire.messages import Attach
from .kernels import Kernels, UnknownKernel

CONTENTS_ACTIONS = "https://events.jupyter.org/jupyter_server/contents_service/v1"
MIN_INTERVAL_SECONDS = 1.0  # between two corrections


class LabelSync:
    """Listener to contents events that gives a client the new name of its notebook as its label.

    `status` returns the latest snapshot, if there is one, and `address` the coordinator's address.
    """

    def __init__(
        self,
        sessions: Any,
        kernels: Kernels,
        status: Callable[[], Mapping[str, Any] | None],
        address: Callable[[], str],
        log: logging.Logger,
    ) -> None:
        self._sessions = sessions
        self._kernels = kernels
        self._status = status
        self._address = address
        self._log = log
        self._renamed: dict[str, Attach] = {}  # by client
        self._stale = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        if data["action"] != "rename":
            return
        label = label_of({"JPY_SESSION_NAME": data["path"]}, "")
        for session in await self._sessions.list_sessions():
            # The path of a collaborative session begins with the name of a drive, as in "RTC:a.ipynb".
            if data.get("source_path") in (session["path"], session["path"].partition(":")[2]):
                self._rename(session["kernel"]["id"], label)

    def on_snapshot(self, _: Mapping[str, Any] | None, status: Mapping[str, Any]) -> None:
        """Correct the label of a kernel that has sent its first label again.

        A kernel does so when it restarts or attaches to a new coordinator.
        """
        if self._corrections(status):
            self._stale.set()

    def close(self) -> None:
        if self._task:
            self._task.cancel()

    def _rename(self, kernel: str, label: str) -> None:
        with contextlib.suppress(UnknownKernel):
            identity = self._kernels.identity_of(kernel)
            if identity and not self._kernels.configured_label(kernel):
                self._renamed[identity["client"]] = Attach(**identity, label=label)
                self._stale.set()
                self._task = self._task or asyncio.get_running_loop().create_task(self._send_corrections())

    def _corrections(self, status: Mapping[str, Any]) -> list[Attach]:
        """Return the messages that correct the labels in a snapshot."""
        labels = {client["id"]: client["label"] for client in status["clients"]} if self._renamed else {}
        return [attach for attach in self._renamed.values() if labels.get(attach.client, attach.label) != attach.label]

    async def _send_corrections(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            for attach in self._corrections(self._status() or {"clients": []}):
                try:
                    await self._send(attach)
                except (CoordinatorError, ValueError) as error:  # ValueError for a name that is not UTF-8
                    self._log.debug("could not change the label of client %s: %s", attach.client, error)
            await asyncio.sleep(MIN_INTERVAL_SECONDS)

    async def _send(self, attach: Attach) -> None:
        client = await AsyncClient.connect(self._address())
        try:
            client.send(attach)
        finally:
            await client.close()
