"""REST routes below `/gpushare/api`, which docs/reference/rest.md describes for users."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from .. import settings, units
from ..settings.quota import QUOTA
from ..settings.table import PUBLIC
from ..wire import messages
from ..wire.client import CoordinatorError
from . import errors
from .kernel_services.kernels import Kernels, UnknownKernel
from .kernel_services.waiting_starts import WaitingStarts
from .node_snapshots import NodeSnapshots
from .supervisor import Supervisor

AUTH_RESOURCE = "gpushare"
# Bytes, enough for a quota or some settings; the coordinator limits its lines as well.
MAX_BODY = 16 * 1024

ACTIONS: dict[str, Callable[..., msgspec.Struct]] = {
    "release": messages.Release,
    "evict": messages.Evict,
    "suspend": messages.Suspend,
    "resume": messages.Resume,
}

_Scalar = str | int | float | bool | None
_Changes = dict[str, _Scalar | dict[str, _Scalar] | list[_Scalar]]


class GpuShareHandler(APIHandler):
    """Base class of all routes."""

    auth_resource = AUTH_RESOURCE
    # A display that polls the status must not keep an idle server from being culled.
    _track_activity = False
    # A valid body, for the message about an invalid body.
    example = '{"share": 0.5}'

    def initialize(self, supervisor: Supervisor, kernels: Kernels, nodes: NodeSnapshots, starts: WaitingStarts) -> None:
        self.starts = starts
        self.supervisor = supervisor
        self.kernels = kernels
        self.nodes = nodes

    async def ask(self, message: msgspec.Struct, **more: Any) -> None:
        """Answer with the result of a request to a coordinator and the fields `more`."""
        self.answer({**await self.result(message), **more})

    async def result(self, message: msgspec.Struct) -> Any:
        """Return the result of a request to the coordinator of the message's client. Raise ApiError.

        A message without a client is for the coordinator of the query's `node`, or of this host. If no coordinator of
        this host answers, the supervisor starts one.
        """
        client = getattr(message, "client", "")
        node = self.nodes.node_of(client) if client else self.get_query_argument("node", "")
        try:
            return await (self.nodes.request(node, message) if node else self.supervisor.request(message))
        except CoordinatorError as error:
            raise errors.refusal(error) from None

    def answer(self, result: Any) -> None:
        self.set_header("Cache-Control", "no-store")
        self.finish(msgspec.json.encode(result))

    def changes(self) -> dict[str, Any]:
        """Return the request's body, which is a JSON object. Raise Refused."""
        if len(self.request.body) > MAX_BODY:
            raise errors.ApiError(413, "too_large", f"The body is longer than {MAX_BODY} bytes.")
        try:
            # msgspec is strict; the standard library's parser accepts NaN and Infinity.
            return msgspec.json.decode(self.request.body, type=_Changes)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.ApiError(
                400, "malformed", f"The body must be a JSON object such as {self.example}: {error}"
            ) from None

    def check_client_id(self, client_id: str) -> str:
        """Return a client id of a valid form. Raise Refused for other ids, with the error of an unknown client."""
        try:
            return msgspec.convert(client_id, messages.Identity)
        except msgspec.ValidationError:
            raise errors.ApiError(404, "unknown_client", f"No client has the id {client_id!r}.") from None

    def client_of(self, kernel_id: str) -> str:
        """Return the client of a kernel of this server. Raise Refused."""
        try:
            client = self.kernels.client_of(kernel_id, self.supervisor.status)
        except UnknownKernel:
            raise errors.ApiError(404, "unknown_kernel", f"This server runs no kernel {kernel_id!r}.") from None
        if not client:
            raise errors.ApiError(404, "not_shared", f"The kernel {kernel_id!r} does not share the GPU.")
        return client

    @classmethod
    def allowed_methods(cls) -> list[str]:
        """Return the HTTP methods of this route, such as "GET"."""
        return [
            method
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
            if getattr(cls, method.lower()) is not getattr(web.RequestHandler, method.lower())
        ]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        exc_info = kwargs.get("exc_info")
        error = exc_info[1] if exc_info else None
        authenticated = bool(getattr(self, "_jupyter_current_user", None))
        if status_code == 405:
            self.set_header("Allow", ", ".join(self.allowed_methods()))
        self.finish(msgspec.json.encode(errors.body(status_code, error, authenticated)))


class StatusHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the snapshot of this host and of the nodes that have kernels of this server."""
        status = await self.result(messages.Status())
        self.answer(status if self.get_query_argument("node", "") else self.nodes.merged(status))


class HistoryHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the history of the last minutes, after the entry number `after`."""
        after, client = self.get_query_argument("after", "0"), self.get_query_argument("client", "")
        if not (after.isascii() and after.isdigit() and len(after) <= 15):
            raise errors.ApiError(
                400, "invalid", f"after={after!r} is not the number of an entry: allowed are `next` of an answer and 0."
            )
        if client:
            self.check_client_id(client)
        await self.ask(messages.History(after=int(after), client=client))


class UsageHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the usage since the query's `since`."""
        try:
            since = units.parse_since(self.get_query_argument("since", "7d"), time.time())
        except ValueError as error:
            raise errors.ApiError(400, "invalid", f"since={error}.") from None
        await self.ask(messages.Usage(since=since))


class QuotaHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self, client_id: str) -> None:
        """Answer with a client's quota and its JSON schema."""
        message = messages.SetQuota(client=self.check_client_id(client_id))
        await self.ask(message, schema=settings.schema(QUOTA.values()))

    @web.authenticated
    @authorized
    async def patch(self, client_id: str) -> None:
        """Change the parts of a client's quota that the body has."""
        await self.ask(messages.SetQuota(client=self.check_client_id(client_id), changes=self.changes()))


class ActionHandler(GpuShareHandler):
    """Route of a request in `ACTIONS`, which concerns a client and needs no body."""

    def initialize(
        self, supervisor: Supervisor, kernels: Kernels, nodes: NodeSnapshots, starts: WaitingStarts, action: str = ""
    ) -> None:
        super().initialize(supervisor, kernels, nodes, starts)
        self._action = ACTIONS[action]

    @web.authenticated
    @authorized
    async def post(self, client_id: str) -> None:
        await self.ask(self._action(client=self.check_client_id(client_id)))


class HoldHandler(GpuShareHandler):
    example = '{"seconds": 300}'

    @web.authenticated
    @authorized
    async def post(self, client_id: str) -> None:
        """Hold the devices for the body's `seconds`, or without a body as long as the settings allow."""
        fields = self.changes() if self.request.body else {}
        if unknown := fields.keys() - {"seconds"}:
            raise errors.ApiError(400, "invalid", f"{', '.join(sorted(unknown))}: the only allowed key is seconds.")
        seconds = fields.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float, str, type(None))):
            raise errors.ApiError(400, "invalid", f"seconds={seconds!r} is not a duration (examples: 300, 5min).")
        await self.ask(messages.Hold(client=self.check_client_id(client_id), seconds=seconds))


class ConfigHandler(GpuShareHandler):
    """Route of the settings.

    PATCH needs the action "write" on "gpushare" from the server's authorizer, and an admin for the coordinator.
    """

    example = '{"time_quantum": 5}'

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the coordinator's settings and their JSON schema."""
        public = (settings.SETTINGS[name] for name in PUBLIC)
        await self.ask(messages.Config(), schema=settings.schema(public))

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Change settings until the coordinator stops."""
        await self.ask(messages.Config(changes=self.changes()))


class KernelHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Answer with the client and the node of a kernel of this server.

        The request starts no coordinator, because front ends send it for every notebook.
        """
        node = self.kernels.node_of(kernel_id)
        self.answer({"kernel": kernel_id, "client": kernel_id if node else self.client_of(kernel_id), "node": node})


class StartHandler(GpuShareHandler):
    """Route of the start of a kernel that waits for a node with room."""

    @web.authenticated
    @authorized
    async def delete(self, kernel_id: str) -> None:
        """Cancel the start, which fails then."""
        if not self.starts.cancel(kernel_id):
            raise errors.ApiError(404, "unknown_start", f"No start of a kernel {kernel_id!r} waits for a node.")
        self.answer({"kernel": kernel_id})


class NoSuchRoute(GpuShareHandler):
    """Route of unknown addresses, which also answers in JSON."""

    @web.authenticated
    async def get(self, path: str) -> None:
        raise errors.ApiError(404, "unknown_route", f"The address /gpushare/api/{path} does not exist.")

    post = put = patch = delete = get
