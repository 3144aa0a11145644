"""Registry of clients, devices and processes by their names."""

from __future__ import annotations

from ..base.errors import IllegalEvent, UnknownClient
from .model import Client, Device, Process


class EntityRegistry:
    """Clients, devices and processes of the scheduler, in which event handlers look names up."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.devices: dict[str, Device] = {}
        self.processes: dict[int, Process] = {}

    def client(self, identity: str) -> Client:
        try:
            return self.clients[identity]
        except KeyError:
            raise UnknownClient(f"no client {identity!r} is known here") from None

    def process(self, number: int) -> Process:
        try:
            return self.processes[number]
        except KeyError:
            raise IllegalEvent(f"no process {number} has joined") from None
