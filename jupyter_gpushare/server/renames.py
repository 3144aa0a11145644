"""Renamed notebooks: what queues call a kernel follows the name of its notebook, which often is "Untitled" at first."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from ..wire.client import AsyncClient, CoordinatorError
from ..wire.messages import Attach
from .kernels import Kernels, UnknownKernel

LONGEST = 200  # characters


class Renames:
    """Tells the coordinator at `address` when a session of the server is moved to another path.

    The server has no event for that: its session manager's method is wrapped until `close`.
    """

    def __init__(self, sessions: Any, kernels: Kernels, address: Callable[[], str], log: logging.Logger) -> None:
        self._sessions = sessions
        self._kernels = kernels
        self._address = address
        self._log = log
        self._original = sessions.update_session
        sessions.update_session = self._update

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            del self._sessions.update_session

    async def _update(self, session_id: str, **changes: Any) -> None:
        await self._original(session_id, **changes)
        if changes.get("path") is None:
            return
        try:
            await self._tell(session_id, os.path.basename(changes["path"])[:LONGEST])
        except (CoordinatorError, UnknownKernel, LookupError, ValueError) as error:
            self._log.debug("GPU sharing: %s keeps its old name: %s", session_id, error)

    async def _tell(self, session_id: str, label: str) -> None:
        session = await self._sessions.get_session(session_id=session_id)
        identity = self._kernels.identity_of(session["kernel"]["id"])
        if not identity or not label:
            return
        client = await AsyncClient.connect(self._address())
        try:
            client.send(Attach(**identity, label=label))
        finally:
            await client.close()
