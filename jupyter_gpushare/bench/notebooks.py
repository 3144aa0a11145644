"""Notebooks that exist only on the wire: many of them in one process, with real pages and lock files, without a shim.

As a program, this module runs some as its arguments say and prints what turns they had.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import random
import socket
import time
from struct import pack
from typing import Any, NamedTuple

from ..wire import address, messages
from ..wire import page as pages
from ..wire.client import AsyncClient, encode

WORK, THINK = 0.5, 10.0  # seconds that a cell's work takes, and that its user thinks then; exponentially distributed
ASKED = 1.0  # seconds between two looks at how long a cell has to wait still
FILLS = 0.6  # of a device: no two run there together
TRY = 0.02  # seconds between two tries to enter a turn, beside those that a bell causes
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Turn(NamedTuple):
    """Times in monotonic seconds."""

    device: str
    wanted: float
    began: float
    deadline: float  # 0: none
    drained: float


def _memfd(struct: str, size: str) -> int:
    _, constants = pages.layout()
    magic, version, size_of_it = (constants[f"GPUSHARE_{name}"] for name in ("PAGE_MAGIC", "PAGE_VERSION", size))
    descriptor = os.memfd_create(struct, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, size_of_it)
    os.pwrite(descriptor, pack("4I", magic, version, size_of_it, os.getpid() if struct == "gpushare_page" else 0), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


class Process:
    """What a process with the shim is to a coordinator: it enters turns by permit, ends them in time, and moves its
    memory. It has the device alone, so an exclusive lock on the device's file is all that its turns need."""

    def __init__(self, client: str, device: str, memory: int) -> None:
        self._client, self._device, self._memory = client, device, memory
        self._loop = asyncio.get_running_loop()
        self._page = pages.Page(_memfd("gpushare_page", "PAGE_BYTES"))
        self._page.report.allocated = self._memory
        self._client_page = pages.ClientPage(_memfd("gpushare_client", "CLIENT_BYTES"))
        self._client_page.view.turn = random.randrange(pages.FIRST_TURN, 1 << 62)
        self._client_page.add_device(device)
        self._lock, self._bell = _open(device, "lock"), _bell(device)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._turn, self._used = pages.Turn(), 0
        self._wanted = self._deadline = self._work_left = 0.0
        self._waits = False
        self._end: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._worked: asyncio.Future[None] = self._loop.create_future()
        self.turns: list[Turn] = []

    def connect(self, path: str) -> None:
        report = messages.DeviceReport(uuid=self._device, name="Simulated GPU", memory=int(self._memory / FILLS))
        hello = messages.Hello(
            pid=os.getpid(), client=self._client, token=self._client, devices=[report], simulated=True
        )
        rights = array.array("i", [self._page.descriptor, self._client_page.descriptor])
        self._socket.connect(path)
        self._socket.sendmsg([encode(hello)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._rung)

    async def work(self, seconds: float) -> None:
        """Have the device for so long, in as many turns as it takes."""
        self._work_left, self._worked = seconds, self._loop.create_future()
        if self._is_in:
            self._begin()
        else:
            self._want()
        await self._worked

    @property
    def _is_in(self) -> bool:
        return self._turn.phase == pages.IN

    def _want(self) -> None:
        self._wanted, self._waits = time.monotonic(), True
        self._page.report.waiting = 1
        self._socket.send(messages.DOORBELL)
        self._look()

    def _rung(self) -> None:
        with contextlib.suppress(OSError):
            if not self._socket.recv(1 << 16):
                raise SystemExit("the coordinator has gone")
        self._look()

    def _look(self) -> None:
        permit, report = self._page.read_permit(), self._page.report
        if permit is None:
            self._loop.call_later(0.001, self._look)
            return
        may = bool(permit.flags & pages.MAY)
        if self._is_in:
            if may and permit.turn == self._turn.turn:
                self._plan_end()
            else:
                self._drain()
            return
        report.resident = min(report.resident, self._page.orders.resident_target)
        if self._waits and may and permit.epoch != self._used:
            self._try(permit)

    def _try(self, permit: pages.Permit) -> None:
        if self._again:
            self._again.cancel()
            self._again = None
        self._loop.remove_reader(self._bell)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._report(self._turn._replace(tries=self._turn.tries + 1))
            self._loop.add_reader(self._bell, self._heard)
            self._again = self._loop.call_later(TRY, self._look)
            return
        self._waits = False
        self._page.report.waiting, self._page.report.resident = 0, self._memory
        self._report(pages.Turn(permit.turn, time.monotonic_ns(), 0, 0, permit.epoch, pages.IN, self._turn.tries))
        self._socket.send(messages.DOORBELL)
        self._begin()

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        self._look()

    def _report(self, turn: pages.Turn) -> None:
        self._turn = turn
        self._page.write_turn(turn)

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._plan_end()

    def _plan_end(self) -> None:
        """At the deadline, or when its work is done."""
        if self._end:
            self._end.cancel()
        permit = self._page.read_permit() or pages.Permit()
        self._deadline = permit.deadline_ns / 1e9 if permit.flags & pages.RELIEVED else 0.0
        done = self._since + self._work_left if self._work_left else float("inf")
        first = min(done, self._deadline or float("inf"))
        self._end = None if first == float("inf") else self._loop.call_at(first, self._pause, first == done)

    def _pause(self, done: bool) -> None:
        self._end = None
        if not self._is_in:
            return
        if done:
            self._work_left = 0.0
            self._worked.set_result(None)
            self._plan_end()
        else:
            self._drain()

    def _drain(self) -> None:
        if self._end:
            self._end.cancel()
        now, report = time.monotonic(), self._page.report
        if self._work_left:
            self._work_left = max(1e-3, self._work_left - (now - self._since))
        report.launches += 100
        report.blocks += 1000
        report.gpu_ns += int(1e9 * (now - self._since))
        report.sampled_ns = int(1e9 * now)
        report.resident = min(report.resident, self._page.orders.resident_target)
        self._used = self._turn.epoch
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        ended = int(now * 1e9)
        self._report(self._turn._replace(phase=pages.OUT, closed_ns=ended, ended_ns=ended))
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"\n")
        self.turns.append(Turn(self._device, self._wanted, self._turn.began_ns / 1e9, self._deadline, now))
        if self._work_left:
            self._wanted, self._waits, report.waiting = time.monotonic(), True, 1
        self._socket.send(messages.DOORBELL)


