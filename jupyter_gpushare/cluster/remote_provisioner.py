"""Kernel provisioner that starts shared kernels on nodes, by the node agent of each node.

A kernelspec names `gpushare-remote-provisioner` in `metadata.kernel_provisioner`, whose `config` sets the traits.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from jupyter_core.utils import ensure_async

from ..launch.kernel_env import Identity
from . import kernel_records, pending_start
from .channel.messages import (
    PORT_NAMES,
    UNREACHABLE,
    Ended,
    Forget,
    Move,
    NodeError,
    SetMove,
    Signal,
    Start,
    Started,
)
from .daemon.messages import ChooseNode
from .daemon.node_tries import NodeTries
from .kernel_move import KernelMove
from .kernel_records import KernelRecord
from .node_choice import SnapshotRequests, StartsInProgress, order_nodes
from .remote_kernel import RemoteKernel
from .requesting_provisioner import REQUEST_SECONDS, NodeRequestFailed, RequestingProvisioner
from .start_queue import START_QUEUE, WaitingStart

_UNKNOWN_STATUS = 1  # the exit status that managers get for an unknown one
_END_REASONS = {
    "orphan": "no Jupyter server waited for it",
    "unknown_kernel": "its files are no longer on the node",
}
_SUPERSEDED = "the kernel restarts or ends while its start waits for a node"
_SHUT_DOWN = "the kernel has been shut down while its start waited for a node"
_REPLACED = "another start of the same notebook has taken the place of this one"
_starts = StartsInProgress()  # of this server
_snapshots = SnapshotRequests()


class RemoteProvisioner(RequestingProvisioner):
    """Provisioner of one kernel on a node. The kernel outlives the node agent, the engine and this process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.node_pid: int | None = None  # on the node
        self._kernel: RemoteKernel | None = None
        self.has_new_address = False  # since the last restart, which had another node or other ports
        self._ports: dict[str, int] = {}  # of the last start, for a restart
        self._move: KernelMove | None = None
        self._start_request: Callable[[str, Mapping[str, int]], Start]  # of the last start
        self._loop: asyncio.AbstractEventLoop  # of the kernel manager
        self._restart_task: asyncio.Task[None] | None = None
        self._waiting: WaitingStart | None = None
        self._is_withdrawn = False  # by a shutdown, before the start has found room
        self._tries: NodeTries | None = None  # of the last start

    @property
    def has_process(self) -> bool:
        return self._kernel is not None

    async def poll(self) -> int | None:
        if self._kernel is None:
            return 0
        return _status(self._kernel.ended.result()) if self._kernel.ended.done() else None

    async def wait(self) -> int | None:
        if self._kernel is None:
            return 0
        ended = await asyncio.wrap_future(self._kernel.ended)
        self._kernel = None
        if ended.reason:
            reason = _END_REASONS.get(ended.reason, ended.reason)
            self.log.warning("kernel %s on %s has ended: %s", self.kernel_id, self.node_name, reason)
        return _status(ended)

    async def send_signal(self, signum: int) -> None:
        if self._kernel is not None and signum:
            try:
                request = Signal(kernel=self.kernel_id, number=signum, start=self._kernel.start)
                # A late kill ends a kernel that would go on without a server, and a late interrupt ends another cell.
                await self._ask(
                    self._kernel, request, expires=signum != signal.SIGKILL, is_patient=signum == signal.SIGINT
                )
            except NodeError as error:
                self._on_failed_signal(self._kernel, signum, error)

    def _on_failed_signal(self, kernel: RemoteKernel, number: int, error: NodeError) -> None:
        """Abandon a kernel that cannot be killed because its node does not answer. Otherwise raise an error."""
        if error.reason == "unknown_kernel":  # the kernel has ended
            return
        manager: Any = self.parent
        is_lost = error.reason in (*UNREACHABLE, "timeout")
        if not is_lost or not manager.shutting_down:
            raise NodeRequestFailed(error, 503 if is_lost else 500) from None
        if number == signal.SIGKILL:
            self.log.warning("abandoned kernel %s on %s: %s", self.kernel_id, self.node_name, error)
            kernel.abandon(str(error))

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, and return its connection information. Raise NodeRequestFailed.

        A kernel that an earlier Jupyter server has started under this id is adopted instead.
        """
        self._is_withdrawn = False
        try:
            withdrawn = pending_start.withdrawn_by_shutdown(self.parent, self.kernel_id, self._withdraw)
            with withdrawn, pending_start.cancelled_by_interrupt():
                return await self._launch(cmd, **kwargs)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # maybe when the kernel ran already
                self._discard_kernel()
            pending_start.forget(self.parent, self.kernel_id)
            if isinstance(error, NodeError):
                raise NodeRequestFailed(error) from None
            raise

    async def _launch(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        self._loop = asyncio.get_running_loop()
        self._start_request = functools.partial(self._make_request, cmd, kwargs["env"], kwargs.get("cwd") or "")
        if not self._chosen and (record := kernel_records.load(self.kernel_id)):
            if not record.has_engine(self.settings.engine_digest(record.node)):
                raise NodeError(f"the kernel {self.kernel_id} has another engine (c.GpuShareCluster)", "has_server")
            record = kernel_records.claim(self.kernel_id)
            if record is None:
                raise NodeError(f"another Jupyter server has the kernel {self.kernel_id}", "has_server")
            return self._adopt(record)
        return self._take_moved_kernel() or await self._start_with_room()

    def _withdraw(self) -> None:
        self._is_withdrawn = True
        START_QUEUE.cancel(self.kernel_id, _SHUT_DOWN)

    def _discard_kernel(self) -> RemoteKernel | None:
        """End a kernel that this provisioner has started, though its start fails, and return the kernel."""
        kernel = self._kernel
        if kernel is None or not kernel.start:
            return None
        self._kernel = self.node_pid = None
        kernel_records.remove(self.kernel_id)
        kernel.discard()
        return kernel

    async def _start_with_room(self) -> KernelConnectionInfo:
        """Start the kernel on a node, and wait until a node has room for it. Raise NodeError."""
        manager: Any = self.parent
        ready = manager.ready
        nodes, seconds = self._candidates(), self.settings.room_seconds
        refusal = ""
        START_QUEUE.replace(self._session, _REPLACED)  # a page that was loaded anew begins another start
        keeps_room = bool(self._chosen)  # of a kernel that restarts
        if keeps_room or not seconds or not START_QUEUE.has_rivals(nodes):
            try:
                return await self._start_on_a_node()
            except NodeError as error:
                if error.reason != "no_room" or not seconds:
                    raise
                refusal = str(error)
        if self._is_withdrawn:
            raise NodeError(_SHUT_DOWN, "cancelled")
        start = WaitingStart(self.kernel_id or "", self.client_label, self._session, nodes, refusal)
        self.log.info("kernel %s waits for a node with room: %s", self.kernel_id, refusal or "other starts wait")
        self._waiting = start
        try:
            look = functools.partial(_snapshots.all, settings=self.settings)
            return await START_QUEUE.wait(start, self._start_in_turn, look, seconds)
        except NodeError:
            if start.cancellation == _SUPERSEDED:
                await pending_start.wait_for_later_request(self.parent, ready)
            raise
        finally:
            if self._waiting is start:
                self._waiting = None

    async def _start_in_turn(self) -> KernelConnectionInfo:
        """Start the kernel, and end it again if its start has been cancelled meanwhile. Raise NodeError."""
        start = self._waiting
        info = await self._start_on_a_node(logging.DEBUG)
        if start is not None and start.cancellation and self._tries and (kernel := self._discard_kernel()):
            await asyncio.wait({asyncio.wrap_future(kernel.ended)}, timeout=REQUEST_SECONDS)
            await self._tries.release()
            raise NodeError(start.cancellation, "cancelled")
        return info

    async def _start_on_a_node(self, level: int = logging.WARNING) -> KernelConnectionInfo:
        """Start the kernel on the first node that takes it, first of all on its node so far. Raise NodeError.

        `level` is that of the records about nodes that do not take the kernel, and about the cluster daemon.
        """
        assert self.identity is not None
        before, ports = self._chosen, self._ports

        async def attempt(node: str, must_share: bool, fault: str) -> KernelConnectionInfo:
            is_other = bool(before) and node != before
            self._chosen, self._ports = node, {} if is_other else ports
            request = self._start_request(node, self._ports)
            request.must_share = must_share
            if is_other and fault:
                request.restart_reason = f"this kernel has started anew on {node}, without its variables: {fault}"
            try:
                with _starts.on(node):
                    info = await self._start_here(request)
            except NodeError as error:
                self.log.log(level, "cannot start kernel %s on %s: %s", self.kernel_id, node, error)
                raise
            self.has_new_address = bool(before) and (node, self._ports) != (before, ports)
            return info

        nodes = tuple(self._candidates())
        wanted = ChooseNode(client=self.identity.client, quota=self.quota, gpus=self.gpus, nodes=nodes)
        self._tries = NodeTries(self.settings.daemon, wanted, before, self._nodes_in_order, level)
        try:
            return await self._tries.start(attempt)
        except BaseException:
            self._chosen, self._ports = before, ports
            self._discard_kernel()  # of a start that was cancelled after its node had answered
            raise

    async def _nodes_in_order(self) -> Sequence[str]:
        """Return the nodes that may have the kernel, the best one first."""
        nodes = self._candidates()
        if len(nodes) == 1:
            return nodes
        snapshots = await _snapshots.all(nodes, self.settings)
        if self._waiting and any(snapshots.values()):  # a node that is lost would delay the other waiting starts
            snapshots = {node: snapshot for node, snapshot in snapshots.items() if snapshot}
        return order_nodes(snapshots, self.gpus, _starts.by_node)

    def _candidates(self) -> Sequence[str]:
        return [self.node] if self.node else self.settings.all_nodes

    async def _start_here(self, request: Start) -> KernelConnectionInfo:
        """Start the kernel on the chosen node. Raise NodeError."""
        kernel = self._remote_kernel(start=request.start)
        started = msgspec.convert(await self._start(kernel, request), Started)
        if started.note:
            self.log.warning("found a fault of GPU sharing in kernel %s: %s", self.kernel_id, started.note)
        try:
            info = self._watch(kernel, self._record(self._chosen, request, started))
        except OSError as error:
            kernel.discard()
            raise NodeError(f"the server cannot save the record of the kernel: {error}", "no_record") from None
        kernel.await_move()
        return info

    def _adopt(self, record: KernelRecord) -> KernelConnectionInfo:
        """Adopt the kernel of a record, and return its connection information."""
        self._chosen, self.quota, self._session = record.node, record.quota, record.session
        self.identity = Identity(record.client, record.token)
        manager: Any = self.parent
        if manager.connection_file:  # of that server; the manager writes the file anew
            Path(manager.connection_file).unlink(missing_ok=True)
        self.log.info("adopted kernel %s on %s", record.kernel, record.node)
        kernel = self._remote_kernel(record.node)
        info = self._watch(kernel, record)
        # Only after the refusal does the kernel's next move count, because the request of the last one is still there.
        kernel.refuse_move("", "another Jupyter server has begun the move, and has ended", self._withdraw_move)
        return info

    def _withdraw_move(self, move: Move) -> None:
        """Remove the files and the kernel of a broken-off move from the other node."""
        record = kernel_records.load(self.kernel_id)
        if move.node in self.settings.all_nodes and (record is None or record.node != move.node):
            withdrawal = SetMove(kernel=self.kernel_id, move=move.id, state="withdrawn")
            self._remote_kernel(move.node).request(withdrawal)

    def _watch(self, kernel: RemoteKernel, record: KernelRecord) -> KernelConnectionInfo:
        """Save the record of a running kernel, and follow the kernel."""
        kernel_records.save(record)
        return self._follow(kernel, record)

    def _follow(self, kernel: RemoteKernel, record: KernelRecord) -> KernelConnectionInfo:
        """Wait for the kernel's end in the background."""
        kernel.ended.add_done_callback(lambda ended: self._on_end(kernel, ended.result()))
        kernel.adopt()
        kernel.on_move = functools.partial(self._begin_move, kernel)
        self._kernel, self.node_pid = kernel, record.pid
        self._ports = {name: getattr(record.connection, name) for name in PORT_NAMES}
        info = {**record.connection.fields(), "key": record.connection.key.encode()}
        self.connection_info = cast(KernelConnectionInfo, info)
        return self.connection_info

    def _begin_move(self, kernel: RemoteKernel, move: Move) -> None:
        """Move the kernel to another node, or refuse that, in a thread of a connection."""
        is_under_way = self._move is not None and self._move.is_under_way
        if self._move and is_under_way and self._move.id == move.id:
            return
        if reason := self._move_refusal(move, is_under_way):
            refused = self._withdraw_move if move.is_locked else lambda _: None
            kernel.refuse_move(move.id, f"{move.node}: {reason}", refused)
            return
        manager: Any = self.parent
        self._move = KernelMove(
            move,
            kernel,
            self._remote_kernel(move.node),
            request=functools.partial(self._move_request, move),
            record=functools.partial(self._record, move.node),
            is_ending=lambda: bool(manager.shutting_down),
            switched=self._restart_soon_as_moved,
            seconds=self.settings.start_seconds,
            log=self.log,
        )
        self._move.begin()

    def _move_refusal(self, move: Move, is_under_way: bool) -> str:
        """Return the reason why the kernel does not move, or ""; `is_under_way`: another move is."""
        manager: Any = self.parent
        if move.is_locked:
            return "a Jupyter server has broken off the move"
        if is_under_way:
            return "another move of the kernel has not ended yet"
        if self.node:
            return f"the kernelspec of the kernel names the node {self.node}"
        if move.node not in self.settings.all_nodes:
            return f"the nodes are {', '.join(self.settings.all_nodes)}"
        if not isinstance(manager.parent, AsyncMultiKernelManager):
            return "only a Jupyter server moves kernels"
        return ""

    def _move_request(self, move: Move) -> Start:
        reason = f"this kernel has moved from {self.node_name} to {move.node}"
        request = self._start_request(move.node, {})
        return msgspec.structs.replace(request, move=move.id, must_share=True, restart_reason=reason)

    def _restart_soon_as_moved(self) -> None:
        """Let the manager end the old kernel and connect to the new one, unless it restarts or ends the kernel then."""
        self._loop.call_soon_threadsafe(self._restart_as_moved)

    def _restart_as_moved(self) -> None:
        manager: Any = self.parent

        async def restart() -> None:
            if self._move is None or manager.shutting_down:
                return
            try:
                await ensure_async(manager.parent.restart_kernel(self.kernel_id))
            except Exception as error:  # of any part of the server
                self.log.error("cannot connect to kernel %s after its move: %s", self.kernel_id, error)

        self._restart_task = asyncio.ensure_future(restart())

    def _take_moved_kernel(self) -> KernelConnectionInfo | None:
        """Return the connection information of the new kernel after a move, or None without one."""
        move, self._move = self._move, None
        if move is None or move.cancel():
            return None
        assert move.record is not None
        move.old.on_move = None
        self._chosen, self.has_new_address = move.record.node, True
        info = self._follow(move.new, move.record)
        move.new.await_move()
        return info

    def _on_end(self, kernel: RemoteKernel, ended: Ended) -> None:
        """Log an unexpected end of the kernel."""
        manager: Any = self.parent
        if manager is not None and not manager.shutting_down and not kernel.is_discarded and ended.status is not None:
            kernel.log_end(self.log, self.node_name)

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the files of a kernel that has ended from the node, and its client if it does not restart."""
        if self._waiting is not None:
            start = self._waiting
            START_QUEUE.cancel(self.kernel_id, _SUPERSEDED)
            if restart:  # two starts at the same time would end each other's kernel
                await asyncio.wrap_future(start.left)
        if self.node_pid is None:
            return
        self.node_pid = None
        move = self._move if self._move and not self._move.cancel() else None  # a new kernel counts already
        if not (move and restart):
            kernel_records.remove(self.kernel_id)
        try:
            if move and not restart:
                await self._ask(move.new, SetMove(kernel=self.kernel_id, move=move.id, state="withdrawn"))
            forget = Forget(kernel=self.kernel_id, unregister=move is not None or not restart)
            await self._ask(self._remote_kernel(), forget)
        except NodeError as error:
            self.log.warning("files of kernel %s may remain on %s: %s", self.kernel_id, self.node_name, error)
        if self._tries and not restart:
            await self._tries.release()


def _status(ended: Ended) -> int:
    return _UNKNOWN_STATUS if ended.status is None else ended.status
