"""Sessions of processes and kernels, which begin with a hello or attach, and their messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...core.base.errors import IllegalEvent, Refused
from ...core.interface import events as ev
from ...wire import messages
from ...wire.client import encode
from ..clients.client_runtime import ClientRuntime
from ..clients.handshake import InvalidHandshake
from ..clients.process_handle import MAX_BYTES, ProcessHandle
from ..engine.client_registry import ClientRegistry
from ..engine.page_reader import PageReader
from ..engine.page_sync import PageSync
from ..engine.state import CoordinatorState
from ..monitoring.process_inspection import ProcessInspections
from ..transport.connection import Connection, refuse
from .handlers.clients import ClientHandlers
from .handlers.quotas import QuotaHandlers

MAX_CELLS = 1024

log = logging.getLogger(__name__)


class ProtocolSession:
    """Session of a connection, which belongs to a process, a kernel or neither."""

    def __init__(self) -> None:
        self.handle: ProcessHandle | None = None
        self.runtime: ClientRuntime | None = None


class ProtocolSessions:
    """Sessions of all connections of one coordinator."""

    def __init__(
        self,
        state: CoordinatorState,
        dispatch: Callable[[ev.Event], None],
        registry: ClientRegistry,
        page_reader: PageReader,
        page_sync: PageSync,
        clients: ClientHandlers,
        quotas: QuotaHandlers,
        inspections: ProcessInspections,
    ) -> None:
        self._state = state
        self._dispatch = dispatch
        self._registry = registry
        self._page_reader = page_reader
        self._page_sync = page_sync
        self._clients = clients
        self._quotas = quotas
        self._inspections = inspections
        self._sessions: dict[Connection, ProtocolSession] = {}

    def open(self, connection: Connection) -> None:
        self._sessions[connection] = ProtocolSession()

    def is_unidentified(self, connection: Connection) -> bool:
        return self._sessions[connection].runtime is None

    def close(self, connection: Connection) -> None:
        session = self._sessions.pop(connection, ProtocolSession())
        if session.handle:
            self._registry.remove_process(session.handle)
        elif session.runtime:
            self._quotas.end_cell(connection, session.runtime)
            for request in session.runtime.kernels.pop(connection, {}):
                self._dispatch(ev.CellEnded(session.runtime.client_id, request))
            self._registry.remove_if_unconnected(session.runtime)

    def handle(self, connection: Connection, message: Any) -> bool:
        """Handle a message of a process or kernel, and return False for any other message.

        Raises IllegalEvent for a message that is not allowed in this state of the session.
        """
        session = self._sessions[connection]
        if isinstance(message, messages.Details):
            self._inspections.on_details(self._handle_of(connection, "details"), message)
        elif isinstance(message, messages.Moved):
            self._on_moved(self._handle_of(connection, "moved"), session.runtime, message)
        elif isinstance(message, messages.Hello):
            self._on_hello(connection, session, message)
        elif isinstance(message, messages.Attach):
            self._on_attach(connection, session, message)
        elif isinstance(message, messages.Cell):
            self._on_cell(connection, session, message)
        else:
            return False
        return True

    def _on_moved(self, handle: ProcessHandle, runtime: ClientRuntime | None, moved: messages.Moved) -> None:
        handle.hibernated = min(moved.hibernated, MAX_BYTES)
        if runtime:
            self._page_sync.read_memory(runtime)
        self._dispatch(ev.MoveEnded(handle.number, moved.device, moved.error, handle.hibernated))

    def on_doorbell(self, connection: Connection) -> None:
        """Read the page of the process. Raises IllegalEvent for a connection without a process."""
        handle, runtime = self._handle_of(connection, "doorbell"), self._sessions[connection].runtime
        if runtime:
            self._page_sync.read_memory(runtime)
        self._page_reader.read(handle)

    def _handle_of(self, connection: Connection, what: str) -> ProcessHandle:
        handle = self._sessions[connection].handle
        if handle is None:
            raise IllegalEvent(f"{what} before hello")
        return handle

    def _on_hello(self, connection: Connection, session: ProtocolSession, hello: messages.Hello) -> None:
        if session.handle or session.runtime:
            raise IllegalEvent("a second hello or attach on one connection")
        if connection.has_hung_up:
            log.info("%s: skipping its hello, because it has hung up", connection)
            return
        known = hello.client in self._state.runtimes
        try:
            runtime = self._clients.get_or_create(connection, hello)
            session.handle, instead = self._registry.add_process(runtime, connection, hello)
        except (PermissionError, InvalidHandshake, Refused) as error:
            log.warning("%s: refusing its hello: %s", connection, error)
            refuse(connection, 0, _reason(error), str(error))
            connection.drop()
            if not known and hello.client in self._state.runtimes:
                runtime.is_unregistered = True
                self._registry.remove_if_unconnected(runtime)
            return
        session.runtime = runtime
        self._registry.remove_if_unconnected(runtime)
        if instead is None:
            connection.send(encode(messages.Welcome()))
        else:
            connection.send(encode(messages.Join()), [instead])

    def _on_attach(self, connection: Connection, session: ProtocolSession, attach: messages.Attach) -> None:
        if session.handle or session.runtime:
            raise IllegalEvent("a second hello or attach on one connection")
        try:
            session.runtime = self._clients.get_or_create(connection, attach)
        except (PermissionError, Refused) as error:
            refuse(connection, 0, _reason(error), str(error))
            connection.drop()
            return
        session.runtime.kernels[connection] = {}
        self._registry.remove_if_unconnected(session.runtime)
        connection.send(encode(messages.Welcome()))

    def _on_cell(self, connection: Connection, session: ProtocolSession, cell: messages.Cell) -> None:
        runtime = session.runtime
        if runtime is None or connection not in runtime.kernels:
            raise IllegalEvent("cell before attach")
        requests = runtime.kernels[connection]
        self._page_sync.read_memory(runtime)  # memory that was freed before the cell is not the cell's
        if cell.state == "end":
            requests.pop(cell.request, None)
            self._quotas.end_cell(connection, runtime, cell.request)
            for handle in list(runtime.processes.values()):
                self._page_reader.read(handle)  # the scheduler must get first the turn that the cell's work has entered
            self._dispatch(ev.CellEnded(runtime.client_id, cell.request, runtime.busy_seconds))
        elif len(requests) < MAX_CELLS:
            if not any(runtime.kernels.values()):
                for handle in runtime.processes.values():
                    handle.steps_before = handle.training_steps
            requests[cell.request] = cell.cell_id
            names = tuple(name for name in (cell.text_hash, cell.cell_id) if name)
            self._dispatch(ev.CellStarted(runtime.client_id, cell.request, names, runtime.busy_seconds))


def _reason(error: PermissionError | InvalidHandshake | Refused) -> str:
    """Return the reason of an error, as programs read it."""
    if isinstance(error, PermissionError):
        return "forbidden"
    return error.reason if isinstance(error, Refused) else "invalid"