def _open(device: str, kind: str) -> int:
    folder = address.lock_directory()
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{device}.{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)


def _bell(device: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(address.lock_directory() / f"{device}.bell", 0o666)
    return _open(device, "bell")


async def notebook(path: str, name: str, memory: int, chance: random.Random, turns: list[Turn]) -> None:
    """Run a cell, think, run the next one, for ever. Kernel and process are connected as real ones are."""
    kernel = await AsyncClient.connect(path, 30)
    where = await kernel.request(messages.Register(client=name, token=name, label=name), 30)
    kernel.send(messages.Attach(client=name, token=name, label=name))
    process = Process(name, where["devices"][0], memory)
    process.turns = turns
    process.connect(path)
    for number in itertools.count():
        await asyncio.sleep(chance.expovariate(1 / THINK))
        kernel.send(messages.Cell(state="start", request=str(number)))
        work = asyncio.ensure_future(process.work(min(20 * WORK, 0.02 + chance.expovariate(1 / WORK))))
        while not (await asyncio.wait([work], timeout=ASKED))[0]:
            await kernel.request(messages.Outlook(client=name), 30)
        kernel.send(messages.Cell(state="end", request=str(number)))


async def follower(path: str) -> None:
    """What a Jupyter server is to a coordinator while its panel is open."""
    async for _ in (await AsyncClient.connect(path, 30)).subscribe(30):
        pass


async def run(args: argparse.Namespace) -> None:
    """Print the turns, and end all of it with this process. Raises what ended one of the notebooks."""
    turns: list[Turn] = []
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not broken.done():
            broken.set_exception(RuntimeError(str(context)))

    loop.set_exception_handler(report)
    chance = random.Random(args.first)
    names = [f"notebook{number}" for number in range(args.first, args.first + args.count)]
    parts = [notebook(args.socket, name, args.memory, chance, turns) for name in names]
    parts += [follower(args.socket) for _ in range(args.followers)]
    tasks = [asyncio.ensure_future(part) for part in parts]
    done, _ = await asyncio.wait([broken, *tasks], timeout=args.seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    print(json.dumps(turns), flush=True)
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("socket", str), ("first", int), ("count", int), ("followers", int), ("memory", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("seconds", type=float)
    asyncio.run(run(parser.parse_args()))
