"""Other connections of a simulated coordinator: kernels, users' requests, subscribers and hostile processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.agent.link import DOORBELL
from jupyter_gpushare.agent.pages import ClientPage, Page
from jupyter_gpushare.agent.rule import TURN_WORDS, check_of, ffi

from ..support.virtual_clock import EventOwner
from .simulated_sockets import ActorConnection

if TYPE_CHECKING:
    from .simulated_host import FaultHost, FaultyClient

RECONNECT_SECONDS = 0.5  # upper bound of the time before a new connection


class ExternalActor(EventOwner):
    """Actor with one connection at a time, which reads whole messages."""

    def __init__(self, host: FaultHost, uid: int) -> None:
        super().__init__()
        self.host, self.clock, self.uid = host, host.clock, uid
        self.random = host.fork_random()
        self.pid = host.next_pid()
        self.connection: ActorConnection | None = None
        self._received = bytearray()

    def connect(self) -> bool:
        self.connection = self.host.connect_actor(self.pid, self.uid, self._on_readable)
        self._received.clear()
        return self.connection is not None

    def send(self, message: dict[str, Any] | bytes, descriptors: list[int] | None = None) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        if self.connection:
            self.connection.send(line, descriptors)

    def _on_readable(self) -> None:
        self.clock.schedule(self.clock.now + self.random.expovariate(5000.0), self, self._read)

    def _read(self) -> None:
        while self.connection and (received := self.connection.receive()) is not None:
            data, descriptors = received
            assert not descriptors, "only processes get descriptors"
            if not data:
                self.disconnect()
                self.on_disconnected()
                return
            self._received += data
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if line.strip(b"\0") and self.connection:
                    self.on_message(json.loads(line))

    def disconnect(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def die(self) -> None:
        self.alive = False
        self.disconnect()

    def on_disconnected(self) -> None:
        """Handle the end of the connection."""

    def on_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "error" and message["reason"] == "internal":
            self.host.bugs.append(f"{type(self).__name__} {self.pid} got an internal error: {message}")


class NotebookKernel(ExternalActor):
    """Notebook kernel of a client, which stays attached and reports the begin and the end of cells."""

    def __init__(self, client: FaultyClient) -> None:
        super().__init__(client.host, client.uid)
        self.client = client
        self._cells = 0
        self._open: list[str] = []
        self.on_disconnected()

    def on_disconnected(self) -> None:
        self.clock.schedule(self.clock.now + self.random.uniform(0.0, RECONNECT_SECONDS), self, self._attach)

    def _attach(self) -> None:
        if not self.connect():
            self.on_disconnected()
            return
        self.send({"type": "attach", "client": self.client.name, "token": self.client.token})
        self._open.clear()
        self._schedule_cell()

    def _schedule_cell(self) -> None:
        self.clock.schedule(self.clock.now + self.random.expovariate(2.0), self, self._cell, self.connection)

    def _cell(self, connection: ActorConnection) -> None:
        if connection is not self.connection:
            return
        if self._open and self.random.random() < 0.7:
            request = self._open.pop(self.random.randrange(len(self._open)))
            self.send({"type": "cell", "state": "end", "request": request})
        else:
            self._cells += 1
            self._open.append(f"cell-{self._cells}")
            self.send({"type": "cell", "state": "start", "request": self._open[-1]})
        self._schedule_cell()


class RequestClient(ExternalActor):
    """Client with one request. `answer` is None if the connection ended before the answer."""

    def __init__(self, host: FaultHost, uid: int, request: dict[str, Any], pid: int | None = None) -> None:
        super().__init__(host, uid)
        self.pid = pid or self.pid
        self.request = {"id": 7, **request}
        self.is_done = False
        self.answer: dict[str, Any] | None = None
        self.asked_at = self.clock.now
        if self.connect():
            self.send(self.request)
        else:
            self.is_done = True

    def on_disconnected(self) -> None:
        self.is_done = True

    def on_message(self, message: dict[str, Any]) -> None:
        super().on_message(message)
        if message.get("id") == 7:
            self.is_done, self.answer = True, message
            self.disconnect()


class SnapshotSubscriber(ExternalActor):
    """Subscriber to snapshots that sometimes does not read for a while."""

    def __init__(self, host: FaultHost, uid: int) -> None:
        super().__init__(host, uid)
        self.snapshots = 0
        self.on_disconnected()

    def on_disconnected(self) -> None:
        self.clock.schedule(self.clock.now + self.random.uniform(0.0, RECONNECT_SECONDS), self, self._subscribe)

    def _subscribe(self) -> None:
        if self.connect():
            self.send({"type": "subscribe", "id": 1})
        else:
            self.on_disconnected()

    def _on_readable(self) -> None:
        slow = self.random.random() < 0.05
        self.clock.schedule(self.clock.now + self.random.expovariate(1.0 if slow else 5000.0), self, self._read)

    def on_message(self, message: dict[str, Any]) -> None:
        super().on_message(message)
        self.snapshots += message["type"] == "snapshot"


class HostileProcess(ExternalActor):
    """Process that sends a valid or invalid hello, then random lines; its report has random values."""

    def __init__(self, host: FaultHost, uid: int, devices: tuple[str, ...]) -> None:
        super().__init__(host, uid)
        self.devices = devices
        self._page = Page()
        self._client_page = ClientPage.new(self.random.getrandbits(64), devices)
        self._names = [f"hostile-{self.pid}", *host.clients]
        self.act_count = 0
        self._act()

    def on_disconnected(self) -> None:
        pass

    def _act(self) -> None:
        random = self.random
        self.clock.schedule(self.clock.now + random.expovariate(20.0), self, self._act)
        self.act_count += 1
        if self.connection is None:
            if self.connect() and random.random() < 0.9:
                self._send_hello()
            return
        kind = random.randrange(10)
        if kind < 5:
            self._report_false_turn()
            self.send(DOORBELL if random.random() < 0.8 else {"type": "details", "seq": random.randrange(4)})
        elif kind < 7:
            self._write_random_bytes()
        elif kind == 7:
            self.send(random.randbytes(random.choice((1, 30, 5000, 70_000))) + b"\n")
        elif kind == 8:
            self._send_request_for_other_client()
        elif random.random() < 0.3:
            self.disconnect()

    def _send_hello(self) -> None:
        random = self.random
        devices = [{"uuid": uuid, "name": "Simulated GPU", "memory": self.host.memory} for uuid in self.devices]
        hello = {
            "type": "hello",
            "client": self._names[0],
            "token": "another",
            "devices": devices if random.random() < 0.9 else [*devices, *devices],
        }
        self._page.close()
        self._page = Page()
        self._report_false_turn()
        files = [self._page.descriptor, self._client_page.descriptor]
        self.send(hello, files if random.random() < 0.9 else random.sample(files, random.randrange(len(files))))

    def _report_false_turn(self) -> None:
        """Report a turn with a correct check: a permitted turn, a turn of another client, or a random one."""
        random, now = self.random, round(self.clock.now * 1e9)
        permit = self._page.control.permit
        others = [agent.turn.turn for agent in self.host.agents()]
        turn = random.choice((permit.turn, permit.turn, random.getrandbits(64), *others))
        times = [random.choice((0, now, random.getrandbits(64))) for _ in range(3)]
        words = (turn, *times, permit.epoch, random.randrange(6), random.randrange(3), 0, 0)
        found = ffi.new("struct gpushare_turn *", words)
        found.check = check_of(found[0], TURN_WORDS)
        self._page.report.turn = found[0]
        self._page.report.waiting = random.randrange(3)

    def _write_random_bytes(self) -> None:
        """Write random bytes anywhere in the report."""
        view = memoryview(ffi.buffer(ffi.addressof(self._page.view, "report"))).cast("B")
        begin = self.random.randrange(len(view))
        end = min(len(view), begin + self.random.choice((4, 8, 64)))
        view[begin:end] = self.random.randbytes(end - begin)
        view.release()

    def _send_request_for_other_client(self) -> None:
        name = self.random.choice(self._names[1:] or ["unknown"])
        kind = self.random.choice(("suspend", "evict", "release", "quota", "unregister", "hold", "move"))
        extra = {"quota": {"changes": {"limit": 0.01}}, "move": {"device": "1"}}.get(kind, {})
        self.send({"type": kind, "id": 1, "client": name, **extra})

    def die(self) -> None:
        super().die()
        self._page.close()
        self._client_page.close()
