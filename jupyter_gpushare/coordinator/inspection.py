"""Looking into a process: its page, which we have, and what only its shim knows, which it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ..wire.messages import Details
from .ports import ProcessPort
from .printable import printable

ANSWER = 1.0  # seconds that a process has for its answer

Answered = Callable[[dict[str, Any] | None], None]


class Inspections:
    """Questions to processes that have not been answered yet. A process that ends leaves them to their time limit."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[Answered, asyncio.TimerHandle]] = {}

    def ask(self, port: ProcessPort, answered: Answered) -> None:
        """Call `answered` once: with what the process says, or with None if it does not, within `ANSWER` seconds."""
        orders = port.page.orders
        orders.inspect_seq = (orders.inspect_seq + 1) & 0xFFFFFFFF
        question = port.number, int(orders.inspect_seq)
        timer = asyncio.get_running_loop().call_later(ANSWER, self._end, question, None)
        self._open[question] = answered, timer
        port.ring()

    def answer(self, port: ProcessPort, details: Details) -> None:
        """What a process says. Who asks again before that is answered as well, by the last answer."""
        said = {
            "memory_mode": printable(details.memory_mode),
            "ledger": [{**msgspec.to_builtins(line), "kind": printable(line.kind)} for line in details.ledger],
            "unhooked": [printable(name) for name in details.unhooked],
        }
        for number, seq in [question for question in self._open if question[0] == port.number]:
            if seq <= details.seq:
                self._end((number, seq), said)

    def _end(self, question: tuple[int, int], details: dict[str, Any] | None) -> None:
        answered, timer = self._open.pop(question)
        timer.cancel()
        answered(details)
