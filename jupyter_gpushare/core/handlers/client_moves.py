"""Moves of clients to other devices, and hibernation of clients on their own devices.

The driver moves a process without work. So the client takes a turn on its device and on the new device, which no other
client shares. The turn ends at once: movable memory leaves, and the rest, which the driver moves, must have room.

A client that works beside others, while another device has no work, moves in a turn on that other device alone. A
process that the driver does not restore there is hibernated, because its own device may have no room for it.

A hibernation is the first half of a move: the client takes a turn on its own device, and all of its memory leaves. The
return is the second half, in a turn of its own. The return waits for room as long as necessary, because the driver
repeats no restore that has found no room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from ...units import format_size
from ..base.errors import Conflict, Refused
from ..interface import events as ev
from ..interface.commands import Command, FinishMove, NotifyUser, PrepareMove, StartMove
from ..placement import Placement
from ..state.model import Client, Device, EntityRegistry, Grant
from ..turns.grant_table import GrantTable
from ..turns.turn_close import TurnCloser

_MAX_WAIT_SECONDS = 120.0  # for a turn on both devices and for room: meanwhile other clients may wait for this one
_RECONNECT_SECONDS = 10.0  # for the new connection of a process that has moved
_RETRY_SECONDS = 1800.0  # after a failed move that no user asked for: what made it fail mostly lasts
_PAUSE_SECONDS = 10.0  # between two moves of a waiting client
_START_RETRY_SECONDS = 0.1  # after a start that found less room than the reports have shown
_MAX_ROOM_WAIT_SECONDS = 10.0  # of a return, in its turn
_RETURN_RETRY_SECONDS = 60.0  # after a turn in which a hibernated client could not return: other clients run meanwhile


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
        self._hibernated: dict[str, Client] = {}
        self._leaving: set[str] = set()  # clients that move off a failed device
        self._informed: set[str] = set()  # clients whose users have got the reason why a return waits
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.MoveRequested: self._on_move_requested,
            ev.MoveWithdrawn: self._on_move_withdrawn,
            ev.MoveEnded: self._on_move_ended,
            ev.MoveDelayed: self._on_move_delayed,
        }

    def next_deadline(self) -> float | None:
        """Return when the first move takes too long, or a start or return is tried again; None: no client waits."""
        deadlines = [_deadline(client) for client in self._moving.values()]
        deadlines += [client.start_move_at for client in self._moving.values() if client.start_move_at > -inf]
        deadlines += [one.may_return_at for one in self._hibernated.values() if _wants_return(one)]
        return min((due for due in deadlines if due is not None and due < inf), default=None)

    def advance(self, now: float) -> None:
        """End moves that cannot go on and turns of moving clients, and start the moves for which there is room.

        A hibernated client that is in use begins to return.
        """
        for client in list(self._hibernated.values()):
            if not client.hibernated:
                del self._hibernated[client.id]
                client.may_return_at = -inf
            elif _wants_return(client) and client.may_return_at <= now:
                self._begin(client, client.devices[0], now, returns=True)
        for client in list(self._moving.values()):
            grant = client.grant
            if client.start_move_at <= now:
                client.start_move_at = -inf
            if problem := self._problem(client, now):
                may_try_soon = client.moves_alone and not client.has_started_move
                self._finish(client, problem, now)
                if may_try_soon:
                    client.may_move_at = now + _PAUSE_SECONDS
            elif grant is None or client.has_started_move:
                continue
            elif client.moving_to not in grant.devices:
                self._closer.start_closing(grant, now)
            elif not grant.is_draining:
                self._table.set_evicted(client, True)
                self._closer.start_closing(grant, now)
            elif _may_start(client, grant):
                self._start(client, self._registry.devices[client.moving_to], now)

    def _problem(self, client: Client, now: float) -> str:
        """Return the reason why the client's move cannot go on; empty: it can."""
        due = _deadline(client)
        if client.has_started_move:
            return _process_gone(client) if due is not None and due <= now else ""
        if failure := self._placement.allocations[client.moving_to].failure:
            return f"device {client.moving_to} has failed ({failure})"
        if client.suspended:
            return "the client was suspended"
        if client.is_returning and not client.hibernated:
            return _process_gone(client)
        if client.is_returning:
            return "no room has come on its device" if due is not None and due <= now else ""
        if client.moves_alone and (problem := self._problem_on_free_device(client, now)):
            return problem
        if client.moves_while_idle and client.cells:
            return "a cell has begun"
        if client.moves_while_idle and client.hold_seconds_left(now) is not None:
            return "a hold has begun"
        if due is not None and due <= now:
            return f"there was no turn on both devices, or no room, within {_MAX_WAIT_SECONDS:g} s: try again later"
        return ""

    def _problem_on_free_device(self, client: Client, now: float) -> str:
        """Return the reason why a client that moves to a free device had better stay; empty: there is none."""
        if client.grant:
            return ""
        is_still_free = is_free(self._registry.devices[client.moving_to], now, client)
        return "" if is_still_free else "another client has come to the other device first"

    def on_process_joined(self, client: Client, now: float) -> None:
        """End the move of a client with a new process, or of a process that has connected again after its move."""
        if client.hibernated:
            self._hibernated[client.id] = client
        if not client.moving_to:
            return
        if len(client.processes) > 1:
            if not client.has_started_move and not client.is_returning:
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
            self._finish(client, _process_gone(client), now)

    def on_client_removed(self, client: Client, now: float) -> None:
        self._hibernated.pop(client.id, None)
        self._informed.discard(client.id)
        if client.moving_to:
            self._finish(client, _process_gone(client), now)

    def move_idle(self, client: Client, device: str, now: float) -> None:
        """Move an idle client, whose user has not asked for it."""
        try:
            self._on_move_requested(ev.MoveRequested(client.id, device), now)
        except Refused:
            client.may_move_at = now + _RETRY_SECONDS
        else:
            client.moves_while_idle = True

    def move_to_free(self, client: Client, device: str, now: float) -> None:
        """Move a client to a device without work, on which placement lets it be, after the end of its present turn."""
        self._begin(client, device, now, alone=True)

    def on_device_failed(self, device: str, now: float) -> None:
        """End the moves off the device that no user has asked for and that have not started."""
        for client in list(self._moving.values()):
            is_about_to_leave = client.is_moving and not client.has_started_move and device != client.moving_to
            if is_about_to_leave and client.moves_by_itself and device in client.devices:
                self._finish(client, "its device has failed", now)

    def leave_failed(self, client: Client, device: str, now: float) -> None:
        """Move a client off its failed device, and notify its user of the end of the move."""
        self._leaving.add(client.id)
        self._begin(client, device, now)

    def hibernate(self, client: Client, now: float) -> None:
        """Begin the hibernation of an idle client with one process on one device."""
        (device,) = client.device_bindings
        client.may_hibernate_at = now + _RETRY_SECONDS
        if not device.info.parent:
            self._begin(client, device.info.uuid, now, hibernates=True)

    def _on_move_requested(self, event: ev.MoveRequested, now: float) -> None:
        client = self._registry.client(event.client)
        if self._placement.schedulable_devices:
            self._placement.named_devices(event.device)
        replaces_move = client.moves_by_itself and not client.has_started_move
        if client.is_returning:
            raise Conflict(f"client {client.id} returns from its hibernation: try again when the client has returned")
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
        if client.hibernated:
            raise Conflict(f"client {client.id} is hibernated: run a cell first, and move the client then")
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
        self._begin(client, there.info.uuid, now)

    def _on_move_withdrawn(self, event: ev.MoveWithdrawn, now: float) -> None:
        client = self._registry.clients.get(event.client)
        if client and client.is_moving and not client.moves_by_itself and not client.has_started_move:
            self._finish(client, "its request was withdrawn", now)

    def _begin(
        self,
        client: Client,
        device: str,
        now: float,
        *,
        hibernates: bool = False,
        returns: bool = False,
        alone: bool = False,
    ) -> None:
        self._moving[client.id] = client
        client.moving_to, client.has_started_move, client.move_since = device, False, now
        client.is_hibernating, client.is_returning, client.moves_while_idle = hibernates, returns, hibernates
        client.moves_alone = alone
        self._set_devices(client, now)
        self._commands.append(PrepareMove(client.id, device, hibernates))

    def _start(self, client: Client, device: Device, now: float) -> None:
        """Start the move as soon as memory of other clients has left room for what arrives.

        Movable memory that cannot leave, because the host has no room, arrives as well.
        """
        use, arriving = client.memory_use, client.arriving_on(device)
        try:
            if client.is_moving:  # other clients may have got its place meanwhile
                self._placement.find_other(client.id, device.info.uuid)
        except Refused as error:
            self._finish(client, str(error), now)
            return
        if use.unbacked:
            self._finish(client, "the host has no memory for what the driver would copy there", now)
        elif client.is_hibernating:
            client.has_started_move = True
            self._commands.append(StartMove(client.id, device.info.uuid, 0, use.resident, hibernates=True))
        elif arriving + device.unmovable > device.info.memory:
            room = format_size(device.info.memory - device.unmovable)
            self._finish(client, f"the move needs {format_size(arriving)} there, and at most {room} can be free", now)
        elif arriving + use.movable + device.resident <= device.info.memory:
            client.has_started_move = True
            needed, copied = arriving + use.movable, use.resident if client.is_moving else 0
            start = StartMove(client.id, device.info.uuid, needed, copied, returns=client.is_returning)
            self._commands.append(replace(start, leaves_others=client.moves_alone))

    def _on_move_delayed(self, event: ev.MoveDelayed, now: float) -> None:
        client = self._registry.client(event.client)
        client.has_started_move, client.start_move_at = False, now + _START_RETRY_SECONDS

    def _on_move_ended(self, event: ev.MoveEnded, now: float) -> None:
        process = self._registry.process(event.process)
        client = process.client
        process.hibernated = event.hibernated
        if client.hibernated:
            self._hibernated[client.id] = client
        if not client.moving_to or client.moving_to != event.device:
            return  # the answer to an earlier request
        if client.is_returning and client.hibernated and not event.error:
            return  # the answer of a process that is not hibernated
        if not event.error:
            process.devices = (client.moving_to,)
        self._finish(client, event.error, now)

    def _finish(self, client: Client, error: str, now: float) -> None:
        self._commands.append(
            FinishMove(client.id, client.moving_to, error, client.is_hibernating, client.is_returning)
        )
        if client.id in self._leaving:
            self._on_left_failed(client, error)
        if client.moves_alone:
            client.may_move_at = now + (_RETRY_SECONDS if error else _PAUSE_SECONDS)
        if client.is_returning:
            self._on_return_ended(client, error, now)
        elif client.is_hibernating:
            self._on_hibernation_ended(client, error)
        elif client.moves_while_idle:
            self._on_idle_move_ended(client, error, now)
        if client.grant:
            client.grant.is_for_idle_move = client.moves_while_idle
        del self._moving[client.id]
        client.moving_to, client.has_started_move, client.moves_while_idle = "", False, False
        client.is_hibernating, client.is_returning, client.start_move_at = False, False, -inf
        client.moves_alone = False
        self._set_devices(client, now)

    def _on_hibernation_ended(self, client: Client, error: str) -> None:
        if not error or client.cells:
            client.may_hibernate_at = -inf
        if not error:
            self._commands.append(
                NotifyUser(client.id, "hibernated: all of its memory has left the GPU until its next cell or GPU call")
            )

    def _on_return_ended(self, client: Client, error: str, now: float) -> None:
        """Let other clients run before the next try. The client's user gets the first error of a return.

        The driver repeats no restore that has failed, so the process gets no other turn.
        """
        client.may_return_at = now + _RETURN_RETRY_SECONDS if error and not client.suspended else -inf
        if error and client.has_started_move and client.hibernated:
            client.may_return_at = inf
            self._commands.append(NotifyUser(client.id, error))
        elif not error:
            self._informed.discard(client.id)
        elif not client.suspended and client.id not in self._informed:
            self._informed.add(client.id)
            self._commands.append(NotifyUser(client.id, f"hibernated, and cannot return to the GPU yet: {error}"))

    def _on_left_failed(self, client: Client, error: str) -> None:
        self._leaving.remove(client.id)
        if not client.processes:
            return  # the user has restarted or ended the program
        name = self._placement.display_name(client.moving_to)
        text = f"moved to {name}, because its device has failed"
        if error:
            text = f"still on its failed device, because {error}; restart the kernel to get another device"
        self._commands.append(NotifyUser(client.id, text))

    def _on_idle_move_ended(self, client: Client, error: str, now: float) -> None:
        if not error:
            name = self._placement.display_name(client.moving_to)
            self._commands.append(NotifyUser(client.id, f"moved to {name}, which has no other work"))
        elif not client.cells:
            client.may_move_at = now + _RETRY_SECONDS


