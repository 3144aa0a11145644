"""Coordinators in virtual time that write random permits, whole or torn, even to pages of ended connections."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.agent.link import DOORBELL
from jupyter_gpushare.agent.pages import ClientPage
from jupyter_gpushare.agent.rule import PERMIT_WORDS, check_of, ffi
from jupyter_gpushare.wire.page import Page

from ..support.simulated_process import SimulatedProcess
from ..support.virtual_clock import EventOwner

if TYPE_CHECKING:
    from .simulated_host import SimulatedHost

Part = tuple[bytes, list[int]]


class ProcessConnection:
    """Connection of one process with one coordinator."""

    def __init__(self, coordinator: StandInCoordinator, agent: SimulatedProcess) -> None:
        self.coordinator, self.agent = coordinator, agent
        self._down: deque[Part] = deque()
        self.open = True
        self.page: WrittenPage | None = None

    # --- the process's end

    def send(self, line: bytes, descriptors: list[int] | None = None) -> int:
        if not self.open:
            return -1
        if line != DOORBELL:
            given = [os.dup(descriptor) for descriptor in descriptors or []]
            coordinator = self.coordinator
            coordinator.call_later(0.001, coordinator.on_hello, self, json.loads(line), given)
        return 1

    def receive(self) -> Part | None:
        if self._down:
            return self._down.popleft()
        return None if self.open else (b"", [])

    def close(self) -> None:
        self.open = False
        for _, descriptors in self._down:
            for descriptor in descriptors:
                os.close(descriptor)
        self._down.clear()

    # --- the coordinator's end

    def send_to_process(self, line: bytes, descriptors: list[int] | None = None) -> None:
        if self.open and self.agent.alive:
            self._down.append((line, descriptors or []))
            self.agent.wake()

    def end(self) -> None:
        if self.open:
            self.open = False
            self.agent.wake()


class WrittenPage(Page):
    """Page of a process, as the coordinator maps it.

    `written` has every permit that was ever stored in the page.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.permit: Any = ffi.addressof(self.view.control, "permit")
        self.words: Any = ffi.cast("uint64_t *", self.permit)
        self.written = {bytes(ffi.sizeof("struct gpushare_permit"))}
        self.busy = False

    def close(self) -> None:
        self.permit = self.words = None
        super().close()


class StandInCoordinator(EventOwner):
    """Coordinator that may hang, die in the middle of a store, and go on after another has taken over."""

    def __init__(self, host: SimulatedHost, number: int) -> None:
        super().__init__()
        self.host, self.clock, self.number = host, host.clock, number
        self.random = host.fork_random()
        self.connections: list[ProcessConnection] = []
        self._clients: dict[str, ClientPage] = {}
        self._slots: dict[str, int] = {}
        self._epochs = self.random.randrange(1, 100)
        self._beat()

    def __str__(self) -> str:
        return f"coordinator {self.number}"

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call a function after a random time with the mean `seconds`."""
        self.clock.schedule(self.clock.now + self.random.expovariate(1 / seconds), self, callback, *args)

    # --- connections

    def connect(self, agent: SimulatedProcess) -> ProcessConnection:
        connection = ProcessConnection(self, agent)
        self.connections.append(connection)
        return connection

    def on_hello(self, connection: ProcessConnection, message: dict[str, Any], descriptors: list[int]) -> None:
        page, client = descriptors
        connection.page = WrittenPage(page)
        name = message["client"]
        joins = name in self._clients
        if joins:
            os.close(client)
        else:
            self._clients[name] = ClientPage(client)
        found = self._clients[name]
        self._slots[name] = self._slots.get(name, -1) + 1
        control = connection.page.view.control
        control.slot = self._slots[name] % 64
        control.quantum_ns, control.idle_release_ns = 50_000_000, self.random.choice((0, 10_000_000))
        control.heartbeat_ns = round(self.clock.now * 1e9)
        found.refresh_devices()
        for device in message["devices"]:
            found.add_device(device["uuid"])
        answer = b'{"type": "join"}\n' if joins else b'{"type": "welcome"}\n'
        connection.send_to_process(answer, [os.dup(found.descriptor)] if joins and connection.open else None)

    def _beat(self) -> None:
        for connection in self.connections:
            if connection.page and connection.open:
                connection.page.view.control.heartbeat_ns = round(self.clock.now * 1e9)
        self.clock.schedule(self.clock.now + 1.0, self, self._beat)

    # --- permits

    def write_random_permit(self) -> None:
        """Write a random permit to the page of a random process, which may have ended long ago."""
        random = self.random
        if connections := [
            connection for connection in self.connections if connection.page and not connection.page.busy
        ]:
            connection = random.choice(connections[-8:])
            page = connection.page
            assert page
            now = round(self.clock.now * 1e9)
            self._epochs += random.random() < 0.8
            deadline = random.choice((0, now - 1, now + random.randrange(80_000_000)))
            flags = random.choice((0, 1, 1, 1, 3, 3, 5, 7, 2))
            devices = random.choice((0, 1, 2, 3, 3, 3, 3, random.getrandbits(64) | 3))
            self.write(connection, self.host.random_turn(random), devices, deadline, self._epochs, flags)

    def write(
        self, connection: ProcessConnection, turn: int, devices: int, deadline: int, epoch: int, flags: int
    ) -> None:
        """Store the words one after the other in random order; processes may read the page in between."""
        page = connection.page
        assert page
        permit = ffi.new("struct gpushare_permit *", (turn, devices, deadline, epoch, flags, 0))
        permit.check = check_of(permit[0], PERMIT_WORDS)
        page.busy = True
        page.written.add(bytes(ffi.buffer(permit)))
        words = list(range(PERMIT_WORDS + 1))
        self.random.shuffle(words)
        whole = self.random.random() < 0.5
        self._store(connection, ffi.cast("uint64_t *", permit), permit, words, whole)

    def _store(self, connection: ProcessConnection, source: Any, permit: Any, words: list[int], whole: bool) -> None:
        page = connection.page
        assert page
        while words:
            word = words.pop()
            page.words[word] = source[word]
            if words and not whole:
                self.call_later(
                    self.random.choice((1e-5, 1e-5, 0.001)), self._store, connection, source, permit, words, whole
                )
                return
        page.busy = False
        if self.random.random() < 0.9:
            connection.send_to_process(DOORBELL)

    # --- the end

    def kill(self) -> None:
        self.alive = False
        for connection in self.connections:
            connection.end()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
            if connection.page:
                connection.page.close()
        for client in self._clients.values():
            client.close()
