"""What the pages of clients say of their turns: a level for each client, and in which order changes must be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .commands import Permit
from .model import Client

EPOCHS = 1 << 32


class Permits:
    """The permits of all clients. A new permission has a new epoch: one that a process has left under is used up."""

    def __init__(self) -> None:
        self._epoch = 0
        self._touched: dict[str, Client] = {}
        self._used: set[str] = set()  # clients that need a new epoch for what they may do next
        self._joined: set[str] = set()  # clients with a page on which nothing has been written

    def touch(self, client: Client) -> None:
        """Its permit may have to change."""
        self._touched[client.id] = client

    def use_up(self, client: Client) -> None:
        """Let no process of the client enter again under the present epoch."""
        self._used.add(client.id)
        self.touch(client)

    def joined(self, client: Client) -> None:
        """A process of the client has come, whose page says nothing yet: write its permit anew."""
        self._joined.add(client.id)
        self.touch(client)

    def forget(self, client: Client) -> None:
        self._touched.pop(client.id, None)
        self._used.discard(client.id)
        self._joined.discard(client.id)

    def settle(self, wanted: Callable[[Client], Permit]) -> list[Permit]:
        """Return the changes, in the order in which they must be written.

        A next client's permit comes before the running one is relieved, and a running one ceases to be relieved before
        the next one's permit is withdrawn: at no moment does a turn end that no client may follow. `wanted` says what a
        client's permit is to be, whatever its epoch.
        """
        changes = sorted(self._changes(wanted), key=lambda change: _order(*change))
        return [permit for _, permit in changes]

    def _changes(self, wanted: Callable[[Client], Permit]) -> Iterator[tuple[Permit | None, Permit]]:
        touched, self._touched = self._touched, {}
        for client in touched.values():
            before, permit = client.permit, wanted(client)
            joined = client.id in self._joined
            if before is None and not permit.may and not (joined and any(p.turn for p in client.processes.values())):
                continue
            new = before is None or joined or (permit.may and (not before.may or client.id in self._used))
            permit = replace(permit, epoch=self._next_epoch() if new or before is None else before.epoch)
            if new:
                self._used.discard(client.id)
                self._joined.discard(client.id)
            if permit != before:
                client.permit = permit
                yield before, permit

    def _next_epoch(self) -> int:
        self._epoch = (self._epoch + 1) % EPOCHS or 1
        return self._epoch


def _order(before: Permit | None, after: Permit) -> int:
    relieved = before is not None and before.relieved
    if relieved and not after.relieved:
        return 0
    if before and before.may and not after.may:
        return 1
    return 3 if after.relieved and not relieved else 2
