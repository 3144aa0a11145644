"""`jupyter gpushare coordinator`: read the configuration, take the socket, serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import stat
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp, base_aliases, base_flags
from traitlets import Bool, Float, TraitError, Unicode, default

from .. import __version__
from ..config import GpuShare
from ..core.errors import Refused
from ..wire import address
from .daemon import Daemon
from .endpoint import Endpoint
from .peer import Peer
from .service import Service
from .settings import LiveSettings

log = logging.getLogger(__name__)

_READY_TIMEOUT = 10.0
_BREATHER = 0.5  # seconds without accepting connections when there are no descriptors left


class CoordinatorApp(JupyterApp):
    """The host daemon that decides which notebook kernel runs on the GPU, and until when."""

    name = "jupyter-gpushare-coordinator"
    version = __version__
    description = __doc__
    examples = "jupyter gpushare coordinator --time-quantum 10 --socket /tmp/gpushare.sock"
    # What traitlets declares as attributes of instances is overridden on the class, as it expects.
    classes = [GpuShare]  # noqa: RUF012
    aliases = {  # noqa: RUF012
        **base_aliases,
        "socket": "GpuShare.coordinator",
        "time-quantum": "GpuShare.time_quantum",
        "pinned-memory": "GpuShare.pinned_memory",
        "policy": "GpuShare.policy",
        "idle-release": "GpuShare.idle_release",
        "sharing": "GpuShare.sharing",
        "device-memory": "GpuShare.device_memory",
        "exit-after": "CoordinatorApp.exit_after",
    }
    flags = {  # noqa: RUF012
        **base_flags,
        "detach": (
            {"CoordinatorApp": {"detach": True}},
            "Return as soon as it answers; run on in the background.",
        ),
        "debug": ({"CoordinatorApp": {"debug": True}}, "Log every unusual path."),
        "simulate": ({"GpuShare": {"simulate": True}}, "Use the simulated CUDA driver."),
    }

    debug = Bool(False, help="Log every unusual path.").tag(config=True)
    detach = Bool(False, help="Return as soon as it answers; run on in the background.").tag(config=True)
    exit_after = Float(60.0, help="Seconds after its last client at which it ends; 0: never.").tag(config=True)
    log_file = Unicode(help="Where a detached coordinator logs.").tag(config=True)

    @default("config_file_name")
    def _config_file_name(self) -> str:
        return "jupyter_gpushare_config"

    @default("log_file")
    def _log_file(self) -> str:
        return str(address.state_directory() / "coordinator.log")

    def migrate_config(self) -> None:
        """Nothing: what an old IPython left behind is not ours to move, and may not be readable."""

    def start(self) -> None:
        super().start()
        if unknown := self.unknown_options():
            self.exit_with(f"unknown options: {', '.join(unknown)} (--help-all tells what there is)")
        try:
            settings = LiveSettings(GpuShare(parent=self))
            path = address.socket_path(settings.traits.coordinator)
            prepare_directory(Path(path).parent)
            check_place(path)
        except (Refused, TraitError, address.BadAddress, OSError) as error:
            self.exit_with(str(error))
        if self.detach and not daemonize(path):
            return
        start_logging(self.log_file if self.detach else "", logging.DEBUG if self.debug else logging.INFO)
        try:
            lock = take_socket_lock(path, wait=2.0 if self.detach else 0.0)
            if lock is None:
                if self.detach:
                    os._exit(0)  # the other one answers, or will; our parent watches the socket
                self.exit_with(f"another coordinator runs at {path}")
            allow_many_descriptors()
            asyncio.run(serve(settings, path, self.exit_after))
        except OSError as error:
            log.error("no coordinator can serve %s: %s", path, error)
            self.exit(2)
        except Exception:
            log.exception("a bug ends this coordinator; clients run on and look for another one")
            self.exit(1)

    def unknown_options(self) -> list[str]:
        """Words of the command line that mean nothing here: a mistyped option must not go unnoticed."""
        known = {cls.__name__: cls.class_trait_names(config=True) for cls in self._classes_inc_parents()}
        unknown = list(self.extra_args)
        for name, value in self.cli_config.items():
            unknown += (
                [f"--{name}.{key}" for key in value if key not in known[name]] if name in known else [f"--{name}"]
            )
        return unknown

    def exit_with(self, message: str) -> None:
        print(f"jupyter gpushare coordinator: {message}", file=sys.stderr)
        self.exit(2)


def prepare_directory(directory: Path) -> None:
    """The socket's directory: made for this user alone, unless somebody chose an existing one."""
    if directory == address.runtime_directory() or not directory.exists():
        address.make_private(directory)


