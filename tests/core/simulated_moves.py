"""Moves of a simulated host's processes to other devices, as the edge, the shim and the driver carry them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .simulated_process import SimulatedProcess

DRIVER_SECONDS = 0.1  # that the driver takes for a move
HIBERNATED_BYTES = 256 << 20  # that have left the device with a hibernated process
MAX_ROOM_WAIT_SECONDS = 30.0  # MAX_ROOM_WAIT_NS of move.c


class MovingHost(Protocol):
    """The part of the host that moves need."""

    processes: dict[int, SimulatedProcess]
    numbers: Iterator[int]

    def handle_event(self, event: ev.Event) -> Any: ...

    def call_after(self, delay: float, action: Callable[[], None]) -> None: ...

    def wake(self, process: SimulatedProcess) -> None: ...

    def processes_of(self, client: str) -> list[SimulatedProcess]: ...


class SimulatedMoves:
    """Moves on one host. Without `starts`, the edge carries out no StartMove."""

    def __init__(self, host: MovingHost) -> None:
        self._host = host
        self.starts = True

    def carry_out(self, command: cmd.PrepareMove | cmd.StartMove | cmd.FinishMove) -> None:
        processes = self._host.processes_of(command.client)
        match command:
            case cmd.PrepareMove():
                for process in processes:
                    self._prepare(process, command)
            case cmd.StartMove():
                if self.starts:
                    process = next(process for process in processes if process.moving_to)
                    process.is_moved_by_driver = True
                    on_end = self._on_moved
                    if command.hibernates or command.returns:
                        process.hibernated = HIBERNATED_BYTES if command.hibernates else 0
                        on_end = self._end
                    self._host.call_after(DRIVER_SECONDS, lambda: on_end(process))
            case cmd.FinishMove():
                for process in processes:
                    if command.error and not process.is_moved_by_driver:
                        process.moving_to = ""
                        self._host.wake(process)

    def on_eviction_started(self, process: SimulatedProcess) -> None:
        """End the move if its device gets no room in time."""
        self._host.call_after(MAX_ROOM_WAIT_SECONDS, lambda: self._end_without_room(process))

    def refuse(self, process: SimulatedProcess, error: str) -> None:
        """Let the process answer that it cannot move."""
        self._end(process, error)

    def _prepare(self, process: SimulatedProcess, command: cmd.PrepareMove) -> None:
        is_there = process.devices == (command.device,)
        if is_there and command.hibernates == bool(process.hibernated):
            self._host.handle_event(ev.MoveEnded(process.number, command.device, "", process.hibernated))
            return
        process.moving_to = command.device
        self._host.wake(process)

    def _end(self, process: SimulatedProcess, error: str = "") -> None:
        """End a hibernation or a return, or a move without effect."""
        if not process.alive:
            return
        device, process.moving_to, process.is_moved_by_driver = process.moving_to, "", False
        self._host.handle_event(ev.MoveEnded(process.number, device, error, process.hibernated))
        self._host.wake(process)

    def _on_moved(self, process: SimulatedProcess) -> None:
        """Let the process leave its turn and connect again, unless it has ended."""
        if not process.alive:
            return
        host = self._host
        process.is_moved_by_driver = False
        process.devices = (process.moving_to,)
        host.handle_event(ev.MoveEnded(process.number, process.moving_to))
        process.moving_to = ""
        host.wake(process)
        host.handle_event(ev.ProcessGone(process.number))
        del host.processes[process.number]
        process.connect_after_move(next(host.numbers))
        host.processes[process.number] = process
        host.handle_event(ev.ProcessJoined(process.client, process.number, process.devices))
        host.wake(process)

    def _end_without_room(self, process: SimulatedProcess) -> None:
        if process.alive and process.moving_to in process.entered and not process.is_moved_by_driver:
            self._end(process, "no room has come")
