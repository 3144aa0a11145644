"""Moves of clients to other devices.

The driver moves a process without work. So the client takes a turn on its device and on the new device, which no other
client shares. The turn ends at once: movable memory leaves, and the rest, which the driver moves, must have room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...units import format_size
from ..base.errors import Conflict, Refused
from ..interface import events as ev
from ..interface.commands import Command, FinishMove, PrepareMove, StartMove
from ..placement import Placement
from ..state.model import Client, Device, EntityRegistry
from ..turns.grant_table import GrantTable
from ..turns.turn_close import TurnCloser


class ClientMoves:
    """Moves of all clients; `handlers` has the handler of each event."""

    def __init__(
        self,
        registry: EntityRegistry,
        table: GrantTable,
        closer: TurnCloser,
        placement: Placement,
        set_devices: Callable[[Client, float], None],
        commands: list[Command],
    ) -> None:
        self._registry = registry
        self._table = table
        self._closer = closer
        self._placement = placement
        self._set_devices = set_devices
        self._commands = commands
        self._moving: dict[str, Client] = {}
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.MoveRequested: self._on_move_requested,
            ev.MoveEnded: self._on_move_ended,
        }

    def advance(self, now: float) -> None:
        """End turns of moving clients, and start the moves for which there is room."""
        for client in list(self._moving.values()):
            grant = client.grant
            if grant is None:
                client.has_started_move = False  # the turn has ended otherwise, so the next turn needs room anew
            elif client.moving_to not in grant.devices:
                self._closer.start_closing(grant, now)
            elif not grant.is_draining:
                self._table.set_evicted(client, True)
                self._closer.start_closing(grant, now)
            elif grant.evicting_since is not None and not client.has_started_move:
                self._start(client, self._registry.devices[client.moving_to], now)

    def on_process_gone(self, client: Client, now: float) -> None:
        """End the move of a client whose process has ended."""
        if client.moving_to and not client.processes:
            self._finish(client, "its process has ended", now)

    def _on_move_requested(self, event: ev.MoveRequested, now: float) -> None:
        client = self._registry.client(event.client)
        if client.moving_to:
            raise Conflict(f"client {client.id} moves to device {client.moving_to} already")
        if not client.processes:
            raise Conflict(f"client {client.id} gets its device at its first CUDA call: there is nothing to move yet")
        if len(client.processes) > 1 or len(client.devices) > 1:
            raise Conflict(
                f"client {client.id} has {len(client.processes)} processes on {len(client.devices)} devices: "
                "allowed is one process on one device"
            )
        if client.suspended:
            raise Conflict(f"client {client.id} is suspended: resume it first")
        here, there = client.device_bindings[0], self._other_device(client, event.device)
        if here.info.parent or there.info.parent:
            raise Refused("a MIG slice is involved: the driver moves clients between whole devices only")
        if here.info.name != there.info.name:
            raise Refused(
                f"the driver moves clients between devices of one type only: the client is on "
                f"{here.info.name or here.info.uuid!r}, and {there.info.uuid} is {there.info.name!r}"
            )
        self._moving[client.id] = client
        client.moving_to, client.has_started_move = there.info.uuid, False
        self._set_devices(client, now)
        self._commands.append(PrepareMove(client.id, client.moving_to))

    def _other_device(self, client: Client, name: str) -> Device:
        uuid = self._placement.find_other(client.id, name)
        if uuid in client.devices:
            raise Conflict(f"client {client.id} is on device {uuid} already")
        return self._registry.devices[uuid]

    def _start(self, client: Client, device: Device, now: float) -> None:
        """Start the move as soon as memory of other clients has left room for what arrives."""
        needed = client.arriving_on(device)
        if client.memory_use.movable:
            return  # its memory still leaves
        if needed + device.unmovable > device.info.memory:
            room = format_size(device.info.memory - device.unmovable)
            self._finish(client, f"the move needs {format_size(needed)} there, and at most {room} can be free", now)
        elif needed + device.resident <= device.info.memory:
            client.has_started_move = True
            self._commands.append(StartMove(client.id, device.info.uuid, needed))

    def _on_move_ended(self, event: ev.MoveEnded, now: float) -> None:
        process = self._registry.process(event.process)
        client = process.client
        if not client.moving_to:
            return
        if not event.error:
            process.devices = (client.moving_to,)
        self._finish(client, event.error, now)

    def _finish(self, client: Client, error: str, now: float) -> None:
        self._commands.append(FinishMove(client.id, client.moving_to, error))
        del self._moving[client.id]
        client.moving_to, client.has_started_move = "", False
        self._set_devices(client, now)
