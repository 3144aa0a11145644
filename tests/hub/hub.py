"""JupyterHub on a `MountNamespaceMachine`, with a real hub, proxy, users' servers and notebooks."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import websocket

from ..support.ports import free_port
from ..system.system_host import wait_until
from .machine import MountNamespaceMachine

START = 180.0  # seconds for the start of a hub or a user's server on a busy machine
_CONFIG = """
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {users!r}
c.JupyterHub.services = [dict(name="test", api_token={token!r})]
c.JupyterHub.load_roles = [dict(name="test", services=["test"], scopes=["admin:users", "admin:servers", "tokens"])]
c.Spawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.http_timeout = c.Spawner.start_timeout = {start}
c.Spawner.environment.update({environment!r})
"""


def proxy() -> str:
    """Return the path of `configurable-http-proxy` from npm or pip, which a hub needs, or an empty text."""
    installed = Path(sys.executable).with_name("configurable-http-proxy")
    return shutil.which("configurable-http-proxy") or (str(installed) if installed.exists() else "")


class Refused(Exception):
    """HTTP error with its status and its body."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


def http_request(url: str, token: str, method: str = "GET", body: Any = None) -> Any:
    """Return the JSON of an answer, or None if it is empty. Raises Refused."""
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=START) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error.code, error.read().decode(errors="replace")) from None
    return json.loads(text) if text else None


class Hub:
    """Hub that runs until `close`."""

    def __init__(
        self,
        machine: MountNamespaceMachine,
        users: Sequence[str],
        folder: Path,
        config: str,
        env: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        """Start a hub with its admin's `config`, its own environment `env`, and `environment` for users' servers."""
        ports = [free_port() for _ in range(3)]
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.token = secrets.token_hex(16)
        self.log = folder / "hub.log"
        file = folder / "jupyterhub_config.py"
        ours = _CONFIG.format(
            ports=ports,
            proxy=proxy(),
            folder=folder,
            users=set(users),
            token=self.token,
            python=sys.executable,
            start=int(START),
            environment=dict(environment),
        )
        file.write_text(config + ours)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                machine.argv(sys.executable, "-m", "jupyterhub", "-f", str(file)),
                env=env,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._ready, START, f"the hub answers: {self.log}")
        except BaseException:
            self.close()
            raise

    def _ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return bool(self.ask("GET", "/users"))
        except (OSError, Refused):
            return False

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the hub's REST interface as its admin."""
        return http_request(f"{self.url}/hub/api{path}", self.token, method, body)

    def login(self, *names: str) -> dict[str, Session]:
        """Log users in, start their servers, and return their sessions."""
        for name in names:
            with contextlib.suppress(Refused):  # the hub has the users of its configuration
                self.ask("POST", f"/users/{name}")
            self.ask("POST", f"/users/{name}/server")
        for name in names:
            wait_until(lambda name=name: self._serves(name), START, f"the server of {name}: {self.log}")
        return {
            name: Session(f"{self.url}/user/{name}", self.ask("POST", f"/users/{name}/tokens")["token"])
            for name in names
        }

    def _serves(self, name: str) -> bool:
        server = self.ask("GET", f"/users/{name}")["servers"].get("")
        assert server is not None, f"the server of {name} has failed"
        return bool(server["ready"])

    def close(self) -> None:
        """End the hub, which ends its proxy and its users' servers with their kernels."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START)
        finally:
            self._process.kill()
            self._process.wait()


class Session:
    """Session of a user with the user's server through the hub's proxy."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return http_request(f"{self.url}{path}", self.token, method, body)

    def gpushare(self, path: str, method: str = "GET", body: Any = None) -> Any:
        return self.ask(method, f"/gpushare/api/{path}", body)

    def notebook(self, path: str, kernel: str) -> Notebook:
        """Open a notebook with this name."""
        session = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel}}
        return Notebook(self, self.ask("POST", "/api/sessions", session)["kernel"]["id"])


class Notebook:
    """Notebook whose cells run in a kernel, over the WebSocket that front ends use."""

    def __init__(self, session: Session, kernel: str) -> None:
        self.kernel = kernel
        self._session = uuid4().hex
        address = session.url.replace("http", "ws", 1)
        self._socket = websocket.create_connection(
            f"{address}/api/kernels/{kernel}/channels?session_id={self._session}",
            header=[f"Authorization: token {session.token}"],
            timeout=START,
        )

    def start(self, code: str) -> str:
        """Send a cell, and return its request for `finish`."""
        header = {"msg_id": uuid4().hex, "msg_type": "execute_request", "session": self._session}
        header |= {"username": "", "version": "5.3", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self._socket.send(json.dumps({**message, "buffers": []}))
        return str(header["msg_id"])

    def finish(self, request: str) -> str:
        """Wait for a cell that must not fail, and return its output."""
        text, replied, idle = "", False, False
        while not (replied and idle):
            message = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "execute_reply":
                assert content["status"] == "ok", content
                replied = True
            elif message["msg_type"] == "stream":
                text += content["text"] if content["name"] == "stdout" else ""
            elif message["msg_type"] == "status":
                idle = content["execution_state"] == "idle"
        return text

    def run(self, code: str) -> str:
        return self.finish(self.start(code))

    def value(self, expression: str) -> Any:
        return json.loads(self.run(f"import json as _json; print(_json.dumps({expression}))"))

    @property
    def pid(self) -> int:
        return int(self.value("__import__('os').getpid()"))

    def close(self) -> None:
        self._socket.close()
