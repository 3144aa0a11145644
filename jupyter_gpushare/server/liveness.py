"""A coordinator that is stopped or hangs keeps its connections: only asking shows that it is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ..wire import messages
from ..wire.client import AsyncClient, Unreachable

CHECK_INTERVAL_SECONDS = 3.0  # seconds
ANSWER_TIMEOUT_SECONDS = 1.5  # seconds, twice
# Seconds to wait for one that hangs, before the same is asked again.
HANG_TIMEOUT_SECONDS = 3600.0


async def watch_liveness(
    client: AsyncClient, on_hang: Callable[[str], None], on_recovery: Callable[[dict[str, Any]], None]
) -> None:
    """Call `hangs` with a message when the coordinator does not answer, `goes_on` with its snapshot when it does again.

    Ends with the connection. All is asked over that: who hangs accepts no other, and those that wait for it pile up.
    """
    while not client.is_disconnected:
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        if await _answers(client) or client.is_disconnected:
            continue
        on_hang(f"The coordinator at {client.path} does not answer: it is stopped or hangs.")
        with contextlib.suppress(Unreachable):
            on_recovery(await client.request(messages.Status(), HANG_TIMEOUT_SECONDS))


async def _answers(client: AsyncClient) -> bool:
    # When this process itself was busy, the first limit may have passed with the answer already here.
    for _ in range(2):
        with contextlib.suppress(Unreachable):
            await client.request(messages.Config(), ANSWER_TIMEOUT_SECONDS)
            return True
    return False
