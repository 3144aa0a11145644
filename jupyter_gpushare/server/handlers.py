"""The REST routes below `/gpushare/api`. `docs/reference/rest.md` describes them for users."""

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
from .kernels import Kernels, UnknownKernel
from .supervisor import Supervisor

AUTH_RESOURCE = "gpushare"
# A quota or a few settings; the coordinator's lines are limited too.
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
    """What all routes have in common."""

    auth_resource = AUTH_RESOURCE
    # A status display that asks every few seconds must not keep an idle server from being culled.
    _track_activity = False
    # A body, for the answer to one that can't be understood.
    example = '{"share": 0.5}'

    def initialize(self, supervisor: Supervisor, kernels: Kernels) -> None:
        self.supervisor = supervisor
        self.kernels = kernels

    async def ask(self, message: msgspec.Struct, **more: Any) -> None:
        """Answer with the result of a request to the coordinator, which is started if none answers, and `more`."""
        try:
            result = await self.supervisor.request(message)
        except CoordinatorError as error:
            raise errors.refusal(error) from None
        self.answer({**result, **more})

    def answer(self, result: Any) -> None:
        self.set_header("Cache-Control", "no-store")
        self.finish(msgspec.json.encode(result))

    def changes(self) -> dict[str, Any]:
        """The request's body, a JSON object. Raises Refused."""
        if len(self.request.body) > MAX_BODY:
            raise errors.Refused(413, "too_large", f"The body is longer than {MAX_BODY} bytes.")
        try:
            # Strict: the standard library's parser would let NaN and Infinity through.
            return msgspec.json.decode(self.request.body, type=_Changes)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.Refused(
                400, "malformed", f"The body must be a JSON object such as {self.example}: {error}"
            ) from None

    def check_client_id(self, client_id: str) -> str:
        """`client_id` if it has the form of one. Raises Refused, as for every other id that no client has."""
        try:
            return msgspec.convert(client_id, messages.Identity)
        except msgspec.ValidationError:
            raise errors.Refused(404, "unknown_client", f"There is no client {client_id!r}.") from None

    def client_of(self, kernel_id: str) -> str:
        """The client that a kernel of this server is. Raises Refused."""
        try:
            client = self.kernels.client_of(kernel_id, self.supervisor.status)
        except UnknownKernel:
            raise errors.Refused(404, "unknown_kernel", f"There is no kernel {kernel_id!r} here.") from None
        if not client:
            raise errors.Refused(404, "not_shared", f"The kernel {kernel_id!r} does not share the GPU.")
        return client

    @classmethod
    def allowed_methods(cls) -> list[str]:
        """Those that this route answers, as in "GET"."""
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
        """The snapshot."""
        await self.ask(messages.Status())


class HistoryHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """What clients did in the last minutes, after the entry number `after`."""
        after, client = self.get_query_argument("after", "0"), self.get_query_argument("client", "")
        if not (after.isascii() and after.isdigit() and len(after) <= 15):
            raise errors.Refused(400, "invalid", f"after={after!r} is no number of an entry: allowed is `next`, or 0.")
        if client:
            self.check_client_id(client)
        await self.ask(messages.History(after=int(after), client=client))


class UsageHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Who has used what since the query's `since`."""
        try:
            since = units.parse_since(self.get_query_argument("since", "7d"), time.time())
        except ValueError as error:
            raise errors.Refused(400, "invalid", f"since={error}.") from None
        await self.ask(messages.Usage(since=since))


class QuotaHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self, client_id: str) -> None:
        """A client's quota, and the JSON schema of its words."""
        message = messages.SetQuota(client=self.check_client_id(client_id))
        await self.ask(message, schema=settings.schema(QUOTA.values()))

    @web.authenticated
    @authorized
    async def patch(self, client_id: str) -> None:
        """Change what the body names of a client's quota."""
        await self.ask(messages.SetQuota(client=self.check_client_id(client_id), changes=self.changes()))


class ActionHandler(GpuShareHandler):
    """A request about a client that needs no body: one of `ACTIONS`."""

    def initialize(self, supervisor: Supervisor, kernels: Kernels, action: str = "") -> None:
        super().initialize(supervisor, kernels)
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
        """Keep the devices between cells for the body's `seconds`; without a body for as long as is allowed."""
        words = self.changes() if self.request.body else {}
        if unknown := words.keys() - {"seconds"}:
            raise errors.Refused(400, "invalid", f"{', '.join(sorted(unknown))}: the only key allowed is seconds.")
        seconds = words.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float, str, type(None))):
            raise errors.Refused(400, "invalid", f"seconds={seconds!r} is not a duration, such as 300 or 5min.")
        await self.ask(messages.Hold(client=self.check_client_id(client_id), seconds=seconds))


class ConfigHandler(GpuShareHandler):
    """For admins: PATCH needs the action "write" on "gpushare", and the coordinator's consent."""

    example = '{"time_quantum": 5}'

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The coordinator's settings, and their JSON schema."""
        shown = (settings.SETTINGS[name] for name in PUBLIC)
        await self.ask(messages.Config(), schema=settings.schema(shown))

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Change settings until the coordinator stops."""
        await self.ask(messages.Config(changes=self.changes()))


class KernelHandler(GpuShareHandler):
    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Which client a kernel of this server is.

        Starts no coordinator: front ends ask this about every notebook.
        """
        self.answer({"kernel": kernel_id, "client": self.client_of(kernel_id)})


class NoSuchRoute(GpuShareHandler):
    """So that a misspelt address is answered in JSON too."""

    @web.authenticated
    async def get(self, path: str) -> None:
        raise errors.Refused(404, "unknown_route", f"There is nothing at /gpushare/api/{path}.")

    post = put = patch = delete = get
