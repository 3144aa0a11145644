"""Start-time fair queueing, which the policies `fair` and `interactive` build on.

Each client has a virtual clock, in seconds, that advances by the time of its turns over the client's weight. A device
has a virtual clock as well, which follows the clocks of its contenders. A client that begins to wait sets its clock to
the device's if it is behind. So a client gets no credit for time in which it did not contend for the device. A client
pays nothing for time without other contenders (Goyal et al., SIGCOMM'96).
"""

from __future__ import annotations

from ...interface.settings import Settings
from ...state.model import Client, Device, Grant
from .base import Policy


class VirtualClocks(Policy):
    """Base of policies that count use by virtual clocks."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._clocks: dict[str, float] = {}
        self._device_clocks: dict[str, float] = {}

    def weight(self, client: Client) -> float:
        """Return the seconds of a turn that advance the client's clock by one second."""
        return 1.0

    def run_ahead_seconds(self, client: Client) -> float:
        """Return the seconds of a turn that a client runs ahead of the device's clock while no other client waits."""
        return 0.0

    def clock(self, client: Client) -> float:
        """Return the client's clock at the beginning of its turn, or while it waits."""
        return self._clocks.get(client.id, 0.0)

    def key(self, client: Client) -> float:
        return self.clock(client)

    def on_wait(self, client: Client, now: float) -> None:
        clock = max((self._clock_now(device, client, now) for device in self.devices_of(client)), default=0.0)
        self._clocks[client.id] = max(self.clock(client), clock)
        # The devices of a gang get one clock: a client that waits there already comes before the gang once at most.
        for device in self.devices_of(client) if len(client.device_bindings) > 1 else ():
            self._device_clocks[device.info.uuid] = max(self._device_clocks.get(device.info.uuid, 0.0), clock)

    def charge(self, client: Client, seconds: float, now: float) -> None:
        super().charge(client, seconds, now)
        began = self.clock(client)
        ended = self._clocks[client.id] = began + seconds / self.weight(client)
        for device in self.devices_of(client):
            head = device.queue.head(now)
            ahead = self.run_ahead_seconds(client) / self.weight(client)
            clock = max(began, ended - ahead) if head is None else self.clock(head)
            uuid = device.info.uuid
            self._device_clocks[uuid] = max(self._device_clocks.get(uuid, 0.0), min(ended, clock))

    def remove(self, client: Client) -> None:
        super().remove(client)
        self._clocks.pop(client.id, None)

    def take_over_state(self, other: Policy) -> None:
        super().take_over_state(other)
        if isinstance(other, VirtualClocks):
            _raise(self._clocks, other._clocks)
            _raise(self._device_clocks, other._device_clocks)

    def _clock_now(self, device: Device, newcomer: Client, now: float) -> float:
        clock = self._device_clocks.get(device.info.uuid, 0.0)
        clocks = [self._clock_in_turn(grant, now) for grant in device.grants if grant.client is not newcomer]
        if clocks and (head := device.queue.head(now)) is not None:
            clocks.append(self.clock(head))
        return max(clock, min(clocks, default=0.0))

    def _clock_in_turn(self, grant: Grant, now: float) -> float:
        client = grant.client
        return self.clock(client) + max(0.0, now - grant.granted_at - self.run_ahead_seconds(client)) / self.weight(
            client
        )


def _raise(clocks: dict[str, float], others: dict[str, float]) -> None:
    """Set each clock to that of `others` if it is behind."""
    for name, clock in others.items():
        clocks[name] = max(clocks.get(name, 0.0), clock)
