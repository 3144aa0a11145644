"""Fixtures with a real coordinator and real kernels on a host of their own, also for tests/kernel and tests/widgets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import address, client, messages

from ..support import zygote
from ..support.polling import WAIT_SECONDS, wait_until

KERNELS = kernel_env.PACKAGE / "kernelspec"


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., Any]:
    return wait_until


class Coordinator:
    """Coordinator with a simulated device, in a process of its own."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self._process: zygote.Forked | None = None

    def start(self, *options: str) -> None:
        command = ["--simulate", "--socket", self.socket, *options]
        with open(os.devnull, "wb") as null:
            self._process = zygote.start_coordinator(command, output=1, errors=null)
        wait_until(lambda: address.is_accepting(self.socket))

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self.send(signal.SIGCONT)
            self.send(number)
            self._process.wait(WAIT_SECONDS)
            self._process = None

    def request(self, message: Any) -> Any:
        with client.Client(self.socket, timeout=WAIT_SECONDS) as connection:
            return connection.request(message)

    def set(self, **changes: Any) -> None:
        self.request(messages.Config(changes=changes))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def clients(self) -> dict[str, Any]:
        return {one["id"]: one for one in self.request(messages.Status())["clients"]}


@pytest.fixture
def coordinator(own_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Start a coordinator without the state of other tests, and set GPUSHARE_SOCKET to its socket."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = own_host / "run" / "own"
    folder.mkdir(mode=0o700, exist_ok=True)
    running = Coordinator(folder / "c.sock")
    monkeypatch.setenv("GPUSHARE_SOCKET", running.socket)
    running.start()
    yield running
    # An orderly stop drops the settings of the test. The present coordinator may be one that a kernel has started.
    with contextlib.suppress(client.Unreachable):
        running.request(messages.Stop())
    running.end()
    Path(running.socket + ".settings").unlink(missing_ok=True)


@pytest.fixture
def no_coordinator(own_host: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a socket without a coordinator and a command that starts none, and return the socket."""
    monkeypatch.setenv("GPUSHARE_SOCKET", str(own_host / "run" / "none.sock"))
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", json.dumps(["false"]))
    return str(own_host / "run" / "none.sock")


@pytest.fixture
def own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a small simulated device for this test only."""
    monkeypatch.setenv("GPUSHARE_SIM_STATE", str(tmp_path / "devices"))
    monkeypatch.setenv("GPUSHARE_SIM_MEMORY", str(256 << 20))


class Ran(NamedTuple):
    """Result of one request to a kernel."""

    status: str
    stdout: str
    stderr: str
    displays: list[dict[str, Any]]
    reply: dict[str, Any]


class Notebook:
    """Running kernel with a client of its channels."""

    def __init__(self, manager: KernelManager, kernel: BlockingKernelClient) -> None:
        self.manager = manager
        self.kernel = kernel

    def run(self, code: str, timeout: float = WAIT_SECONDS, **options: Any) -> Ran:
        texts = {"stdout": "", "stderr": ""}
        displays = []

        def collect(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts[content["name"]] += content["text"]
            elif message["msg_type"] in ("display_data", "execute_result"):
                displays.append(content["data"])

        options = {"timeout": timeout, "output_hook": collect, "allow_stdin": False, **options}
        reply = self.kernel.execute_interactive(code, **options)
        deadline = time.monotonic() + timeout
        # For a short time after an error, ipykernel aborts further requests, so that "Run All" stops.
        while reply["content"]["status"] == "aborted" and time.monotonic() < deadline:
            reply = self.kernel.execute_interactive(code, **options)
        return Ran(reply["content"]["status"], texts["stdout"], texts["stderr"], displays, reply["content"])

    def value(self, expression: str) -> Any:
        """Evaluate an expression in the kernel, and return its value through JSON."""
        ran = self.run(f"import json as _json; print(_json.dumps({expression}))")
        assert ran.status == "ok", ran
        return json.loads(ran.stdout)

    def send(self, code: str, **options: Any) -> str:
        """Send a request and return its id, without waiting for it."""
        return str(self.kernel.execute(code, **options))

    def subshell(self) -> str:
        """Create a subshell and return its id; no cell may run."""
        if (
            "kernel subshells"
            not in self.kernel.kernel_info(reply=True, timeout=WAIT_SECONDS)["content"]["supported_features"]
        ):
            pytest.skip("this ipykernel has no subshells")
        self.kernel.control_channel.send(self.kernel.session.msg("create_subshell_request"))
        return str(self.kernel.get_control_msg(timeout=WAIT_SECONDS)["content"]["subshell_id"])

    def send_to(self, subshell: str, code: str) -> str:
        """Send a request to a subshell and return its id, without waiting for it."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.kernel.session.msg("execute_request", content)
        message["header"]["subshell_id"] = subshell
        self.kernel.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def reply_to(self, request: str) -> dict[str, Any]:
        while True:
            reply = self.kernel.get_shell_msg(timeout=WAIT_SECONDS)
            if reply["parent_header"].get("msg_id") == request:
                return dict(reply["content"])

    @property
    def pid(self) -> int:
        assert self.manager.provisioner is not None
        return int(self.manager.provisioner.pid)


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create Jupyter's and IPython's folders with the shared kernelspec, and return the folder of kernelspecs."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    kernels = tmp_path / "share" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "python3-gpushare").symlink_to(KERNELS / "python3-gpushare")
    monkeypatch.setenv("JUPYTER_PATH", str(kernels.parent))
    return kernels


@pytest.fixture
def start(jupyter: Path, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Start kernels (`kernel_name=…`, `env=…`), and end them after the test."""
    with contextlib.ExitStack() as stack:

        def start_one(
            kernel_name: str = "python3-gpushare", env: dict[str, str] | None = None, **options: Any
        ) -> Notebook:
            manager = KernelManager(kernel_name=kernel_name, **options)
            manager.start_kernel(env={**os.environ, **(env or {})}, cwd=str(tmp_path))
            stack.callback(manager.shutdown_kernel, now=True)
            kernel = manager.blocking_client()
            stack.callback(kernel.stop_channels)
            kernel.start_channels()
            kernel.wait_for_ready(timeout=WAIT_SECONDS)
            return Notebook(manager, kernel)

        yield start_one
