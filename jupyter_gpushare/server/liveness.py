"""Check of a coordinator's answers, because a coordinator that is stopped or hangs keeps its connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ..wire import messages
from ..wire.client import AsyncClient, Unreachable

CHECK_INTERVAL_SECONDS = 3.0
ANSWER_TIMEOUT_SECONDS = 1.5  # for each of two requests
# Timeout of the request to a coordinator that hangs, after which the request is repeated.
HANG_TIMEOUT_SECONDS = 3600.0


async def watch_liveness(
    client: AsyncClient, on_hang: Callable[[str], None], on_recovery: Callable[[dict[str, Any]], None]
) -> None:
    """Call `on_hang` when the coordinator stops answering, and `on_recovery` when it answers again.

    `on_hang` gets a message, and `on_recovery` gets the snapshot.
    The function returns at the end of the connection.
    All requests use this connection, because new connections to a coordinator that hangs would accumulate.
    """
    while not client.is_disconnected:
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        if await _answers(client) or client.is_disconnected:
            continue
        on_hang(f"The coordinator at {client.path} does not answer, because it is stopped or hangs.")
        with contextlib.suppress(Unreachable):
            on_recovery(await client.request(messages.Status(), HANG_TIMEOUT_SECONDS))


async def _answers(client: AsyncClient) -> bool:
    # If this process was busy, the first timeout may have passed although the answer has arrived.
    for _ in range(2):
        with contextlib.suppress(Unreachable):
            await client.request(messages.Config(), ANSWER_TIMEOUT_SECONDS)
            return True
    return False
