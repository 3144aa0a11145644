"""Looking into a process: its page, which we have, and what only its shim knows, which it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ...wire.messages import Details
from ..clients.process_handle import ProcessHandle
from ..host.printable_text import sanitize

ANSWER_TIMEOUT_SECONDS = 1.0  # seconds that a process has for its answer

OnDetails = Callable[[dict[str, Any] | None], None]


class ProcessInspections:
    """Questions to processes that have not been answered yet. A process that ends leaves them to their time limit."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], tuple[OnDetails, asyncio.TimerHandle]] = {}

    def request(self, handle: ProcessHandle, on_details: OnDetails) -> None:
        """Call `answered` once: with what the process says, or with None if it does not, within `ANSWER` seconds."""
        control = handle.page.control
        control.inspect_seq = (control.inspect_seq + 1) & 0xFFFFFFFF
        question = handle.number, int(control.inspect_seq)
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_SECONDS, self._finish, question, None)
        self._pending[question] = on_details, timer
        handle.ring()

    def on_details(self, handle: ProcessHandle, details: Details) -> None:
        """What a process says. Who asks again before that is answered as well, by the last answer."""
        said = {
            "memory_mode": sanitize(details.memory_mode),
            "ledger": [{**msgspec.to_builtins(line), "kind": sanitize(line.kind)} for line in details.ledger],
            "unhooked": [sanitize(name) for name in details.unhooked],
        }
        for number, seq in [question for question in self._pending if question[0] == handle.number]:
            if seq <= details.seq:
                self._finish((number, seq), said)

    def _finish(self, question: tuple[int, int], details: dict[str, Any] | None) -> None:
        answered, timer = self._pending.pop(question)
        timer.cancel()
        answered(details)
