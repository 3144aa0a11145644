"""Kernel provisioner that starts shared kernels on nodes, by the node agent of each node.

A kernelspec names `gpushare-remote-provisioner` in `metadata.kernel_provisioner`, whose `config` sets the traits.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq
from jupyter_client.connect import KernelConnectionInfo
from traitlets import Unicode, validate

from .. import units
from ..client_provisioner import ClientProvisioner
from ..launch.kernel_env import Identity
from . import kernel_records
from .channel.messages import (
    PORT_NAMES,
    ClientRequest,
    Connection,
    Coordinator,
    Ended,
    Forget,
    NodeError,
    Output,
    Request,
    Signal,
    Start,
    Started,
)
from .kernel_records import KernelRecord
from .node_choice import IDLE, Snapshot, StartsInProgress, order_nodes
from .node_connection import CONNECTIONS
from .remote_kernel import UNREACHABLE, RemoteKernel
from .settings import GpuShareCluster, check_node

_REQUEST_SECONDS = 5.0
_LOGGED_LINES = 20  # of a kernel that has ended unexpectedly
_SNAPSHOT_SECONDS = 5.0  # for the answer of a node among several
_UNKNOWN_STATUS = 1  # the exit status that managers get for an unknown one
_END_REASONS = {
    "orphan": "no Jupyter server waited for it",
    "unknown_kernel": "its files are no longer on the node",
}
_starts = StartsInProgress()  # of this server


class RemoteProvisioner(ClientProvisioner):
    """Provisioner of one kernel on a node. The kernel outlives the node agent, the engine and this process."""

    node = Unicode(config=True, help="Node of the kernel; default: the node with the most room.")

    @validate("node")
    def _check_node(self, proposal: Any) -> str:
        if proposal.value:
            check_node(proposal.value, "RemoteProvisioner.node")
        return str(proposal.value)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = GpuShareCluster(parent=self)
        self.node_pid: int | None = None  # on the node
        self._kernel: RemoteKernel | None = None
        self._chosen = ""  # the node of the last start
        self.has_new_address = False  # since the last restart, which had another node or other ports
        self._ports: dict[str, int] = {}  # of the last start, for a restart
        self._session = ""

    @property
    def has_process(self) -> bool:
        return self._kernel is not None

    @property
    def node_name(self) -> str:
        """Name of the node of the kernel."""
        return self._chosen or self.node or self.settings.all_nodes[0]

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
                await self._ask(self._kernel, Signal(kernel=self.kernel_id, number=signum))
            except NodeError as error:
                self._on_failed_signal(self._kernel, signum, error)

    def _on_failed_signal(self, kernel: RemoteKernel, number: int, error: NodeError) -> None:
        """Abandon a kernel that cannot be killed because its node does not answer. Raise other errors."""
        if error.reason == "unknown_kernel":  # the kernel has ended
            return
        manager: Any = self.parent
        if error.reason not in (*UNREACHABLE, "timeout") or not manager.shutting_down:
            raise error
        if number == signal.SIGKILL:
            self.log.warning("abandoned kernel %s on %s: %s", self.kernel_id, self.node_name, error)
            kernel.abandon(str(error))

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Prepare the command and the variables, in which the node agent replaces what depends on the node."""
        env: Mapping[str, str] = kwargs.pop("env", os.environ)
        kwargs.pop("transport_encryption", None)  # c.GpuShareCluster.encryption decides
        self.identify_client(env)
        kwargs["cmd"] = [*self.kernel_spec.argv, *kwargs.pop("extra_arguments", [])]
        self._session = env.get("JPY_SESSION_NAME", "")
        sent = {name: env[name] for name in self.settings.variables if name in env}
        kwargs["env"] = {**sent, **(self.kernel_spec.env or {})}
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, and return its connection information. Raise NodeError.

        A kernel that an earlier Jupyter server has started under this id is adopted instead.
        """
        if not self._chosen and kernel_records.load(self.kernel_id):
            record = kernel_records.claim(self.kernel_id)
            if record is None:
                raise NodeError(f"another Jupyter server has the kernel {self.kernel_id}", "has_server")
            return self._adopt(record)
        return await self._start_on_a_node(cmd, kwargs["env"], kwargs.get("cwd") or "")

    async def _start_on_a_node(self, cmd: list[str], env: dict[str, str], folder: str) -> KernelConnectionInfo:
        """Start the kernel on the first node that takes it, first of all on its node so far. Raise NodeError."""
        failures: list[tuple[str, NodeError]] = []
        before, ports = self._chosen, self._ports
        nodes = await self._nodes_in_order()
        if before:
            nodes = [before, *(node for node in nodes if node != before)]
        unshared: list[str] = []  # nodes that may start the kernel without sharing, if no other node starts it
        for node in itertools.chain(nodes, unshared):
            must_share = len(nodes) > 1 and node not in unshared
            is_other = bool(before) and node != before
            self._chosen, self._ports = node, {} if is_other else ports
            try:
                with _starts.on(node):
                    request = self._start_request(cmd, env, folder)
                    request.must_share = must_share
                    if is_other and failures:
                        first, fault = failures[0]
                        request.restart_reason = (
                            f"this kernel has started anew on {node}, without its variables: {first}: {fault}"
                        )
                    connection = await self._start_here(request)
                    self.has_new_address = bool(before) and (node, self._ports) != (before, ports)
                    return connection
            except NodeError as error:
                if must_share and error.reason == "unshared":
                    unshared.append(node)
                failures.append((node, error))
                self.log.warning("cannot start kernel %s on %s: %s", self.kernel_id, node, error)
        self._chosen, self._ports = before, ports
        if len(failures) == 1:
            raise failures[0][1]
        reasons = "; ".join(f"{node}: {error}" for node, error in failures)
        raise NodeError(f"no node has started the kernel: {reasons}", "no_node")

    async def _nodes_in_order(self) -> Sequence[str]:
        """Return the nodes that may have the kernel, the best one first."""
        nodes = [self.node] if self.node else list(self.settings.all_nodes)
        if len(nodes) == 1:
            return nodes
        snapshots = await asyncio.gather(*map(self._snapshot, nodes))
        return order_nodes(dict(zip(nodes, snapshots, strict=True)), self.gpus, _starts.by_node)

    async def _snapshot(self, node: str) -> Snapshot | None:
        """Return the snapshot of a node's coordinator; None: the node has not answered in time."""
        loop = asyncio.get_running_loop()
        try:
            connection = await loop.run_in_executor(None, CONNECTIONS.connection, node, self.settings.command(node))
            answer = connection.request(Coordinator(message={"type": "status"}))
            snapshot: Snapshot = await self._answer(answer, _SNAPSHOT_SECONDS)
        except NodeError as error:
            return IDLE if error.reason == "unreachable" else None
        return snapshot

    def _start_request(self, cmd: list[str], env: dict[str, str], folder: str) -> Start:
        """Return the request to start the kernel on the chosen node. Raise NodeError."""
        return Start(
            kernel=self.kernel_id,
            argv=cmd,
            connection=self._connection(),
            client=self._client_request(env),
            env=env,
            folder=folder,
            prefix=self.settings.prefix,
            port_range=self.settings.port_range,
            orphan_timeout=units.parse_duration(self.settings.orphan_timeout),
            is_python=self.is_python,
        )

    async def _start_here(self, request: Start) -> KernelConnectionInfo:
        """Start the kernel on the chosen node. Raise NodeError."""
        kernel, connection = self._remote_kernel(), request.connection
        started = msgspec.convert(await self._start(kernel, request), Started)
        if started.note:
            self.log.warning("found a fault of GPU sharing in kernel %s: %s", self.kernel_id, started.note)
        assert self.identity is not None
        record = KernelRecord(
            kernel=self.kernel_id,
            kernel_name=connection.kernel_name,
            node=self.node_name,
            pid=started.pid,
            connection=msgspec.structs.replace(connection, **started.ports),
            **self.identity._asdict(),
            quota=self.quota,
            session=self._session,
        )
        try:
            return self._watch(kernel, record)
        except OSError as error:
            kernel.discard()
            raise NodeError(f"the server cannot save the record of the kernel: {error}", "no_record") from None

    def _adopt(self, record: KernelRecord) -> KernelConnectionInfo:
        """Adopt the kernel of a record, and return its connection information."""
        self._chosen, self.quota, self._session = record.node, record.quota, record.session
        self.identity = Identity(record.client, record.token)
        manager: Any = self.parent
        if manager.connection_file:  # of that server; the manager writes the file anew
            Path(manager.connection_file).unlink(missing_ok=True)
        self.log.info("adopted kernel %s on %s", record.kernel, record.node)
        return self._watch(self._remote_kernel(), record)

    def _watch(self, kernel: RemoteKernel, record: KernelRecord) -> KernelConnectionInfo:
        """Save the record of a running kernel, and wait for the kernel's end in the background."""
        kernel_records.save(record)
        kernel.ended.add_done_callback(lambda ended: self._log_output(kernel, ended.result()))
        kernel.adopt()
        self._kernel, self.node_pid = kernel, record.pid
        self._ports = {name: getattr(record.connection, name) for name in PORT_NAMES}
        info = {**record.connection.fields(), "key": record.connection.key.encode()}
        self.connection_info = cast(KernelConnectionInfo, info)
        return self.connection_info

    def _log_output(self, kernel: RemoteKernel, ended: Ended) -> None:
        """Log the last lines of a kernel that has ended unexpectedly."""
        manager: Any = self.parent
        if manager is None or manager.shutting_down or ended.status is None:
            return

        def log(answer: Future[Any]) -> None:
            lines = [] if answer.exception() else answer.result()["text"].strip().splitlines()[-_LOGGED_LINES:]
            self.log.error(
                "kernel %s on %s ended with status %s: %s",
                self.kernel_id,
                self.node_name,
                ended.status,
                "\n".join(lines),
            )

        kernel.request(Output(kernel=self.kernel_id)).add_done_callback(log)

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the files of a kernel that has ended from the node, and its client if it does not restart."""
        if self.node_pid is None:
            return
        self.node_pid = None
        kernel_records.remove(self.kernel_id)
        try:
            await self._ask(self._remote_kernel(), Forget(kernel=self.kernel_id, unregister=not restart))
        except NodeError as error:
            self.log.warning("files of kernel %s may remain on %s: %s", self.kernel_id, self.node_name, error)

    def _remote_kernel(self) -> RemoteKernel:
        """Return the kernel on the present node, also after the provisioner has chosen another node."""
        connect = functools.partial(CONNECTIONS.connection, self.node_name, self.settings.command(self.node_name))
        return RemoteKernel(self.kernel_id, connect, units.parse_duration(self.settings.node_timeout))

    async def _start(self, kernel: RemoteKernel, request: Request) -> Any:
        """Send the request, and discard a kernel that starts too late."""
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(None, functools.partial(kernel.request, request))
        try:
            return await self._answer(answer, self.settings.start_seconds)
        except NodeError as error:
            if error.reason in ("timeout", "agent_ended"):
                answer.add_done_callback(kernel.discard)
            raise

    async def _ask(self, kernel: RemoteKernel, request: Request) -> Any:
        """Send a request that may be repeated, by a new node agent if the first one ends."""
        try:
            return await self._answer(kernel.request(request))
        except NodeError as error:
            if error.reason not in (*UNREACHABLE, "timeout"):
                raise
            if error.reason == "timeout":
                await asyncio.get_running_loop().run_in_executor(None, kernel.end_agent)
            return await self._answer(kernel.request(request))

    async def _answer(self, answer: Future[Any], seconds: float = _REQUEST_SECONDS) -> Any:
        """Return the result of a request. Raise NodeError, also after so many seconds without an answer."""
        result = asyncio.wrap_future(answer)
        try:
            return await asyncio.wait_for(asyncio.shield(result), seconds)
        except asyncio.TimeoutError:
            result.add_done_callback(lambda late: late.cancelled() or late.exception())  # which asyncio logs otherwise
            raise NodeError(f"the node {self.node_name} has not answered within {seconds:g} s", "timeout") from None

    def _client_request(self, env: Mapping[str, str]) -> ClientRequest:
        assert self.identity is not None
        settings, problem = self.server_settings()
        if problem:
            self.log.warning("found a fault of GPU sharing in kernel %s: %s", self.kernel_id, problem)
        return ClientRequest(
            **self.identity._asdict(),
            label=self.client_label,
            quota=self.quota,
            gpus=self.gpus,
            memory_mode=self.memory_mode,
            simulate=self.simulate_option(settings, env),
            settings=settings.argv(),
        )

    def _connection(self) -> Connection:
        """Return the connection information that the server determines. Raise NodeError."""
        try:
            ip = self.settings.address(self.node_name)
        except OSError as error:
            raise NodeError(
                f"the address of the node {self.node_name} is unknown: {error.strerror}", "unknown_node"
            ) from None
        manager: Any = self.parent
        return Connection(
            ip=ip,
            key=manager.session.key.decode(),
            signature_scheme=manager.session.signature_scheme,
            kernel_name=manager.kernel_name,
            **cast(dict[str, Any], {**self._encryption_keys(), **self._ports}),
        )

    def _encryption_keys(self) -> dict[str, str]:
        """Return the keys of CurveZMQ, which remain the same when the kernel restarts. Raise NodeError."""
        manager: Any = self.parent
        if self.settings.encryption == "off":
            return {}
        if not hasattr(manager, "curve_publickey"):
            raise NodeError(
                "this version of jupyter_client cannot encrypt the connections of kernels (c.GpuShareCluster.encryption"
                " = 'off' allows plain connections)",
                "no_encryption",
            )
        if "curve" not in self.kernel_spec.metadata.get("supported_encryption", ()):
            raise NodeError(
                f"the kernel {manager.kernel_name} cannot encrypt its connections: its kernelspec does not list "
                "'curve' in metadata.supported_encryption (c.GpuShareCluster.encryption = 'off' allows "
                "plain connections)",
                "no_encryption",
            )
        if manager.curve_publickey is None:
            manager.curve_publickey, manager.curve_secretkey = zmq.curve_keypair()
        names = ("curve_publickey", "curve_secretkey")
        return {name: getattr(manager, name).decode() for name in names}


def _status(ended: Ended) -> int:
    return _UNKNOWN_STATUS if ended.status is None else ended.status