def is_free(device: Device, now: float, mover: Client | None = None) -> bool:
    """Return whether no client but `mover` works on the device or waits for it.

    An idle notebook may keep its turn without a hold until another client waits.
    """
    if device.lock_contended_since is not None or device.taken_by_other_since is not None:
        return False
    if any(client is not mover for client in device.queue.clients):
        return False
    return all(
        grant.cells_ended_at is not None and grant.client.hold_seconds_left(now) is None for grant in device.grants
    )


def _process_gone(client: Client) -> str:
    return (
        f"the process of client {client.id} has ended, or its connection has: if the process still runs, it connects "
        "again by itself, and the client can be moved then"
    )


def _may_start(client: Client, grant: Grant) -> bool:
    """Return whether the client's processes are in the turn of the move without work, as far as they move."""
    if grant.evicting_since is None or client.start_move_at > -inf:
        return False
    return all(process.turn == grant.turn for process in client.processes.values() if process.hibernated)


def _wants_return(client: Client) -> bool:
    """Return whether the hibernated client has work, and no turn that ends already."""
    if client.moving_to or client.suspended or not client.hibernated or (client.grant and client.grant.is_draining):
        return False
    return bool(client.cells) or client.is_waiting_at_gate


def _deadline(client: Client) -> float | None:
    """Return when the client's move has taken too long; None: the driver moves its process, or a return has no turn."""
    if not client.has_started_move and client.is_returning:
        evicting_since = client.grant.evicting_since if client.grant else None
        return None if evicting_since is None else evicting_since + _MAX_ROOM_WAIT_SECONDS
    if not client.has_started_move:
        return client.move_since + _MAX_WAIT_SECONDS
    return None if client.processes else client.move_since + _RECONNECT_SECONDS
