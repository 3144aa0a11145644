"""Permits on the pages of clients: one level per client, and the order in which changes must be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..interface.commands import Permit
from ..state.model import Client

EPOCH_COUNT = 1 << 32
_REMEMBERED_TURNS = 8  # turns of a client whose permits a late process may still use


class Permits:
    """The permits of all clients. A new permission has a new epoch, because a process never enters twice under one."""

    def __init__(self) -> None:
        self._epoch = 0
        self._dirty_clients: dict[str, Client] = {}
        self._needs_epoch: set[str] = set()  # clients whose next permission needs a new epoch
        self._unwritten: set[str] = set()  # clients with a page that has no permit yet

    def mark_dirty(self, client: Client) -> None:
        """Mark the client, because its permit may have to change."""
        self._dirty_clients[client.id] = client

    def require_new_epoch(self, client: Client) -> None:
        """Let no process of the client enter again under the present epoch."""
        self._needs_epoch.add(client.id)
        self.mark_dirty(client)

    def on_process_joined(self, client: Client) -> None:
        """Write the client's permit again, because the page of its new process has no permit yet."""
        self._unwritten.add(client.id)
        self.mark_dirty(client)

    def remove(self, client: Client) -> None:
        self._dirty_clients.pop(client.id, None)
        self._needs_epoch.discard(client.id)
        self._unwritten.discard(client.id)

    def publish(self, permit_for: Callable[[Client], Permit]) -> list[Permit]:
        """Return the changes in the order in which they must be written.

        The next client gets its permit before the running client is relieved. The running client ceases to be relieved
        before the next client's permit is withdrawn. So at no moment does a turn end that no client may follow.
        `permit_for` returns the permit that a client should have, without an epoch.
        """
        changes = sorted(self._changes(permit_for), key=lambda change: _write_order(*change))
        return [permit for _, permit in changes]

    def _changes(self, permit_for: Callable[[Client], Permit]) -> Iterator[tuple[Permit | None, Permit]]:
        touched, self._dirty_clients = self._dirty_clients, {}
        for client in touched.values():
            before, permit = client.permit, permit_for(client)
            joined = client.id in self._unwritten
            if before is None and not permit.may and not (joined and any(p.turn for p in client.processes.values())):
                continue
            new = before is None or joined or (permit.may and (not before.may or client.id in self._needs_epoch))
            permit = replace(permit, epoch=self._next_epoch() if new or before is None else before.epoch)
            if new:
                self._needs_epoch.discard(client.id)
                self._unwritten.discard(client.id)
            if permit != before:
                client.permit = permit
                if permit.may:
                    _remember_devices(client, permit)
                yield before, permit

    def _next_epoch(self) -> int:
        self._epoch = (self._epoch + 1) % EPOCH_COUNT or 1
        return self._epoch


def _remember_devices(client: Client, permit: Permit) -> None:
    client.permitted_devices.pop(permit.turn, None)  # so that this turn becomes the last one
    client.permitted_devices[permit.turn] = permit.devices
    if len(client.permitted_devices) > _REMEMBERED_TURNS:
        del client.permitted_devices[next(iter(client.permitted_devices))]


def _write_order(before: Permit | None, after: Permit) -> int:
    relieved = before is not None and before.relieved
    if relieved and not after.relieved:
        return 0
    if before and before.may and not after.may:
        return 1
    return 3 if after.relieved and not relieved else 2
