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
import struct
import time
from typing import Any, NamedTuple

from ..wire import address, messages
from ..wire import page as pages
from ..wire.client import AsyncClient, encode

WORK, THINK = 0.5, 10.0  # seconds that a cell's work takes, and that its user thinks then; exponentially distributed
ASKED = 1.0  # seconds between two looks at how long a cell has to wait still
FILLS = 0.6  # of a device: no two run there together
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_OLD = 1  # a page of this version: all its turns go by the coordinator, which is what is measured


class Turn(NamedTuple):
    """Times in monotonic seconds."""

    device: str
    wanted: float
    began: float
    deadline: float  # 0: none
    drained: float


def _memfd(name: str) -> int:
    _, constants = pages.layout()
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, constants["GPUSHARE_PAGE_BYTES"])
    os.pwrite(descriptor, struct.pack("4I", constants["GPUSHARE_PAGE_MAGIC"], _OLD, 4096, os.getpid()), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


class Process:
    """What a process with the shim is to a coordinator: it takes its turns, ends them in time, and moves its memory."""

    def __init__(self, client: str, device: str, memory: int) -> None:
        self._client, self._device, self._memory = client, device, memory
        self._loop = asyncio.get_running_loop()
        self._page = pages.Page(_memfd("gpushare_page"))
        self._page.report.allocated = self._memory
        self._others = [_memfd("gpushare_client"), _lock(device)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wanted = self._opened = self._deadline = 0.0
        self._work_left = 0.0
        self._epoch = 0
        self._end: asyncio.TimerHandle | None = None
        self._worked: asyncio.Future[None] = self._loop.create_future()
        self.turns: list[Turn] = []

    def connect(self, path: str) -> None:
        report = messages.DeviceReport(uuid=self._device, name="Simulated GPU", memory=int(self._memory / FILLS))
        hello = messages.Hello(
            pid=os.getpid(), client=self._client, token=self._client, devices=[report], simulated=True
        )
        rights = array.array("i", [self._page.descriptor, *self._others])
        self._socket.connect(path)
        self._socket.sendmsg([encode(hello)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._rung)

    async def work(self, seconds: float) -> None:
        """Have the device for so long, in as many turns as it takes."""
        self._work_left, self._worked = seconds, self._loop.create_future()
        if self._page.gate_open:
            self._begin()
        else:
            self._want()
        await self._worked

    def _want(self) -> None:
        self._wanted = time.monotonic()
        self._page.report.waiting = 1
        self._send(messages.Wants())

    def _rung(self) -> None:
        with contextlib.suppress(OSError):
            if not self._socket.recv(1 << 16):
                raise SystemExit("the coordinator has gone")
        report, (is_open, epoch) = self._page.report, self._page.gate
        if epoch != self._epoch:  # perhaps closed again by now
            self._epoch, self._opened = epoch, time.monotonic()
            report.waiting, report.resident = 0, self._memory
            self._begin()
        if is_open:
            self._plan_end()
        else:
            report.resident = min(report.resident, self._page.orders.resident_target)
            if report.drained_epoch != epoch:
                self._drain()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._plan_end()

    def _plan_end(self) -> None:
        """At the deadline, or when its work is done."""
        if self._end:
            self._end.cancel()
        self._deadline = self._page.orders.deadline_ns / 1e9
        done = self._since + self._work_left if self._work_left else float("inf")
        first = min(done, self._deadline or float("inf"))
        self._end = None if first == float("inf") else self._loop.call_at(first, self._pause, first == done)

    def _pause(self, done: bool) -> None:
        self._end = None
        if not self._page.gate_open:
            return
        if done:
            self._work_left = 0.0
            self._worked.set_result(None)
            self._plan_end()
        else:
            self._page.close_gate(self._page.epoch)
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
        report.drained_epoch = self._page.epoch
        self.turns.append(Turn(self._device, self._wanted, self._opened, self._deadline, now))
        self._send(messages.Drained(epoch=self._page.epoch))
        if self._work_left:
            self._want()

    def _send(self, message: messages.Message) -> None:
        self._socket.send(encode(message))


def _lock(device: str) -> int:
    folder = address.lock_directory()
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{device}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


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
