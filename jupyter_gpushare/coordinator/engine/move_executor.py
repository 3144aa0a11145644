"""Requests to move clients, and the executor of the scheduler's commands on moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...core.base.errors import Refused
from ...core.interface import commands as cmd
from ...core.interface import events as ev
from ...core.state.model import Device
from ...units import format_size
from ...wire.page import BadPage
from ..clients.client_runtime import ClientRuntime
from ..gpu.nvml import Nvml

log = logging.getLogger(__name__)

MoveCommand = cmd.PrepareMove | cmd.StartMove | cmd.FinishMove


class MoveExecutor:
    """Executor of the commands on moves. `on_consequence` receives the events that a command causes."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        nvml: Nvml,
        dispatch: Callable[[ev.Event], None],
        on_consequence: Callable[[ev.Event], None],
    ) -> None:
        self._devices = devices
        self._nvml = nvml
        self._dispatch = dispatch
        self._on_consequence = on_consequence
        self._on_end: dict[str, Callable[[str, str], None]] = {}  # by client

    def request(self, client: str, device: str, on_end: Callable[[str, str], None]) -> None:
        """Move the client. Raises Refused, and then changes nothing.

        At the end of the move `on_end` is called with the device and the error ("": the client has moved).
        """
        before = self._on_end.get(client)
        self._on_end[client] = on_end  # first, because the move may end at once
        try:
            self._dispatch(ev.MoveRequested(client, device))
        except Refused:
            self._on_end.pop(client)
            if before:
                self._on_end[client] = before
            raise

    def execute(self, command: MoveCommand, runtime: ClientRuntime) -> None:
        match command:
            case cmd.PrepareMove():
                try:
                    runtime.prepare_move(command.device, self._devices)
                except BadPage as error:
                    self._fail(runtime, str(error))
            case cmd.StartMove():
                self._start(command, runtime)
            case cmd.FinishMove():
                if command.error:
                    log.warning("client %s has not moved to %s: %s", command.client, command.device, command.error)
                    runtime.cancel_move()
                else:
                    log.info("client %s has moved to %s", command.client, command.device)
                if on_end := self._on_end.pop(command.client, None):
                    on_end(command.device, command.error)

    def _start(self, command: cmd.StartMove, runtime: ClientRuntime) -> None:
        """Start the move, unless programs that do not share the device take its room."""
        self._nvml.sample()
        used, memory = self._nvml.memory_used(command.device), self._devices[command.device].info.memory
        if used is not None and memory - used < command.needed:
            free = format_size(max(0, memory - used))
            self._fail(
                runtime, f"device {command.device} has {free} free, and needed are {format_size(command.needed)}"
            )
            return
        runtime.start_move()

    def _fail(self, runtime: ClientRuntime, error: str) -> None:
        runtime.cancel_move()
        for number in runtime.processes:
            self._on_consequence(ev.MoveEnded(number, error))
