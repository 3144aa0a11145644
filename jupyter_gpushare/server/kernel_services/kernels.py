"""Clients of this Jupyter server's kernels, and events of these kernels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq
from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from ... import launcher
from ...client_provisioner import ClientProvisioner
from ...wire.client import CoordinatorError
from ...wire.messages import Interrupt

PROVISIONER = "gpushare-provisioner"
KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
# A kernel should handle the interrupt request before its waiting calls fail, so that the program gets an interrupt
# instead of an error of the driver.
INTERRUPT_GRACE_SECONDS = 0.1
_PAGE_CHANNELS = ("shell", "iopub", "stdin", "control")


class UnknownKernel(LookupError):
    """Kernel id that the server does not run."""


class Kernels:
    """Kernels of the server's kernel manager. The class sends nothing to the coordinator."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._manager

    def client_of(self, kernel_id: str, status: Mapping[str, Any] | None = None) -> str:
        """Return the client of a kernel, or "" for a kernel that does not share the GPU. Raise UnknownKernel.

        The client id is in the environment of the kernel's process.
        The client id is the kernel's id under the provisioner, and another id under the launcher.
        If the process belongs to another user, its environment is not readable.
        Then the client with the kernel's id or pid in the snapshot `status` is the result.
        """
        if kernel_id not in self._manager:
            raise UnknownKernel(kernel_id)
        kernel = self._manager.get_kernel(kernel_id)
        pid = getattr(getattr(kernel, "provisioner", None), "pid", None)
        if pid is None:
            return kernel_id if _declares_sharing(kernel) else ""
        environment = _process_environment(pid)
        if environment is not None:
            return environment.get("GPUSHARE_CLIENT", "")
        return _find_in_snapshot(kernel_id, pid, status)

    def node_of(self, kernel_id: str) -> str:
        """Return the node of a kernel that `c.GpuShareCluster` has started; "" for any other kernel."""
        kernel = self._manager.get_kernel(kernel_id) if kernel_id in self._manager else None
        return str(getattr(getattr(kernel, "provisioner", None), "node_name", ""))

    def nodes(self) -> set[str]:
        """Return the nodes of all kernels that `c.GpuShareCluster` has started."""
        return {node for node in map(self.node_of, self._manager.list_kernel_ids()) if node}

    def identity_of(self, kernel_id: str) -> dict[str, str]:
        """Return the `{"client", "token"}` with which to attach as a kernel. Raise UnknownKernel.

        The result is empty if the kernel does not share the GPU, or if its environment is not readable.
        """
        client = self.client_of(kernel_id)
        pid = getattr(getattr(self._manager.get_kernel(kernel_id), "provisioner", None), "pid", None)
        environment = _process_environment(pid) if pid is not None else None
        if not client or not environment or not environment.get("GPUSHARE_TOKEN"):
            return {}
        return {"client": client, "token": environment["GPUSHARE_TOKEN"]}

    def configured_label(self, kernel_id: str) -> str:
        """Return the label of a kernel in its kernelspec or in the configuration, or "". Raise UnknownKernel."""
        if kernel_id not in self._manager:
            raise UnknownKernel(kernel_id)
        kernel = self._manager.get_kernel(kernel_id)
        provisioner = getattr(kernel, "provisioner", None)
        if isinstance(provisioner, ClientProvisioner):
            return str(provisioner.label)
        return launcher.label_option(getattr(getattr(kernel, "kernel_spec", None), "argv", []))

    def of_clients(self, clients: Collection[str], status: Mapping[str, Any]) -> Iterator[str]:
        """Yield the kernels of this server that belong to the clients."""
        for kernel_id in self._manager.list_kernel_ids() if clients else ():
            with contextlib.suppress(UnknownKernel):
                if self.client_of(kernel_id, status) in clients:
                    yield kernel_id

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt a kernel as the stop button does."""
        await ensure_async(self._manager.interrupt_kernel(kernel_id))

    def leave_old_address(self, kernel_id: str) -> None:
        """Close the server's connections to the old address of a kernel that has restarted on a node.

        The pages connect anew. Jupyter Server itself would keep connections of pages that have not asked for the
        restart. After an automatic restart, it would also track the kernel's activity at the old address, and cull
        the kernel as idle.
        """
        kernel = self._manager.get_kernel(kernel_id)
        if not getattr(getattr(kernel, "provisioner", None), "has_new_address", False):
            return
        self._manager._kernel_ports[kernel_id] = []  # pages that connect anew get new sockets, even for equal ports
        for connection in list(ZMQChannelsWebsocketConnection._open_sockets):
            if connection.kernel_id == kernel_id and not all(
                _is_connected(connection.channels.get(name), kernel, name) for name in _PAGE_CHANNELS
            ):
                connection.websocket_handler.close()
        if not _is_connected(getattr(kernel, "_activity_stream", None), kernel, "iopub"):
            self._manager.stop_watching_activity(kernel_id)
            self._manager.start_watching_activity(kernel_id)

    def has_shared_kernels(self) -> bool:
        """Return true if a kernel of this server shares the GPU."""
        for kernel_id in self._manager.list_kernel_ids():
            with contextlib.suppress(UnknownKernel):
                if self.client_of(kernel_id):
                    return True
        return False

    def uses_message_interrupts(self, kernel_id: str) -> bool:
        """Return true for a kernel that is interrupted by a message on its control channel instead of a signal."""
        if kernel_id not in self._manager:
            return False
        spec = getattr(self._manager.get_kernel(kernel_id), "kernel_spec", None)
        return getattr(spec, "interrupt_mode", "signal") == "message"


def _declares_sharing(kernel: Any) -> bool:
    # A kernel that starts has no process so far, but its kernelspec names its provisioner.
    metadata = getattr(getattr(kernel, "kernel_spec", None), "metadata", None) or {}
    return bool((metadata.get("kernel_provisioner") or {}).get("provisioner_name") == PROVISIONER)


def _is_connected(stream: Any, kernel: Any, channel: str) -> bool:
    """Return whether the stream is connected to this channel of the kernel's present process."""
    if stream is None or stream.closed():
        return False
    return bool(stream.socket.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode() == kernel._make_url(channel))


