"""The other peers of a coordinator: notebook kernels, users with their commands, front ends, and liars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.agent.link import DOORBELL
from jupyter_gpushare.agent.pages import ClientPage, Page
from jupyter_gpushare.agent.rule import TURN_WORDS, check_of, ffi

from ..support.clock import Owner
from .sockets import Connection

if TYPE_CHECKING:
    from .host import ClientOf, Host

AGAIN = 0.5  # seconds after which a lost connection is sought anew


class Caller(Owner):
    """Has one connection at a time and reads whole messages."""

    def __init__(self, host: Host, uid: int) -> None:
        super().__init__()
        self.host, self.clock, self.uid = host, host.clock, uid
        self.random = host.fork()
        self.pid = host.next_pid()
        self.connection: Connection | None = None
        self._received = bytearray()

    def connect(self) -> bool:
        self.connection = self.host.call(self.pid, self.uid, self._woken)
        self._received.clear()
        return self.connection is not None

    def say(self, message: dict[str, Any] | bytes, descriptors: list[int] | None = None) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        if self.connection:
            self.connection.send(line, descriptors)

    def _woken(self) -> None:
        self.clock.at(self.clock.now + self.random.expovariate(5000.0), self, self._read)

    def _read(self) -> None:
        while self.connection and (part := self.connection.receive()) is not None:
            data, descriptors = part
            assert not descriptors, "only processes are given descriptors"
            if not data:
                self.hang_up()
                self.lost()
                return
            self._received += data
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if line.strip(b"\0") and self.connection:
                    self.hears(json.loads(line))

    def hang_up(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def die(self) -> None:
        self.alive = False
        self.hang_up()

    def lost(self) -> None:
        """The other end is gone."""

    def hears(self, message: dict[str, Any]) -> None:
        if message["type"] == "error" and message["reason"] == "internal":
            self.host.bugs.append(f"{type(self).__name__} {self.pid} met a bug: {message}")


class Notebook(Caller):
    """The kernel of a client: attached for as long as it lives, it says when cells begin and end."""

    def __init__(self, client: ClientOf) -> None:
        super().__init__(client.host, client.uid)
        self.client = client
        self._cells = 0
        self._open: list[str] = []
        self.lost()

    def lost(self) -> None:
        self.clock.at(self.clock.now + self.random.uniform(0.0, AGAIN), self, self._attach)

    def _attach(self) -> None:
        if not self.connect():
            self.lost()
            return
        self.say({"type": "attach", "client": self.client.name, "token": self.client.token})
        self._open.clear()
        self._later()

    def _later(self) -> None:
        self.clock.at(self.clock.now + self.random.expovariate(2.0), self, self._cell, self.connection)

    def _cell(self, connection: Connection) -> None:
        if connection is not self.connection:
            return
        if self._open and self.random.random() < 0.7:
            request = self._open.pop(self.random.randrange(len(self._open)))
            self.say({"type": "cell", "state": "end", "request": request})
        else:
            self._cells += 1
            self._open.append(f"cell-{self._cells}")
            self.say({"type": "cell", "state": "start", "request": self._open[-1]})
        self._later()


class User(Caller):
    """Asks for one thing and waits for the answer, which it then has; None: the connection was lost before."""

    def __init__(self, host: Host, uid: int, request: dict[str, Any], pid: int | None = None) -> None:
        super().__init__(host, uid)
        self.pid = pid or self.pid
        self.request = {"id": 7, **request}
        self.done = False
        self.answer: dict[str, Any] | None = None
        self.asked_at = self.clock.now
        if self.connect():
            self.say(self.request)
        else:
            self.done = True

    def lost(self) -> None:
        self.done = True

    def hears(self, message: dict[str, Any]) -> None:
        super().hears(message)
        if message.get("id") == 7:
            self.done, self.answer = True, message
            self.hang_up()


class FrontEnd(Caller):
    """Follows the snapshot; now and then it does not read for a while."""

    def __init__(self, host: Host, uid: int) -> None:
        super().__init__(host, uid)
        self.snapshots = 0
        self.lost()

    def lost(self) -> None:
        self.clock.at(self.clock.now + self.random.uniform(0.0, AGAIN), self, self._subscribe)

    def _subscribe(self) -> None:
        if self.connect():
            self.say({"type": "subscribe", "id": 1})
        else:
            self.lost()

    def _woken(self) -> None:
        slow = self.random.random() < 0.05
        self.clock.at(self.clock.now + self.random.expovariate(1.0 if slow else 5000.0), self, self._read)

    def hears(self, message: dict[str, Any]) -> None:
        super().hears(message)
        self.snapshots += message["type"] == "snapshot"


class Liar(Caller):
    """A process that says hello properly or not, then anything; its report holds anything too."""

    def __init__(self, host: Host, uid: int, devices: tuple[str, ...]) -> None:
        super().__init__(host, uid)
        self.devices = devices
        self._page = Page()
        self._client_page = ClientPage.new(self.random.getrandbits(64), devices)
        self._names = [f"liar-{self.pid}", *host.clients]
        self.lies = 0
        self._lie()

    def lost(self) -> None:
        pass

    def _lie(self) -> None:
        random = self.random
        self.clock.at(self.clock.now + random.expovariate(20.0), self, self._lie)
        self.lies += 1
        if self.connection is None:
            if self.connect() and random.random() < 0.9:
                self._hello()
            return
        kind = random.randrange(10)
        if kind < 5:
            self._lie_about_turns()
            self.say(DOORBELL if random.random() < 0.8 else {"type": "details", "seq": random.randrange(4)})
        elif kind < 7:
            self._scribble()
        elif kind == 7:
            self.say(random.randbytes(random.choice((1, 30, 5000, 70_000))) + b"\n")
        elif kind == 8:
            self._foreign()
        elif random.random() < 0.3:
            self.hang_up()

    def _hello(self) -> None:
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
        self._lie_about_turns()
        files = [self._page.descriptor, self._client_page.descriptor]
        self.say(hello, files if random.random() < 0.9 else random.sample(files, random.randrange(len(files))))

    def _lie_about_turns(self) -> None:
        """Report a turn with a right check: one that it was permitted, that another client has, or any other."""
        random, now = self.random, round(self.clock.now * 1e9)
        permit = self._page.orders.permit
        others = [agent.turn.turn for agent in self.host.agents()]
        turn = random.choice((permit.turn, permit.turn, random.getrandbits(64), *others))
        times = [random.choice((0, now, random.getrandbits(64))) for _ in range(3)]
        words = (turn, *times, permit.epoch, random.randrange(6), random.randrange(3), 0, 0)
        found = ffi.new("struct gpushare_turn *", words)
        found.check = check_of(found[0], TURN_WORDS)
        self._page.report.turn = found[0]
        self._page.report.waiting = random.randrange(3)

    def _scribble(self) -> None:
        """Write random bytes anywhere in the report."""
        view = memoryview(ffi.buffer(ffi.addressof(self._page.view, "report"))).cast("B")
        begin = self.random.randrange(len(view))
        end = min(len(view), begin + self.random.choice((4, 8, 64)))
        view[begin:end] = self.random.randbytes(end - begin)
        view.release()

    def _foreign(self) -> None:
        name = self.random.choice(self._names[1:] or ["unknown"])
        kind = self.random.choice(("suspend", "evict", "release", "quota", "forget", "hold", "outlook"))
        extra = {"changes": {"limit": 0.01}} if kind == "quota" else {}
        self.say({"type": kind, "id": 1, "client": name, **extra})

    def die(self) -> None:
        super().die()
        self._page.close()
        self._client_page.close()
