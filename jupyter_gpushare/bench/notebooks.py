"""Notebooks that exist only on the wire: many of them in one process, by the compiled rule of turns, without a shim.

As a program, this module runs some as its arguments say and prints what turns they had.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import time
from typing import Any, NamedTuple

from ..agent import link, process
from ..agent.rule import CLOSED_GATE
from ..wire import messages
from ..wire.client import AsyncClient
from ..wire.page import IN, OUT, RELIEVED

WORK, THINK = 0.5, 10.0  # seconds that a cell's work takes, and that its user thinks then; exponentially distributed
ASKED = 1.0  # seconds between two looks at how long a cell has to wait still
FILLS = 0.6  # of a device: no two run there together
LEAST = 1e-3  # seconds of work that a turn's end leaves over


class Turn(NamedTuple):
    """Times in monotonic seconds."""

    device: str
    wanted: float
    began: float
    deadline: float  # 0: none
    drained: float


class Process(process.Process):
    """A process with the shim, on the event loop. Its work on the device stops as soon as its gate closes."""

    def __init__(self, path: str, client: str, device: str, memory: int, turns: list[Turn]) -> None:
        super().__init__(client, (device,), token=client, memory=int(memory / FILLS))
        self._path, self._turns = path, turns
        self._loop = asyncio.get_running_loop()
        self._allocated = self.page.report.allocated = memory
        self._wanted = self._began = self._deadline = 0.0
        self._has_met = self._ran = False
        self._left = 0.0  # seconds of work
        self._working_since = 0.0  # 0: it does not work
        self._worked: asyncio.Future[None] = self._loop.create_future()
        self._end = self._again = self._loop.call_soon(self.run_step)
        self._bell = -1

    async def work(self, seconds: float) -> None:
        """Have the device for so long, in as many turns as it takes."""
        self._left, self._worked = seconds, self._loop.create_future()
        if self.gate == CLOSED_GATE:
            self._wanted, self.waiting = time.monotonic(), 1
            self.run_step()
        else:
            self._start()
        await self._worked

    # --- when the edge looks

    def run_step(self) -> None:
        super().run_step()
        if self._has_met and self.link.state == link.DISCONNECTED:
            raise RuntimeError("the coordinator has gone")
        if self.phase == OUT:
            self._give_memory()
        elif self.phase == IN:
            self._deadline = self.permit.deadline_ns / 1e9 if self.permit.flags & RELIEVED else 0.0
        bell = self.locks.bell(self.polled_bell) if self.polled_bell else -1
        if bell != self._bell:
            if self._bell >= 0:
                self._loop.remove_reader(self._bell)
            if bell >= 0:
                self._loop.add_reader(bell, self.run_step)
            self._bell = bell
        self._again.cancel()
        self._again = self._loop.call_at(self.wake_at / 1e9, self.run_step)

    # --- what the edge needs

    def now(self) -> int:
        return time.monotonic_ns()

    def connect(self) -> link.Connection | None:
        connection = link.connect(self._path)
        if connection:
            self._loop.add_reader(connection.socket, self.run_step)
        return connection

    def on_welcome(self) -> None:
        super().on_welcome()
        self._has_met = True

    def on_refused(self, message: dict[str, Any]) -> None:
        raise RuntimeError(message["message"])

    def is_quiet(self) -> bool:
        return not self._working_since

    def wake_threads(self) -> None:
        if self.gate == CLOSED_GATE:
            self._stop()
            return
        self._ran = True
        if self.waiting:
            self.waiting = 0
            self._start()

    def on_entered(self, turn: int) -> None:
        self._began = time.monotonic()
        self.page.report.resident = self._allocated

    def on_drained(self) -> None:
        self._give_memory()

    def on_leaving(self, turn: int) -> None:
        if not self._ran:
            return  # the permit was withdrawn while the process entered
        self._ran = False
        self._turns.append(Turn(self.devices[0], self._wanted, self._began, self._deadline, time.monotonic()))
        if self._left:
            self._wanted = time.monotonic()

    # --- its work

    def _start(self) -> None:
        self.submissions += 1
        self._working_since = time.monotonic()
        self._end = self._loop.call_at(self._working_since + self._left, self._done)

    def _stop(self) -> None:
        """Stop working; what is left waits at the gate."""
        if not self._working_since:
            return
        self._end.cancel()
        now, report = time.monotonic(), self.page.report
        took, self._working_since = now - self._working_since, 0.0
        self._left = max(LEAST, self._left - took)
        self.waiting = 1
        report.launches += 100
        report.blocks += 1000
        report.gpu_ns += int(1e9 * took)
        report.sampled_ns = int(1e9 * now)

    def _done(self) -> None:
        self._stop()
        self._left, self.waiting = 0.0, 0
        self._worked.set_result(None)
        self.run_step()

    def _give_memory(self) -> None:
        report = self.page.report
        report.resident = min(report.resident, self.page.orders.resident_target)


async def connect(path: str, name: str) -> tuple[AsyncClient, str]:
    """Return the connection of a notebook's kernel, and the device on which the notebook is to run."""
    kernel = await AsyncClient.connect(path, 30)
    where = await kernel.request(messages.Register(client=name, token=name, label=name), 30)
    kernel.send(messages.Attach(client=name, token=name, label=name))
    return kernel, where["devices"][0]


async def notebook(kernel: AsyncClient, name: str, process: Process, chance: random.Random) -> None:
    """Run a cell, think, run the next one, for ever. Kernel and process are connected as real ones are."""
    for number in itertools.count():
        await asyncio.sleep(chance.expovariate(1 / THINK))
        kernel.send(messages.Cell(state="start", request=str(number)))
        work = asyncio.ensure_future(process.work(min(20 * WORK, 0.02 + chance.expovariate(1 / WORK))))
        while not (await asyncio.wait([work], timeout=ASKED))[0]:
            await kernel.request(messages.WaitStatus(client=name), 30)
        kernel.send(messages.Cell(state="end", request=str(number)))


async def follower(path: str) -> None:
    """What a Jupyter server is to a coordinator while its panel is open."""
    async for _ in (await AsyncClient.connect(path, 30)).subscribe(30):
        pass


async def run(args: argparse.Namespace) -> None:
    """Print the turns until the end of standard input, and end all of it with this process.

    Raises what ended one of the notebooks.
    """
    turns: list[Turn] = []
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not broken.done():
            broken.set_exception(RuntimeError(str(context)))

    loop.set_exception_handler(report)
    chance = random.Random(args.first)
    names = [f"notebook{number}" for number in range(args.first, args.first + args.count)]
    parts = [follower(args.socket) for _ in range(args.followers)]
    connected = await asyncio.gather(*(connect(args.socket, name) for name in names))
    for name, (kernel, device) in zip(names, connected, strict=True):
        parts.append(notebook(kernel, name, Process(args.socket, name, device, args.memory, turns), chance))
    tasks = [asyncio.ensure_future(part) for part in (*parts, asyncio.to_thread(sys.stdin.read))]
    done, _ = await asyncio.wait([broken, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    print(json.dumps(turns), flush=True)
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("socket", str), ("first", int), ("count", int), ("followers", int), ("memory", int)):
        parser.add_argument(name, type=kind)
    asyncio.run(run(parser.parse_args()))
