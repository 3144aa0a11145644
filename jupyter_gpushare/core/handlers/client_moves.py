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
from ..interface.commands import Command, FinishMove, NotifyUser, PrepareMove, StartMove
from ..placement import Placement
from ..state.model import Client, Device, EntityRegistry
from ..turns.grant_table import GrantTable
from ..turns.turn_close import TurnCloser

_MAX_WAIT_SECONDS = 120.0  # for a turn on both devices and for room: meanwhile other clients may wait for this one
_RECONNECT_SECONDS = 10.0  # for the new connection of a process that has moved
_RETRY_SECONDS = 1800.0  # after a failed move of an idle client: what made it fail mostly lasts


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
            ev.MoveDelayed: self._on_move_delayed,
        }

    def next_deadline(self) -> float | None:
        """Return when the first move takes too long; None: no client moves."""
        return min((due for client in self._moving.values() if (due := _deadline(client)) is not None), default=None)

    def advance(self, now: float) -> None:
        """End moves that cannot go on and turns of moving clients, and start the moves for which there is room."""
        for client in list(self._moving.values()):
            grant = client.grant
            if problem := self._problem(client, now):
                self._finish(client, problem, now)
            elif grant is None or client.has_started_move:
                continue
            elif client.moving_to not in grant.devices:
                self._closer.start_closing(grant, now)
            elif not grant.is_draining:
                self._table.set_evicted(client, True)
                self._closer.start_closing(grant, now)
            elif grant.evicting_since is not None:
                self._start(client, self._registry.devices[client.moving_to], now)

    def _problem(self, client: Client, now: float) -> str:
        """Return the reason why the client's move cannot go on; empty: it can."""
        due = _deadline(client)
        if client.has_started_move:
            return "its process has ended" if due is not None and due <= now else ""
        if failure := self._placement.allocations[client.moving_to].failure:
            return f"device {client.moving_to} has failed ({failure})"
        if client.suspended:
            return "the client was suspended"
        if client.moves_while_idle and client.cells:
            return "a cell has begun"
        if client.moves_while_idle and client.hold_seconds_left(now) is not None:
            return "a hold has begun"
        if due is not None and due <= now:
            return f"there was no turn on both devices, or no room, within {_MAX_WAIT_SECONDS:g} s: try again later"
        return ""

    def on_process_joined(self, client: Client, now: float) -> None:
        """End the move of a client with a new process, or of a process that has connected again after its move."""
        if not client.moving_to:
            return
        if len(client.processes) > 1:
            if not client.has_started_move:
                self._finish(client, "another process of the client uses the GPU", now)
            return
        (process,) = client.processes.values()
        self._finish(
            client, "" if process.devices == (client.moving_to,) else "its process has connected again elsewhere", now
        )

    def on_process_gone(self, client: Client, now: float) -> None:
        """End the move of a client whose process has ended. A process that has moved connects again at once."""
        if not client.moving_to or client.processes:
            return
        if client.has_started_move:
            client.move_since = now
        else:
            self._finish(client, "its process has ended", now)

    def on_client_removed(self, client: Client, now: float) -> None:
        if client.moving_to:
            self._finish(client, "its process has ended", now)

    def move_idle(self, client: Client, device: str, now: float) -> None:
        """Move an idle client, whose user has not asked for it."""
        try:
            self._on_move_requested(ev.MoveRequested(client.id, device), now)
        except Refused:
            client.may_move_at = now + _RETRY_SECONDS
        else:
            client.moves_while_idle = True

    def _on_move_requested(self, event: ev.MoveRequested, now: float) -> None:
        client = self._registry.client(event.client)
        replaces_move = client.moves_while_idle and not client.has_started_move
        if client.moving_to and not replaces_move:
            raise Conflict(f"client {client.id} moves to device {client.moving_to} already")
        if not client.processes:
            raise Conflict(f"client {client.id} gets its device at its first CUDA call: there is nothing to move yet")
        used = {uuid for process in client.processes.values() for uuid in process.devices}
        if len(client.processes) > 1 or len(used) > 1:
            raise Conflict(
                f"client {client.id} has {len(client.processes)} processes on {len(used)} devices: "
                "allowed is one process on one device"
            )
        if client.suspended:
            raise Conflict(f"client {client.id} is suspended: resume it first")
        there = self._registry.devices[self._placement.find_other(client.id, event.device)]
        here = self._registry.devices[used.pop()]
        if here.info.parent or there.info.parent:
            raise Refused("a MIG slice is involved: the driver moves clients between whole devices only")
        if here.info.name != there.info.name:
            raise Refused(
                f"the driver moves clients between devices of one type only: the client is on "
                f"{here.info.name or here.info.uuid!r}, and {there.info.uuid} is {there.info.name!r}"
            )
        if replaces_move:
            self._finish(client, "its user has asked for another move", now)
        self._moving[client.id] = client
        client.moving_to, client.has_started_move, client.move_since = there.info.uuid, False, now
        self._set_devices(client, now)
        self._commands.append(PrepareMove(client.id, client.moving_to))

    def _start(self, client: Client, device: Device, now: float) -> None:
        """Start the move as soon as memory of other clients has left room for what arrives.

        Movable memory that cannot leave, because the host has no room, arrives as well.
        """
        use, arriving = client.memory_use, client.arriving_on(device)
        try:
            self._placement.find_other(client.id, device.info.uuid)  # other clients may have got its place meanwhile
        except Refused as error:
            self._finish(client, str(error), now)
            return
        if use.unbacked:
            self._finish(client, "the host has no memory for what the driver would copy there", now)
        elif arriving + device.unmovable > device.info.memory:
            room = format_size(device.info.memory - device.unmovable)
            self._finish(client, f"the move needs {format_size(arriving)} there, and at most {room} can be free", now)
        elif arriving + use.movable + device.resident <= device.info.memory:
            client.has_started_move = True
            self._commands.append(StartMove(client.id, device.info.uuid, arriving + use.movable, use.resident))

    def _on_move_delayed(self, event: ev.MoveDelayed, now: float) -> None:
        self._registry.client(event.client).has_started_move = False

    def _on_move_ended(self, event: ev.MoveEnded, now: float) -> None:
        process = self._registry.process(event.process)
        client = process.client
        if not client.moving_to or client.moving_to != event.device:
            return  # the answer to an earlier request
        if not event.error:
            process.devices = (client.moving_to,)
        self._finish(client, event.error, now)

    def _finish(self, client: Client, error: str, now: float) -> None:
        self._commands.append(FinishMove(client.id, client.moving_to, error))
        if client.moves_while_idle:
            self._on_idle_move_ended(client, error, now)
        del self._moving[client.id]
        client.moving_to, client.has_started_move, client.moves_while_idle = "", False, False
        self._set_devices(client, now)

    def _on_idle_move_ended(self, client: Client, error: str, now: float) -> None:
        if not error:
            name = self._placement.display_name(client.moving_to)
            self._commands.append(NotifyUser(client.id, f"moved to {name}, which has no other work"))
        elif not client.cells:
            client.may_move_at = now + _RETRY_SECONDS


def _deadline(client: Client) -> float | None:
    """Return when the client's move has taken too long; None: the driver moves its process."""
    if not client.has_started_move:
        return client.move_since + _MAX_WAIT_SECONDS
    return None if client.processes else client.move_since + _RECONNECT_SECONDS
