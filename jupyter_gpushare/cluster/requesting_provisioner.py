"""Requests of a provisioner to the nodes of its kernel."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, cast

import msgspec
import zmq
from traitlets import TraitError, Unicode, validate

from .. import units
from ..client_provisioner import ClientProvisioner, InvalidSetting, RequestFailed
from . import pending_start
from .channel.messages import UNREACHABLE, ClientRequest, Connection, NodeError, Request, Start, Started
from .kernel_records import KernelRecord, notebook_root
from .node_connection import CONNECTIONS
from .remote_kernel import RemoteKernel
from .settings import GpuShareCluster, check_node

REQUEST_SECONDS = 5.0
_RETRY_PAUSES = (0.0, 0.5, 1.0, 2.0)  # seconds before the next tries of a request to a node that has not been reached
_PATIENCE_SECONDS = 5.0  # in which an interrupt is tried again while the engine starts no node agent


class NodeRequestFailed(RequestFailed, NodeError):  # type: ignore[misc]  # `reason` is a text in both
    """Failed start or signal of a kernel on a node."""

    def __init__(self, error: NodeError, status: int = 500) -> None:
        RequestFailed.__init__(self, str(error), error.reason, status)


class RequestingProvisioner(ClientProvisioner):
    """Base of the provisioner of kernels on nodes, which makes the requests, sends them and awaits the answers."""

    node = Unicode(config=True, help="Node of the kernel; default: the node with the most room.")

    @validate("node")
    def _check_node(self, proposal: Any) -> str:
        if proposal.value:
            check_node(proposal.value, "RemoteProvisioner.node")
        return str(proposal.value)

    def __init__(self, **kwargs: Any) -> None:
        try:
            super().__init__(**kwargs)
            self.settings = GpuShareCluster(parent=self)
        except TraitError as error:
            pending_start.forget(kwargs.get("parent"), kwargs.get("kernel_id", ""))
            raise InvalidSetting(error) from None
        self._session = ""
        self._chosen = ""  # the node of the last start

    @property
    def node_name(self) -> str:
        """Name of the node of the kernel."""
        return self._chosen or self.node or self.settings.all_nodes[0]

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Prepare the command and the variables, in which the node agent replaces what depends on the node."""
        env: Mapping[str, str] = kwargs.pop("env", os.environ)
        kwargs.pop("transport_encryption", None)  # c.GpuShareCluster.encryption decides
        self.identify_client(env)
        kwargs["cmd"] = [*self.kernel_spec.argv, *kwargs.pop("extra_arguments", [])]
        self._session = env.get("JPY_SESSION_NAME", "")
        # The node agent substitutes variables, as jupyter_client does in the kernelspec's `env` only.
        sent = {name: env[name].replace("$", "$$") for name in self.settings.variables if name in env}
        kwargs["env"] = {**sent, **(self.kernel_spec.env or {})}
        return kwargs

    def _make_request(
        self, cmd: list[str], env: dict[str, str], folder: str, node: str, ports: Mapping[str, int]
    ) -> Start:
        """Return the request to start the kernel on a node. Raise NodeError."""
        others = [name for name in self.settings.all_nodes if name != node]
        return Start(
            kernel=self.kernel_id,
            argv=cmd,
            connection=self._connection(node, ports),
            client=self._client_request(env),
            env={**env, "GPUSHARE_NODE": node, "GPUSHARE_NODES": ",".join(others)},
            folder=folder,
            prefix=self.settings.prefix,
            port_range=self.settings.port_range,
            orphan_timeout=units.parse_duration(self.settings.orphan_timeout),
            is_python=self.is_python,
            start=secrets.token_hex(8),
        )

    def _record(self, node: str, request: Start, started: Started) -> KernelRecord:
        assert self.identity is not None
        server = getattr(getattr(self.parent, "parent", None), "parent", None)  # missing in a script
        return KernelRecord(
            kernel=self.kernel_id,
            kernel_name=request.connection.kernel_name,
            node=node,
            pid=started.pid,
            connection=msgspec.structs.replace(request.connection, **started.ports),
            **self.identity._asdict(),
            quota=self.quota,
            session=self._session,
            engine=self.settings.engine_digest(node),
            root=str(notebook_root(server)) if hasattr(server, "contents_manager") else "",
        )

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

    def _connection(self, node: str, ports: Mapping[str, int]) -> Connection:
        """Return the connection information that the server determines. Raise NodeError."""
        try:
            ip = self.settings.address(node)
        except OSError as error:
            raise NodeError(f"the address of the node {node} is unknown: {error.strerror}", "unknown_node") from None
        manager: Any = self.parent
        return Connection(
            ip=ip,
            key=manager.session.key.decode(),
            signature_scheme=manager.session.signature_scheme,
            kernel_name=manager.kernel_name,
            **cast(dict[str, Any], {**self._encryption_keys(), **ports}),
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

    def _remote_kernel(self, node: str = "", start: str = "") -> RemoteKernel:
        """Return the kernel on a node, also after the provisioner has chosen another one; default: the chosen one."""
        node = node or self.node_name
        connect = functools.partial(CONNECTIONS.connection, node, self.settings.command(node))
        return RemoteKernel(self.kernel_id, connect, units.parse_duration(self.settings.node_timeout), start)

    async def _start(self, kernel: RemoteKernel, request: Request) -> Any:
        """Send the request, and discard a kernel that starts too late, or whose start has been cancelled."""
        given_up: Future[None] = Future()

        def send() -> Future[Any]:
            answer = kernel.request(request)
            answer.add_done_callback(lambda _: given_up.add_done_callback(lambda _: kernel.discard(answer)))
            return answer

        try:
            sending = asyncio.get_running_loop().run_in_executor(None, send)
            return await self._answer(await asyncio.shield(sending), self.settings.start_seconds)
        except BaseException as error:
            if not isinstance(error, NodeError) or error.reason in ("timeout", "agent_ended"):
                given_up.set_result(None)
            raise

    async def _ask(
        self, kernel: RemoteKernel, request: Request, expires: bool = False, is_patient: bool = False
    ) -> Any:
        """Send a request that may be repeated, by a new node agent if the first one ends.

        A node agent that starts, as after the loss of the first one, gets the request late, but once. With `expires`,
        a node agent that starts after the error gets no request. With `is_patient`, an engine that starts no agent is
        tried again for some seconds.
        """
        loop = asyncio.get_running_loop()
        answer, began = kernel.request(request), loop.time()
        try:
            for pause in _RETRY_PAUSES:
                try:
                    return await self._answer(answer)
                except NodeError as error:
                    # A later try must not repeat a request that a node agent may have got.
                    may_retry = (
                        is_patient and error.reason == "engine_failed" and loop.time() < began + _PATIENCE_SECONDS
                    )
                    if error.reason not in (*UNREACHABLE, "timeout") or (pause and not may_retry):
                        raise
                    if error.reason == "timeout":
                        await loop.run_in_executor(None, kernel.end_agent)
                await asyncio.sleep(pause)
                if answer.done() and answer.exception():
                    answer = kernel.request(request)
            return await self._answer(answer)
        finally:
            if expires:
                answer.cancel()

    async def _answer(self, answer: Future[Any], seconds: float = REQUEST_SECONDS) -> Any:
        """Return the result of a request. Raise NodeError, also after so many seconds without an answer."""
        result = asyncio.wrap_future(answer)
        result.add_done_callback(lambda late: late.cancelled() or late.exception())  # which asyncio logs otherwise
        try:
            return await asyncio.wait_for(asyncio.shield(result), seconds)
        except asyncio.TimeoutError:
            words = [f"the node {self.node_name} has not answered within {seconds:g} s"]
            if errors := CONNECTIONS.start_errors(self.settings.command(self.node_name)):
                words.append(errors)
            raise NodeError(": ".join(words), "timeout") from None
