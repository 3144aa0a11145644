"""Locks of the devices of a simulated host, with the turns that clients had under the locks."""

from __future__ import annotations

from collections.abc import Collection

OTHER_USER = "another user"
OTHER_TURN = (1 << 61) + 7


class DeviceLocks:
    """Locks of devices. `turns` lists (client, from, until) for every time in which a client held a lock, by device."""

    def __init__(self) -> None:
        self.turns: dict[str, list[tuple[str, float, float]]] = {}
        self._entries: dict[str, dict[int, dict[str, float]]] = {}  # by device, turn and client: the time of entry

    def add_device(self, uuid: str) -> None:
        self.turns[uuid] = []
        self._entries[uuid] = {}

    def enter(self, client: str, devices: Collection[str], turn: int, join: bool, now: float) -> bool:
        """Lock all devices for the turn, or none. `join`: the turn must have locked the devices already."""
        for uuid in devices:
            if set(self._entries[uuid]) - {turn} or (join and turn not in self._entries[uuid]):
                return False
        for uuid in devices:
            self._entries[uuid].setdefault(turn, {}).setdefault(client, now)
        return True

    def leave(self, client: str, uuid: str, turn: int, now: float) -> None:
        """Unlock a device, unless other clients of the turn hold the lock."""
        since = self._entries[uuid][turn].pop(client)
        self.turns[uuid].append((client, since, now))
        if not self._entries[uuid][turn]:
            del self._entries[uuid][turn]

    def lock_by_other(self, uuid: str, now: float) -> None:
        """Lock the device for the coordinator of another user."""
        assert not self._entries[uuid]
        self._entries[uuid][OTHER_TURN] = {OTHER_USER: now}

    def unlock_by_other(self, uuid: str) -> None:
        assert self._entries[uuid].pop(OTHER_TURN)

    def turn_numbers(self, uuid: str) -> set[int]:
        """Return the turns that have locked the device: one at most, if all processes obey the rule."""
        return set(self._entries[uuid])

    def holders(self, uuid: str) -> dict[str, float]:
        """Return the clients that have the device's lock, with the times of their entries."""
        return {client: since for turn in self._entries[uuid].values() for client, since in turn.items()}

    def granted_seconds(self, uuid: str, since: float, now: float) -> dict[str, float]:
        """Return the seconds for which each client held the device after `since`."""
        seconds: dict[str, float] = {}
        held = [(client, began, now) for client, began in self.holders(uuid).items()]
        for client, began, ended in [*self.turns[uuid], *held]:
            seconds[client] = seconds.get(client, 0.0) + max(0.0, ended - max(began, since))
        return seconds

    def turn_order(self, uuid: str) -> list[str]:
        """Return the clients in the order in which they held the device. A client that holds it now comes last."""
        return [*(client for client, _, _ in self.turns[uuid]), *self.holders(uuid)]
