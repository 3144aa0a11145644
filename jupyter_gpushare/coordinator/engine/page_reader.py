"""Reader of the pages of processes, which turns their changes into events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...core.interface import events as ev
from ...core.state.model import Client
from ..clients import page_events
from ..clients.process_handle import ProcessHandle
from .page_sync import PageSync
from .state import CoordinatorState

TORN_RETRY_SECONDS = 0.001  # delay of the second read of a page that the process was writing


class PageReader:
    """Reader of the pages of one coordinator. `dispatch` gets the events in the order in which they happened."""

    def __init__(self, state: CoordinatorState, dispatch: Callable[[ev.Event], None], page_sync: PageSync) -> None:
        self._state = state
        self._dispatch = dispatch
        self._page_sync = page_sync
        self._loop = asyncio.get_running_loop()

    def read(self, handle: ProcessHandle, retry_if_torn: bool = True) -> None:
        """Read the page of a process and dispatch the events that follow from it."""
        process, runtime = self._state.scheduler.processes.get(handle.number), self._state.runtime_of(handle)
        if process is None or runtime is None:
            return
        events = page_events.read_events(runtime, handle, process, self._state.now)
        if events is None and retry_if_torn:
            self._loop.call_later(TORN_RETRY_SECONDS, self.read, handle, False)
        for event in events or ():
            if isinstance(event, ev.TurnEntered):
                self._read_predecessor_pages(process.client)
            elif isinstance(event, ev.TurnLeft):
                self._read_joiner_pages(process.client)
            elif isinstance(event, ev.GateWaitStarted):
                self._read_memory_on_devices(process.client)
            self._dispatch(event)
        if handle.has_new_request():
            self._page_sync.handle_memory_shortage([handle])
            self._page_sync.read_memory(runtime)

    def _read_predecessor_pages(self, client: Client) -> None:
        """Read the pages of the clients that had the devices of a client that has entered a turn.

        The scheduler must get first the events of the clients that have left their turns.
        """
        self._read_pages(
            grant.client for device in client.device_bindings for grant in device.grants if grant.client is not client
        )

    def _read_joiner_pages(self, client: Client) -> None:
        """Read the pages of the clients that may have joined the turn that a client has left.

        Without the events of the joined clients, the scheduler would withdraw their permits.
        """
        next_clients = [
            device.next_client
            for device in client.device_bindings
            if device.next_client and device.next_client is not client
        ]
        self._read_pages(
            joiner for joiner in next_clients if joiner.pending_permit and joiner.pending_permit.joins_turn
        )

    def _read_memory_on_devices(self, client: Client) -> None:
        """Read the memory of a client that begins to wait, and of the clients that have its devices.

        The scheduler colocates clients whose memory fits together, so it must know what they have allocated by now.
        """
        running = (grant.client.id for device in client.device_bindings for grant in device.grants)
        for identity in dict.fromkeys([client.id, *running]):  # in an order that a replay repeats
            self._page_sync.read_memory(self._state.runtimes[identity])

    def _read_pages(self, clients: Iterable[Client]) -> None:
        for identity in [client.id for client in clients]:
            for handle in list(self._state.runtimes[identity].processes.values()):
                self.read(handle)