def check_place(path: str) -> None:
    """Raise FileExistsError if something is at `path` that no coordinator left there: it would be removed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket: choose another address for the coordinator")


def allow_many_descriptors() -> None:
    """Each process of a client takes half a dozen; the usual soft limit is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def take_socket_lock(path: str, wait: float) -> Any:
    """The lock that makes this the only coordinator of the socket, held while it lives; None if another has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # it may lie in a folder that others write to
    lock = os.fdopen(os.open(path + ".lock", flags, 0o600), "r+")
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if address.answers(path) or time.monotonic() >= deadline:
                lock.close()
                return None
        time.sleep(0.02)


def daemonize(path: str) -> bool:
    """Fork into the background. In the parent: wait until the socket answers, then return False."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        os.wait()
        deadline = time.monotonic() + _READY_TIMEOUT
        while not address.answers(path):
            ended = not _alive(read_end) and not address.answers(path)
            if ended or time.monotonic() > deadline:
                print(
                    f"jupyter gpushare coordinator: it ended at once; see {address.state_directory()}",
                    file=sys.stderr,
                )
                sys.exit(1)
            time.sleep(0.01)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(read_end)
    os.set_inheritable(write_end, False)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir("/")
    return True


def _alive(read_end: int) -> bool:
    """Whether the background process still holds the other end of the pipe (or another coordinator may answer soon)."""
    os.set_blocking(read_end, False)
    try:
        return os.read(read_end, 1) != b""
    except BlockingIOError:
        return True


def start_logging(path: str, level: int) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if path:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(path, maxBytes=4 << 20, backupCount=2)
        except OSError:
            handler = logging.NullHandler()  # no place for a log is no reason not to share
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


async def serve(settings: LiveSettings, path: str, exit_after: float) -> None:
    """Serve the socket until stopped, or until `exit_after` seconds after the last client (0: never)."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # from before it can be found, or one might leave the socket behind
        loop.add_signal_handler(number, stopped.set)
    daemon = Daemon(settings, path)
    service = Service(daemon, stopped.set)
    endpoint = await tell_metrics(daemon)
    listener = listen(path)
    own = os.stat(path).st_ino
    peers: set[Peer] = set()

    def ended(peer: Peer) -> None:
        peers.discard(peer)
        service.ended(peer)

    def accept() -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            log.warning("a connection was not accepted: %s", error)
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                loop.remove_reader(listener)  # it would be readable at once, again and again
                loop.call_later(_BREATHER, resume)
            return
        peer = Peer(connection, service.line, ended)
        peers.add(peer)
        service.connected(peer)

    def resume() -> None:
        if listener.fileno() >= 0:
            loop.add_reader(listener, accept)

    def check() -> None:
        if exit_after and daemon.deserted_for > exit_after and not daemon.followers:
            stopped.set()
        else:
            loop.call_later(min(1.0, exit_after or 1.0), check)

    loop.add_reader(listener, accept)
    check()
    gc.freeze()  # what was imported stays; a collection that walks all of it would delay a turn by milliseconds
    log.info("coordinator %s answers at %s, %s", __version__, path, settings.as_json())
    try:
        await stopped.wait()
        await asyncio.sleep(0)  # lets the answer to a stop request go out
    finally:
        loop.remove_reader(listener)
        listener.close()
        endpoint.close()
        if os.path.exists(path) and os.stat(path).st_ino == own:
            os.unlink(path)
            daemon.kept.forget()
        daemon.close()


async def tell_metrics(daemon: Daemon) -> Endpoint:
    """Where the settings say so. If it cannot be there, sharing goes on, and the status says why."""
    endpoint = Endpoint(daemon.metrics)
    if where := daemon.settings.traits.metrics:
        try:
            await endpoint.start(address.metrics_address(where))
        except OSError as error:
            daemon.problems.append(f"no metrics are told at {where}: {error.strerror or error}")
            log.warning("%s", daemon.problems[-1])
    return endpoint


def listen(path: str) -> socket.socket:
    """Bind the socket for this user alone. The caller holds the socket's lock, so what is there is left over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(path):
        os.unlink(path)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(128)
    listener.setblocking(False)
    return listener
