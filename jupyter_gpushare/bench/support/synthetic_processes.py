"""Notebooks that exist only on the wire: many in one process, with the compiled agent rule and without a shim.

As a program, this module runs the notebooks and the subscribers that its arguments describe, and prints the turns.
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

from ...agent import link, process
from ...agent.rule import CLOSED_GATE
from ...wire import messages
from ...wire.client import AsyncClient
from ...wire.page import IN, OUT, RELIEVED

# Means of exponential distributions: work of a cell, and time from a cell's end to the next cell.
MEAN_WORK_SECONDS, MEAN_THINK_SECONDS = 0.5, 10.0
WAIT_STATUS_SECONDS = 1.0  # between two requests for the present wait
MEMORY_FRACTION = 0.6  # of a device, so that no two clients are colocated
MIN_REMAINING_SECONDS = 1e-3  # of work after the end of a turn


class Turn(NamedTuple):
    """Turn of a process; times in seconds of the monotonic clock."""

    device: str
    waiting_since: float
    entered_at: float
    deadline: float  # 0 if the turn had none
    left_at: float


class Process(process.Process):
    """Process on the event loop, whose work on the device stops as soon as its gate closes."""

    def __init__(self, path: str, client: str, device: str, memory: int, turns: list[Turn]) -> None:
        super().__init__(client, (device,), token=client, memory=int(memory / MEMORY_FRACTION))
        self._path, self._turns = path, turns
        self._loop = asyncio.get_running_loop()
        self._allocated = self.page.report.allocated = memory
        self._waiting_since = self._entered_at = self._deadline = 0.0
        self._was_welcomed = self._ran = False
        self._remaining_seconds = 0.0  # of work
        self._working_since = 0.0  # 0 while the process does not work
        self._work_done: asyncio.Future[None] = self._loop.create_future()
        self._work_timer = self._step_timer = self._loop.call_soon(self.run_step)
        self._bell = -1

    async def work(self, seconds: float) -> None:
        """Use the device for this time, in as many turns as necessary."""
        self._remaining_seconds, self._work_done = seconds, self._loop.create_future()
        if self.gate == CLOSED_GATE:
            self._waiting_since, self.waiting = time.monotonic(), 1
            self.run_step()
        else:
            self._start_work()
        await self._work_done

    # --- steps of the edge

    def run_step(self) -> None:
        super().run_step()
        if self._was_welcomed and self.link.state == link.DISCONNECTED:
            raise RuntimeError("the coordinator has closed the connection")
        if self.phase == OUT:
            self._evict()
        elif self.phase == IN:
            self._deadline = self.permit.deadline_ns / 1e9 if self.permit.flags & RELIEVED else 0.0
        bell = self.locks.bell(self.polled_bell) if self.polled_bell else -1
        if bell != self._bell:
            if self._bell >= 0:
                self._loop.remove_reader(self._bell)
            if bell >= 0:
                self._loop.add_reader(bell, self.run_step)
            self._bell = bell
        self._step_timer.cancel()
        self._step_timer = self._loop.call_at(self.wake_at / 1e9, self.run_step)

    # --- methods that the edge calls

    def now(self) -> int:
        return time.monotonic_ns()

    def connect(self) -> link.Connection | None:
        connection = link.connect(self._path)
        if connection:
            self._loop.add_reader(connection.socket, self.run_step)
        return connection

    def on_welcome(self) -> None:
        super().on_welcome()
        self._was_welcomed = True

    def on_refused(self, message: dict[str, Any]) -> None:
        raise RuntimeError(message["message"])

    def is_quiet(self) -> bool:
        return not self._working_since

    def wake_threads(self) -> None:
        if self.gate == CLOSED_GATE:
            self._stop_work()
            return
        self._ran = True
        if self.waiting:
            self.waiting = 0
            self._start_work()

    def on_entered(self, turn: int) -> None:
        self._entered_at = time.monotonic()
        self.page.report.resident = self._allocated

    def on_drained(self) -> None:
        self._evict()

    def on_leaving(self, turn: int) -> None:
        if not self._ran:
            return  # the permit was withdrawn while the process entered
        self._ran = False
        self._turns.append(
            Turn(self.devices[0], self._waiting_since, self._entered_at, self._deadline, time.monotonic())
        )
        if self._remaining_seconds:
            self._waiting_since = time.monotonic()

    # --- work on the device

    def _start_work(self) -> None:
        self.submissions += 1
        self._working_since = time.monotonic()
        self._work_timer = self._loop.call_at(self._working_since + self._remaining_seconds, self._finish_work)

    def _stop_work(self) -> None:
        """Stop working; the rest of the work waits at the gate."""
        if not self._working_since:
            return
        self._work_timer.cancel()
        now, report = time.monotonic(), self.page.report
        took, self._working_since = now - self._working_since, 0.0
        self._remaining_seconds = max(MIN_REMAINING_SECONDS, self._remaining_seconds - took)
        self.waiting = 1
        report.launches += 100
        report.blocks += 1000
        report.gpu_ns += int(1e9 * took)
        report.sampled_ns = int(1e9 * now)

    def _finish_work(self) -> None:
        self._stop_work()
        self._remaining_seconds, self.waiting = 0.0, 0
        self._work_done.set_result(None)
        self.run_step()

    def _evict(self) -> None:
        report = self.page.report
        report.resident = min(report.resident, self.page.control.resident_target[0])


async def register_notebook(path: str, name: str) -> tuple[AsyncClient, str]:
    """Register and attach a notebook, and return its kernel's connection and its device."""
    kernel = await AsyncClient.connect(path, 30)
    result = await kernel.request(messages.Register(client=name, token=name, label=name), 30)
    kernel.send(messages.Attach(client=name, token=name, label=name))
    return kernel, result["devices"][0]


