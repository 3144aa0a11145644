"""Messages between a Jupyter server and the node agent, as JSON in the lines of a sealed channel.

A request has an id, and its answer has the same id. Answers come in any order.
An empty line from the server asks for an empty line from the node agent, which shows that both are there.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

VERSION = 1  # of the messages
UNREACHABLE = ("agent_ended", "engine_failed")  # reasons of errors of a node that does not answer
NO_COORDINATOR = "no_coordinator"  # reason of the error of a request to the coordinator of a node that has none
SERVER_SILENCE_SECONDS = 60.0  # after which the node agent ends, because its server may be gone
PORT_NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class Request(msgspec.Struct, tag_field="method", kw_only=True, forbid_unknown_fields=True):
    """Base of all requests to a node agent."""

    id: int = 0


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Client that the node agent registers with the coordinator of its node, for one kernel.

    `settings` are options for a coordinator that the client starts.
    """

    client: str
    token: str
    label: str = ""
    quota: str = ""
    gpus: int = 1
    memory_mode: str = ""
    simulate: bool | None = None
    settings: list[str] = []


class Connection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Connection information of a kernel, as in a connection file. A port of 0 is chosen by the node agent."""

    ip: str
    key: str
    signature_scheme: str = "hmac-sha256"
    kernel_name: str = ""
    curve_publickey: str = ""
    curve_secretkey: str = ""
    shell_port: int = 0
    iopub_port: int = 0
    stdin_port: int = 0
    control_port: int = 0
    hb_port: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of a connection file. A connection without encryption has no keys."""
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if value != ""}
        return {**fields, "transport": "tcp"}


class Start(Request, tag="start", kw_only=True):
    """Request to start a kernel; the result is a `Started`.

    `argv` may contain `{connection_file}`. A first word `python` means the Python below `prefix`, or by default that of
    the node agent. `folder` is the working directory, by default the home directory. `env` adds to the environment of
    the node agent, whose variables replace `$NAME` and `${NAME}` in the values; `$$` stands for `$`. `port_range`
    bounds the ports, both ends included. A kernel that no server waits for ends after `orphan_timeout` seconds; 0:
    never. With `must_share`, a client that the coordinator refuses fails the start; otherwise the kernel starts without
    sharing. A node without room for the client at present always fails the start ("no_room"). The first cell shows the
    `restart_reason`. With the id of a `move`, the kernel loads the variables that `PutVariables` has brought, and ends
    soon without a server until it is confirmed. The id `start` distinguishes the kernel from a later one with the same
    id.
    """

    kernel: str
    argv: list[str]
    connection: Connection
    client: ClientRequest
    env: dict[str, str] = {}
    folder: str = ""
    prefix: str = ""
    port_range: tuple[int, int] = (0, 0)
    orphan_timeout: float = 0.0
    is_python: bool = True
    must_share: bool = False
    restart_reason: str = ""
    move: str = ""
    start: str = ""


class Wait(Request, tag="wait", kw_only=True):
    """Request to wait for the end of a kernel, which is adopted meanwhile; the result is an `Ended`.

    The kernel is that of a `start` only, or of any start for "". So in `Signal` and `Forget`.
    """

    kernel: str
    start: str = ""


class Signal(Request, tag="signal", kw_only=True):
    """Request to send a signal to the processes of a kernel."""

    kernel: str
    number: int
    start: str = ""


class Output(Request, tag="output", kw_only=True):
    """Request for the text that a kernel has printed; the result has `text`, at most the last `max_bytes`."""

    kernel: str
    max_bytes: int = 4096


class Running(Request, tag="running", kw_only=True):
    """Request for the kernels of this user on the node; the result has the `Started` of each kernel that runs."""


class Forget(Request, tag="forget", kw_only=True):
    """Request to remove the files of a kernel that has ended, and with `unregister` also its client."""

    kernel: str
    unregister: bool = True
    start: str = ""


class AwaitMove(Request, tag="await_move", kw_only=True):
    """Request to wait until a kernel asks for a move to another node; the result is a `Move`, or None at its end."""

    kernel: str


class TakeVariables(Request, tag="take_variables", kw_only=True):
    """Request for a part of the variables of a kernel that moves; the result is a `Variables`."""

    kernel: str
    move: str
    offset: int
    max_bytes: int


class PutVariables(Request, tag="put_variables", kw_only=True):
    """Request to save a part of the variables of a kernel that will start here. Refused for a kernel that runs here."""

    kernel: str
    move: str
    offset: int
    data: bytes


class AwaitVariables(Request, tag="await_variables", kw_only=True):
    """Request for the outcome of loading the variables; the result is a `LoadedVariables`, or None before that."""

    kernel: str
    move: str


class SetMove(Request, tag="set_move", kw_only=True):
    """Request to change the state of a move, or of all moves of the kernel if `move` is "".

    On the old node, a move becomes "locked", so that the kernel cannot withdraw the request, and then "done" or
    "refused", with the reason for the user. On the new node, a move becomes "confirmed" when it has been locked, or
    "withdrawn", which ends the kernel of the move and removes its files. The result has the `Move` of each request of
    the kernel that is "done" or "refused" now.
    """

    kernel: str
    move: str
    state: Literal["locked", "done", "refused", "confirmed", "withdrawn"]
    reason: str = ""


class Coordinator(Request, tag="request", kw_only=True):
    """Request for the coordinator of the node: a message of `wire.messages`; the result is the coordinator's."""

    message: dict[str, Any]


AnyMove = AwaitMove | TakeVariables | PutVariables | AwaitVariables | SetMove
AnyRequest = Start | Wait | Signal | Output | Running | Forget | Coordinator | AnyMove


class Started(msgspec.Struct, kw_only=True):
    """Kernel that has been started. `note` is empty or a fault of GPU sharing, as in `kernel_env.Registration`."""

    kernel: str
    pid: int
    ports: dict[str, int]
    note: str = ""


class Ended(msgspec.Struct, kw_only=True):
    """End of a kernel: the exit status, negative for a signal and None if unknown, and the keeper's reason or ""."""

    status: int | None
    reason: str = ""


class Move(msgspec.Struct, kw_only=True):
    """Move to another node that a kernel asks for, with the size of its variables in bytes."""

    id: str
    node: str
    size: int
    is_locked: bool = False


class Variables(msgspec.Struct, kw_only=True):
    """Part of the saved variables of a kernel."""

    data: bytes


class LoadedVariables(msgspec.Struct, kw_only=True):
    """Report of a kernel: number of loaded variables, reasons for the others, and error of the whole file or ""."""

    number: int
    failed: dict[str, str]
    error: str


class Answer(msgspec.Struct, kw_only=True):
    """Answer to a request. `reason` is empty, or a word for programs, and then `message` is a sentence for users."""

    id: int
    result: Any = None
    reason: str = ""
    message: str = ""


class NodeError(Exception):
    """Refusal or failure of a request to a node. `reason` is a stable word, and the message is for users."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
