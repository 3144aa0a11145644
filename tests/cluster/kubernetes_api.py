"""Double of a Kubernetes API server for `kubectl exec`, whose pods are folders of this host.

The double serves discovery, pods and the subresource `exec` by WebSocket, as the API server does since Kubernetes 1.30
(https://kubernetes.io/docs/concepts/architecture/#streaming, KEP-4006). A command runs as a process of this host.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tornado import web, websocket
from tornado.httpserver import HTTPServer

NAMESPACE = "research"
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255  # channels of v5.channel.k8s.io
_PROTOCOL = "v5.channel.k8s.io"
_VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.4"}
_PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get"]}


class KubernetesApi:
    """API server with these pods, each with the variables of its container's environment, in a thread of its own."""

    def __init__(self, folder: Path, pods: Mapping[str, Mapping[str, str]]) -> None:
        self.pods = pods
        self.sessions: list[ExecSession] = []  # each that has begun
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="kubernetes-api")
        self._thread.start()
        ready.wait()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": NAMESPACE}}],
                    "current-context": "c",
                }
            )
        )

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        namespace = f"/api/v1/namespaces/{NAMESPACE}/pods/([^/]+)"
        shared = {"api": self}
        server = HTTPServer(
            web.Application(
                [
                    (f"{namespace}/exec", ExecSession, shared),
                    (namespace, _Pod, shared),
                    ("/.*", _Discovery),
                ]
            )
        )
        server.listen(0, "127.0.0.1")
        (listener,) = server._sockets.values()
        self.port = listener.getsockname()[1]
        self._loop.call_soon(ready.set)
        self._loop.run_forever()
        server.stop()

    def end_sessions(self) -> None:
        """Break all connections off, as at the end of the API server or of the network."""
        self._loop.call_soon_threadsafe(lambda: [one.break_off() for one in self.sessions])

    def close(self) -> None:
        self.end_sessions()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Discovery(web.RequestHandler):
    def get(self) -> None:
        groups: dict[str, Any] = {
            "/version": _VERSION,
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [_PODS]},
            f"/api/v1/namespaces/{NAMESPACE}": {
                "kind": "Namespace",
                "apiVersion": "v1",
                "metadata": {"name": NAMESPACE},
            },
        }
        if self.request.path not in groups:
            raise web.HTTPError(404)
        self.write(groups[self.request.path])


class _Pod(web.RequestHandler):
    def initialize(self, api: KubernetesApi) -> None:
        self._api = api

    def get(self, name: str) -> None:
        if name not in self._api.pods:
            self.set_status(404)
            self.write(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": f'pods "{name}" not found',
                    "reason": "NotFound",
                    "details": {"name": name, "kind": "pods"},
                    "code": 404,
                }
            )
            return
        self.write(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "initContainers": [{"name": "injected", "image": "other"}],
                    "containers": [{"name": "kernels", "image": "notebook"}],
                },
                "status": {"phase": "Running"},
            }
        )


class ExecSession(websocket.WebSocketHandler):
    """Command in a container, with its standard streams on the channels of one connection."""

    def initialize(self, api: KubernetesApi) -> None:
        self._api = api
        self.process: asyncio.subprocess.Process | None = None

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return _PROTOCOL if _PROTOCOL in subprotocols else None

    async def open(self, pod: str) -> None:
        self.pod = pod
        self._api.sessions.append(self)
        command = self.get_query_arguments("command")
        try:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._api.pods[pod]},
            )
        except OSError as error:  # as containerd reports it
            message = f"error executing command in container: exec: {command[0]!r}: {error.strerror}"
            await self._end({"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError"})
            return
        self._relay = asyncio.ensure_future(self._send_output())

    async def _send_output(self) -> None:
        process = self.process
        assert process and process.stdout and process.stderr
        await asyncio.gather(self._send(process.stdout, _STDOUT), self._send(process.stderr, _STDERR))
        code = await process.wait()
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = f"command terminated with non-zero exit code: exit status {code}"
            details = {"causes": causes}
            status |= {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details}
        await self._end(status)

    async def _end(self, status: dict[str, Any]) -> None:
        if self.ws_connection:
            await self.write_message(bytes([_STATUS]) + json.dumps(status).encode(), binary=True)
            self.close(1000)

    async def _send(self, stream: asyncio.StreamReader, channel: int) -> None:
        while data := await stream.read(1 << 16):
            if self.ws_connection:
                await self.write_message(bytes([channel]) + data, binary=True)

    async def on_message(self, message: str | bytes) -> None:
        assert isinstance(message, bytes)
        if not self.process or not self.process.stdin:
            return
        if message[0] == _STDIN:
            self.process.stdin.write(message[1:])
            await self.process.stdin.drain()
        elif message[0] == _CLOSE and message[1] == _STDIN:
            self.process.stdin.close()

    def on_close(self) -> None:
        """Close the standard input: container runtimes let the command of a lost connection go on."""
        if self.process and self.process.stdin:
            self.process.stdin.close()

    def break_off(self) -> None:
        if self.ws_connection:
            self.ws_connection.stream.close()
