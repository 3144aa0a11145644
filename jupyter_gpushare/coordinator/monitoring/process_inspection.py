"""Inspection of processes, whose shims report details that their pages do not have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ...wire.messages import Details
from ..clients.process_handle import ProcessHandle
from ..host.printable_text import sanitize

ANSWER_TIMEOUT_SECONDS = 3.0

OnDetails = Callable[[dict[str, Any] | None], None]


class ProcessInspections:
    """Requests to processes without a reply yet. The requests to a process that ends run into their timeout."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], tuple[OnDetails, asyncio.TimerHandle]] = {}

    def request(self, handle: ProcessHandle, on_details: OnDetails) -> None:
        """Call `on_details` once: with the process's details, or with None after `ANSWER_TIMEOUT_SECONDS`."""
        control = handle.page.control
        control.inspect_seq = (control.inspect_seq + 1) & 0xFFFFFFFF
        key = handle.number, int(control.inspect_seq)
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_SECONDS, self._finish, key, None)
        self._pending[key] = on_details, timer
        handle.ring()

    def on_details(self, handle: ProcessHandle, details: Details) -> None:
        """Finish all requests up to the one that the process has answered, because its answer serves them all."""
        fields = {
            "memory_mode": sanitize(details.memory_mode),
            "ledger": [{**msgspec.to_builtins(line), "kind": sanitize(line.kind)} for line in details.ledger],
            "unhooked": [sanitize(name) for name in details.unhooked],
        }
        for number, seq in [key for key in self._pending if key[0] == handle.number]:
            if seq <= details.seq:
                self._finish((number, seq), fields)

    def _finish(self, key: tuple[int, int], details: dict[str, Any] | None) -> None:
        on_details, timer = self._pending.pop(key)
        timer.cancel()
        on_details(details)
