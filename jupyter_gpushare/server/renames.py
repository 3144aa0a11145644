"""Renamed notebooks: what queues call a kernel follows the name of its notebook, which often is "Untitled" at first.

A label that the kernelspec sets is kept: it is no notebook's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..wire.client import AsyncClient, CoordinatorError
from ..wire.messages import Attach
from .kernels import Kernels, UnknownKernel

LONGEST = 200  # characters
PAUSE = 1.0  # seconds between two corrections of one name


class Renames:
    """Tells the coordinator at `address` when a session of the server is moved to another path.

    The server has no event for that: its session manager's method is wrapped until `close`.
    """

    def __init__(self, sessions: Any, kernels: Kernels, address: Callable[[], str], log: logging.Logger) -> None:
        self._sessions = sessions
        self._kernels = kernels
        self._address = address
        self._log = log
        self._names: dict[str, tuple[str, str]] = {}  # of clients: their kernel, what it is called now
        self._wrong: set[str] = set()  # clients that the last snapshot called otherwise, and nobody corrected since
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._original = sessions.update_session
        sessions.update_session = self._update

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            del self._sessions.update_session
        for task in self._tasks.values():
            task.cancel()

    def follow(self, _: Mapping[str, Any] | None, status: Mapping[str, Any]) -> None:
        """A kernel that restarts, or attaches to a new coordinator, says its first name: correct it."""
        for client in status["clients"]:
            identity = client["id"]
            if identity not in self._names:
                continue
            if client["label"] == self._names[identity][1]:
                self._wrong.discard(identity)
                continue
            self._wrong.add(identity)
            if identity not in self._tasks:
                self._tasks[identity] = asyncio.get_running_loop().create_task(self._correct(identity))

    async def _correct(self, identity: str) -> None:
        try:
            # What is wrong after the pause may have become so during it, and no further snapshot need come.
            while identity in self._wrong:
                self._wrong.discard(identity)
                await self._tell(*self._names[identity])
                await asyncio.sleep(PAUSE)
        except UnknownKernel:
            self._names.pop(identity, None)
        except (CoordinatorError, ValueError) as error:
            self._log.debug("GPU sharing: %s keeps its old name: %s", identity, error)
        finally:
            del self._tasks[identity]

    async def _update(self, session_id: str, **changes: Any) -> None:
        await self._original(session_id, **changes)
        if changes.get("path") is None:
            return
        try:
            session = await self._sessions.get_session(session_id=session_id)
            kernel = session["kernel"]["id"]
            if not self._kernels.configured_label(kernel):
                await self._tell(kernel, os.path.basename(changes["path"])[:LONGEST])
        except (CoordinatorError, UnknownKernel, LookupError, ValueError) as error:
            self._log.debug("GPU sharing: %s keeps its old name: %s", session_id, error)

    async def _tell(self, kernel: str, label: str) -> None:
        identity = self._kernels.identity_of(kernel)
        if not identity or not label:
            return
        self._names[identity["client"]] = (kernel, label)
        client = await AsyncClient.connect(self._address())
        try:
            client.send(Attach(**identity, label=label))
        finally:
            await client.close()