async def run_notebook(kernel: AsyncClient, name: str, process: Process, rng: random.Random) -> None:
    """Run cells with pauses between them, for ever. Kernel and process have connections like real ones."""
    for number in itertools.count():
        await asyncio.sleep(rng.expovariate(1 / MEAN_THINK_SECONDS))
        kernel.send(messages.Cell(state="start", request=str(number)))
        work = asyncio.ensure_future(
            process.work(min(20 * MEAN_WORK_SECONDS, 0.02 + rng.expovariate(1 / MEAN_WORK_SECONDS)))
        )
        while not (await asyncio.wait([work], timeout=WAIT_STATUS_SECONDS))[0]:
            await kernel.request(messages.WaitStatus(client=name), 30)
        kernel.send(messages.Cell(state="end", request=str(number)))


async def subscribe_to_snapshots(path: str) -> None:
    """Read snapshots as a Jupyter server with an open panel does."""
    async for _ in (await AsyncClient.connect(path, 30)).subscribe(30):
        pass


async def run(args: argparse.Namespace) -> None:
    """Run the notebooks until the end of standard input, print their turns, and end this process.

    Raises the error that has ended one of the notebooks.
    """
    turns: list[Turn] = []
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not broken.done():
            broken.set_exception(RuntimeError(str(context)))

    loop.set_exception_handler(report)
    rng = random.Random(args.first)
    names = [f"notebook{number}" for number in range(args.first, args.first + args.count)]
    coroutines = [subscribe_to_snapshots(args.socket) for _ in range(args.subscribers)]
    connected = await asyncio.gather(*(register_notebook(args.socket, name) for name in names))
    for name, (kernel, device) in zip(names, connected, strict=True):
        coroutines.append(run_notebook(kernel, name, Process(args.socket, name, device, args.memory, turns), rng))
    tasks = [asyncio.ensure_future(one) for one in (*coroutines, asyncio.to_thread(sys.stdin.read))]
    done, _ = await asyncio.wait([broken, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    print(json.dumps(turns), flush=True)
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("socket", str), ("first", int), ("count", int), ("subscribers", int), ("memory", int)):
        parser.add_argument(name, type=kind)
    asyncio.run(run(parser.parse_args()))