def _process_environment(pid: int) -> dict[str, str] | None:
    """Return the environment at the start of a process, or None if this user may not read the environment."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return None
    except OSError:
        return {}
    pairs = (item.partition("=") for item in block.decode(errors="surrogateescape").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def _find_in_snapshot(kernel_id: str, pid: int, status: Mapping[str, Any] | None) -> str:
    clients = (status or {}).get("clients", [])
    if any(client["id"] == kernel_id for client in clients):
        return kernel_id
    for client in clients:
        pids = [process.get("pid") for process in client.get("processes", [])]
        if pid in pids or pid in client.get("kernel_pids", []):
            return str(client["id"])
    return ""


class KernelEvents:
    """Listener to jupyter_server's events about starts, ends and interrupts of kernels.

    The shim detects SIGINT by itself, but a kernel with `interrupt_mode: message` gets no SIGINT.
    For such a kernel, the listener requests the coordinator to end the kernel's waiting calls.
    `request` sends a request to the coordinator of a node, or of this host for the node "".
    """

    def __init__(
        self,
        kernels: Kernels,
        request: Callable[[str, Any], Awaitable[Any]],
        started: Callable[[str], None],
        ended: Callable[[str], None],
        log: logging.Logger,
    ) -> None:
        self._kernels = kernels
        self._request = request
        self._started = started
        self._ended = ended
        self._log = log

    async def __call__(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("status") != "success":
            return
        if data["action"] in ("start", "restart"):
            self._started(data.get("kernel_id") or "")
        elif data["action"] == "shutdown":
            self._ended(data.get("kernel_id") or "")
        elif data["action"] == "interrupt" and data.get("kernel_id"):
            await self._on_interrupt(data["kernel_id"])

    async def _on_interrupt(self, kernel_id: str) -> None:
        if not self._kernels.uses_message_interrupts(kernel_id):
            return
        node = self._kernels.node_of(kernel_id)
        client = kernel_id if node else self._kernels.client_of(kernel_id)
        if not client:
            return
        await asyncio.sleep(INTERRUPT_GRACE_SECONDS)
        try:
            await self._request(node, Interrupt(client=client))
        except CoordinatorError as error:
            self._log.warning("could not interrupt the GPU calls of kernel %s: %s", kernel_id, error)
