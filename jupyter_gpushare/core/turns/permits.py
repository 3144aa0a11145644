"""What the pages of clients say of their turns: a level for each client, and in which order changes must be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..interface.commands import Permit
from ..state.model import Client

EPOCH_COUNT = 1 << 32


class Permits:
    """The permits of all clients. A new permission has a new epoch: one that a process has left under is used up."""

    def __init__(self) -> None:
        self._epoch = 0
        self._dirty_clients: dict[str, Client] = {}
        self._needs_epoch: set[str] = set()  # clients that need a new epoch for what they may do next
        self._unwritten: set[str] = set()  # clients with a page on which nothing has been written

    def mark_dirty(self, client: Client) -> None:
        """Its permit may have to change."""
        self._dirty_clients[client.id] = client

    def require_new_epoch(self, client: Client) -> None:
        """Let no process of the client enter again under the present epoch."""
        self._needs_epoch.add(client.id)
        self.mark_dirty(client)

    def on_process_joined(self, client: Client) -> None:
        """A process of the client has come, whose page says nothing yet: write its permit anew."""
        self._unwritten.add(client.id)
        self.mark_dirty(client)

    def remove(self, client: Client) -> None:
        self._dirty_clients.pop(client.id, None)
        self._needs_epoch.discard(client.id)
        self._unwritten.discard(client.id)

    def publish(self, permit_for: Callable[[Client], Permit]) -> list[Permit]:
        """Return the changes, in the order in which they must be written.

        A next client's permit comes before the running one is relieved, and a running one ceases to be relieved before
        the next one's permit is withdrawn: at no moment does a turn end that no client may follow. `permit_for` returns
        the permit that a client should have, without an epoch.
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
                yield before, permit

    def _next_epoch(self) -> int:
        self._epoch = (self._epoch + 1) % EPOCH_COUNT or 1
        return self._epoch


def _write_order(before: Permit | None, after: Permit) -> int:
    relieved = before is not None and before.relieved
    if relieved and not after.relieved:
        return 0
    if before and before.may and not after.may:
        return 1
    return 3 if after.relieved and not relieved else 2
