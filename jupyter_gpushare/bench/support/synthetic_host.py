"""Busy host that exists only on the wire: snapshots and history of many notebooks, and a coordinator for both."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from ...wire import messages
from ...wire.client import encode

SNAPSHOTS_PER_SECOND = 8.0  # below ten, the most that servers send to front ends
_GIB = 1 << 30
_QUOTA = {"share": 0.1, "limit": 1.0, "memory": 8 * _GIB, "resident": None, "service": "online"}
_CONTEXT_MEMORY = 100 << 20  # bytes of each client
_OWN_CLIENTS = 10  # clients of the user that the snapshot is for
_HISTORY_SECONDS = 600.0  # as long as a coordinator keeps
_TURN_SECONDS = 5.0
_MAX_ENTRIES = 500  # in an answer

_decoder = msgspec.json.Decoder(messages.Incoming)


class SyntheticHost:
    """Notebooks on some devices, all of them running or waiting, without randomness and without a clock.

    `advance` changes the state, and `snapshot` and `history` return it in the form of `docs/reference/wire.md`.
    """

    def __init__(self, clients: int, devices: int) -> None:
        self._uuids = [f"GPU-53494d00-0000-0000-0000-{number:012d}" for number in range(devices)]
        self._names = [f"c{number:04d}" for number in range(clients)]
        self._queues = [deque(self._names[number::devices]) for number in range(devices)]
        self._seconds = dict.fromkeys(self._names, 0.0)
        self._entries: list[dict[str, Any]] = []
        self._steps = 0
        for number in range(int(_HISTORY_SECONDS / _TURN_SECONDS)):
            for device in range(devices):
                self._change_turn(device, number * _TURN_SECONDS)

    def advance(self) -> None:
        """Change the turn on one device."""
        self._change_turn(self._steps % len(self._queues), _HISTORY_SECONDS + self._steps / SNAPSHOTS_PER_SECOND)
        self._steps += 1

    def _change_turn(self, device: int, now: float) -> None:
        queue = self._queues[device]
        ended = queue[0]
        queue.rotate(-1)
        self._seconds[ended] += _TURN_SECONDS
        events = [(ended, "cell_ended"), (ended, "idle"), (queue[0], "running")]
        events += [(queue[-1], "cell_started"), (queue[-1], "waiting")]
        self._entries += [{"at": now, "client": client, "what": what} for client, what in events]

    def history(self, after: int) -> dict[str, Any]:
        """Return the entries after the number `after`, 500 at most."""
        upto = min(len(self._entries), after + _MAX_ENTRIES)
        return {
            "run": "synthetic",
            "now": _HISTORY_SECONDS + self._steps / SNAPSHOTS_PER_SECOND,
            "next": upto,
            "more": upto < len(self._entries),
            "entries": self._entries[after:upto],
            "utilisation": {uuid: 0.9 for uuid in self._uuids},
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            "devices": [self._device(number) for number in range(len(self._uuids))],
            "clients": [self._client(number) for number in range(len(self._names))],
            "viewer": {"user": "ada", "admin": True},
            "config": {
                "policy": "interactive",
                "time_quantum": _TURN_SECONDS,
                "sharing": "exclusive",
                "simulate": True,
            },
            "coordinator": {
                "pid": 0,
                "socket": "",
                "version": "0",
                "run": "synthetic",
                "uptime_seconds": _HISTORY_SECONDS,
            },
        }

    def _device(self, number: int) -> dict[str, Any]:
        running, *waiting = self._queues[number]
        return {
            "uuid": self._uuids[number],
            "name": "Simulated GPU",
            "parent": None,
            "simulated": True,
            "memory_total": 80 * _GIB,
            "memory_used": 60 * _GIB,
            "memory_used_is_estimate": False,
            "settings": {},
            "context_memory": len(self._queues[number]) * _CONTEXT_MEMORY,
            "utilisation": 0.9,
            "utilisation_is_estimate": True,
            "failed": None,
            "guaranteed_to": None,
            "grants": [{"client": running, "granted_seconds": 1.0, "seconds_left": _TURN_SECONDS - 1.0, "held": False}],
            "queue": waiting,
            "foreign_processes": [],
            "locked_by": [],
        }

    def _client(self, number: int) -> dict[str, Any]:
        name, device = self._names[number], number % len(self._uuids)
        position = self._queues[device].index(name)
        own = number < _OWN_CLIENTS
        allocated = (4 + (number + self._steps) % 8) * _GIB
        resident = allocated if position < 5 else allocated // 2
        return {
            "id": name,
            "label": f"experiments/notebook-{number}.ipynb" if own else "",
            "user": "ada" if own else f"colleague{number % 12}",
            "own": own,
            "may_change": True,
            "phase": "waiting" if position else "running",
            "state": "waiting" if position else "running",
            "state_text": f"#{position} in queue" if position else "running",
            "suspended": False,
            "idle_seconds": None,
            "idle_warned": False,
            "evicted_in": None,
            "suspended_in": None,
            "interrupt_requested": False,
            "evicted_by_policy": False,
            "suspended_by_policy": False,
            "hold_seconds_left": None,
            "devices": [self._uuids[device]],
            "quota": _QUOTA,
            "limit_text": "",
            "progress": None,
            "progress_text": "",
            "limits": [],
            "labels": {},
            "tenant": None,
            "is_preemptible_guest": False,
            "notes": [],
            "allocated": allocated,
            "unmade": 0,
            "resident": resident,
            "resident_is_estimate": False,
            "resident_by_device": {self._uuids[device]: resident},
            "resident_by_device_is_estimate": False,
            "memory_backing": None,
            "max_evicted": None,
            "unbacked": 0,
            "cgroup": None,
            "cgroup_is_known": True,
            "host_pinned": 0,
            "hibernated": 0,
            "host_pageable": allocated - resident,
            "context_memory": _CONTEXT_MEMORY,
            "gpu_seconds": self._seconds[name],
            "gpu_busy_seconds": self._seconds[name] * 0.9,
            "drain": {"last_ms": 3.0, "max_ms": 20.0},
            "wait_seconds": 12.5 * self._seconds[name],
            "turn_count": int(self._seconds[name] / _TURN_SECONDS),
            "queue_position": position or None,
            "expected_wait": position * _TURN_SECONDS or None,
            "wait_reason": "",
            "cells": 1,
            "cell_ids": [],
            "processes": [],
            "kernel_pids": [],
        }


class SyntheticCoordinator:
    """Coordinator that answers the requests of a Jupyter server with the state of a SyntheticHost.

    A change of the setting `updates`, for example by REST, starts that many changing snapshots.
    """

    def __init__(self, host: SyntheticHost) -> None:
        self._host = host
        self._subscribers: set[asyncio.StreamWriter] = set()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._updates: asyncio.Task[None] | None = None

    async def serve(self, path: str, ready: threading.Event, stopping: asyncio.Event) -> None:
        server = await asyncio.start_unix_server(self._serve_connection, path)
        ready.set()
        async with server:
            await stopping.wait()
        if self._updates:
            self._updates.cancel()
        for writer in self._connections:
            writer.close()
        await asyncio.gather(*filter(None, self._connections.values()))

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        try:
            while line := await reader.readline():
                request = _decoder.decode(line)
                writer.write(self._answer(request, writer))
        except (OSError, msgspec.DecodeError):
            pass
        finally:
            self._subscribers.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del self._connections[writer]

    def _answer(self, request: Any, writer: asyncio.StreamWriter) -> bytes:
        result: Any
        if isinstance(request, messages.Subscribe | messages.Status):
            if isinstance(request, messages.Subscribe):
                self._subscribers.add(writer)
            result = self._host.snapshot()
        elif isinstance(request, messages.History):
            result = self._host.history(request.after)
        elif isinstance(request, messages.Config):
            if count := int(request.changes.get("updates", 0)):
                self._updates = asyncio.get_running_loop().create_task(self._update(count))
            result = self._host.snapshot()["config"]
        else:
            refusal = messages.Error(
                id=getattr(request, "id", 0), reason="invalid", message="the synthetic host accepts no changes"
            )
            return encode(refusal)
        return encode(messages.Reply(id=request.id, result=result))

    async def _update(self, count: int) -> None:
        began = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / SNAPSHOTS_PER_SECOND - time.monotonic()))
            self._host.advance()
            line = encode(messages.Snapshot(status=self._host.snapshot()))
            for writer in self._subscribers:
                writer.write(line)


@contextlib.contextmanager
def serving(path: str, host: SyntheticHost) -> Iterator[None]:
    """Serve a host at the socket `path` in a thread of this process. Raises OSError."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stopping = asyncio.Event()
    failed: list[OSError] = []

    def run() -> None:
        try:
            loop.run_until_complete(SyntheticCoordinator(host).serve(path, ready, stopping))
        except OSError as error:
            failed.append(error)
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run, name="synthetic-host", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
