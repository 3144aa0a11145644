"""A coordinator that is stopped or hangs keeps its connections: only asking shows that it is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ..wire import messages
from ..wire.client import AsyncClient, Unreachable

LOOK_EVERY = 3.0  # seconds
ANSWER_WITHIN = 1.5  # seconds, twice
# Seconds to wait for one that hangs, before the same is asked again.
PATIENCE = 3600.0


async def look_after(
    client: AsyncClient, hangs: Callable[[str], None], goes_on: Callable[[dict[str, Any]], None]
) -> None:
    """Call `hangs` with a message when the coordinator does not answer, `goes_on` with its snapshot when it does again.

    Ends with the connection. All is asked over that: who hangs accepts no other, and those that wait for it pile up.
    """
    while not client.lost:
        await asyncio.sleep(LOOK_EVERY)
        if await _answers(client) or client.lost:
            continue
        hangs(f"The coordinator at {client.path} does not answer: it is stopped or hangs.")
        with contextlib.suppress(Unreachable):
            goes_on(await client.request(messages.Status(), PATIENCE))


async def _answers(client: AsyncClient) -> bool:
    # When this process itself was busy, the first limit may have passed with the answer already here.
    for _ in range(2):
        with contextlib.suppress(Unreachable):
            await client.request(messages.Config(), ANSWER_WITHIN)
            return True
    return False
