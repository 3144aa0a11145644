"""Command `jupyter gpushare coordinator`, which reads the configuration and runs a coordinator on its sockets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import difflib
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp, base_aliases, base_flags
from traitlets import Bool, Float, TraitError, Unicode, default
from traitlets.config import Config

from .. import __version__
from ..config import config_files
from ..config.traits import GpuShare
from ..core.base.errors import Refused
from ..wire import address
from .config import system_config
from .config.live_settings import LiveSettings
from .engine.coordinator import Coordinator
from .rpc.acceptor import ConnectionAcceptor
from .rpc.request_dispatcher import make_dispatcher
from .transport.listen_sockets import InvalidInheritedSocket, SocketSet, inherited_sockets
from .transport.log_throttle import LogThrottle
from .transport.peer_identity import PeerIdentifier
from .views.metrics_server import MetricsServer

log = logging.getLogger(__name__)

_READY_TIMEOUT_SECONDS = 20.0


class CoordinatorApp(JupyterApp):
    """Application of the daemon that decides which notebook kernel runs on the GPU, and until when."""

    name = "jupyter-gpushare-coordinator"
    version = __version__
    description = __doc__
    examples = "jupyter gpushare coordinator --time-quantum 10 --socket /tmp/gpushare.sock"
    _read_config_as_system = False
    # traitlets declares these as attributes of instances, and expects that a subclass overrides them on the class.
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
            "Return as soon as the coordinator accepts connections; the coordinator runs on in the background.",
        ),
        "debug": ({"CoordinatorApp": {"debug": True}}, "Log every unusual path."),
        "system": (
            {"CoordinatorApp": {"system": True}},
            "Serve all users of this host: see docs/how-to/multiuser.md.",
        ),
        "simulate": ({"GpuShare": {"simulate": True}}, "Use the simulated CUDA driver."),
    }

    debug = Bool(False, help="Log every unusual path.").tag(config=True)
    detach = Bool(
        False,
        help="Return as soon as the coordinator accepts connections; the coordinator runs on in the background.",
    ).tag(config=True)
    system = Bool(
        False,
        help="Serve all users of this host at /run/gpushare/coordinator.sock, until a signal or an admin stops the "
        "coordinator. The configuration is read from /etc/jupyter and /usr/local/etc/jupyter only, and only root may "
        "have write access to them. State is kept in /var/lib/gpushare. See docs/how-to/multiuser.md.",
    ).tag(config=True)
    exit_after = Float(
        help="Seconds for which the coordinator runs on after its last client has gone; 0: without end."
    ).tag(config=True)
    log_file = Unicode(help="Log file of a detached coordinator.").tag(config=True)
    state_directory = Unicode(help="Directory of the state that outlives the coordinator.").tag(config=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._file_faults = config_files.FaultCollector()

    @default("config_file_name")
    def _config_file_name(self) -> str:
        return config_files.NAME

    @default("exit_after")
    def _exit_after(self) -> float:
        return 0.0 if self.system else 60.0

    @default("log_file")
    def _log_file(self) -> str:
        return str(Path(self.state_directory) / "coordinator.log")

    @default("state_directory")
    def _state_directory(self) -> str:
        return str(system_config.state_directory() if self.system else address.state_directory())

    @property
    def config_file_paths(self) -> list[str]:
        return system_config.config_directories() if self.system else super().config_file_paths

    def load_config_file(self, suppress_errors: bool = True) -> None:  # type: ignore[override]  # as JupyterApp's is
        """Read the configuration, and collect the faults of files that cannot be read.

        A system coordinator reads only files that root alone can change. An invalid file ends it, because without the
        ceilings in the file users could have more than the administrator allows.
        """
        self.log.addFilter(self._file_faults)
        try:
            self._read_config_as_system = self.system
            self.raise_config_file_errors = self.raise_config_file_errors or self.system
            if self.system and self.config_file:
                system_config.check_owned_by_root(Path(self.config_file))
            super().load_config_file(suppress_errors and not self.system)
        except Exception as error:
            if not self.system:
                raise
            self.fail(str(error))
        finally:
            self.log.removeFilter(self._file_faults)

    def migrate_config(self) -> None:
        """Do nothing: files of an old IPython belong to the user, and may not be readable."""

    def start(self) -> None:
        super().start()
        if unknown := [*self.extra_args, *self.unknown_settings(self.cli_config)]:
            self.fail(f"unknown options: {', '.join(unknown)} (--help-all lists the options)")
        unknown, faults = self.unknown_in_files(), self.faults()
        if self.system and unknown:
            self.fail("; ".join([*faults, "--help-all lists the settings"]))
        if self.system and not self._read_config_as_system:
            self.fail("c.CoordinatorApp.system works only as an option of the command line: use --system")
        if not self.system:
            faults += self.drop_wrong_values()
        try:
            traits = GpuShare(parent=self)
            settings, identifier = LiveSettings(traits), PeerIdentifier(traits)
            sockets = SocketSet(traits, self.system, inherited_sockets())
        except (Refused, TraitError, address.BadAddress, InvalidInheritedSocket, OSError) as error:
            self.fail(str(error))
        try:
            sockets.prepare()
        except (address.BadAddress, OSError) as error:
            self.fail(f"the coordinator cannot serve {sockets.path}: {error}")
        if self.detach and not daemonize(sockets.path):
            return
        start_logging(self.log_file if self.detach else "", logging.DEBUG if self.debug else logging.INFO)
        try:
            if not sockets.acquire(wait=2.0 if self.detach else 0.0):
                if self.detach:
                    os._exit(0)  # the parent process waits for the socket, which the other coordinator serves
                self.fail(f"another coordinator runs at {sockets.path}")
            allow_many_descriptors()
            state = Path(self.state_directory)
            asyncio.run(serve(settings, identifier, sockets, self.exit_after, state, faults))
        except OSError as error:
            log.error("the coordinator cannot serve %s: %s", sockets.path, error)
            self.exit(2)
        except Exception:
            log.exception("a bug ends this coordinator; clients run on and connect to the next coordinator")
            self.exit(1)

    def faults(self) -> list[str]:
        """Return messages about files that cannot be read, and about settings without a meaning."""
        return [*self._file_faults.faults, *map(self.describe_unknown, self.unknown_in_files())]

    def drop_wrong_values(self) -> list[str]:
        """Check the values of `c.GpuShare`. Return a message about a wrong value, after which no file sets any."""
        try:
            traits = GpuShare(parent=self)
            LiveSettings(traits)
            PeerIdentifier(traits)
        except (Refused, TraitError, OSError) as error:
            files = reversed(self.loaded_config_files)
            fault = config_files.describe_wrong_value(error, self.config.get("GpuShare", {}), files)
            config = copy.deepcopy(self.config)
            config["GpuShare"] = copy.deepcopy(self.cli_config.get("GpuShare", Config()))
            self.config = config
            return [fault]
        return []

    def unknown_in_files(self) -> list[str]:
        """Return the names without a meaning in the configuration, in sections that are meant for this program."""
        return [name for name in self.unknown_settings(self.config) if self.resembles_own_section(name)]

    def unknown_settings(self, config: Config) -> list[str]:
        """Return the names without a meaning here, because a mistyped option or ceiling must be noticed."""
        known = {cls.__name__: cls.class_trait_names(config=True) for cls in self._classes_inc_parents()}
        unknown = []
        for name, value in config.items():
            unknown += (
                [f"--{name}.{key}" for key in value if key not in known[name]] if name in known else [f"--{name}"]
            )
        return unknown

    def describe_unknown(self, name: str) -> str:
        """Return a message about a setting without a meaning, with its place in the files and the nearest setting."""
        name = name.removeprefix("--")
        known = {cls.__name__: cls.class_trait_names(config=True) for cls in self._classes_inc_parents()}
        section, _, key = name.partition(".")
        close = difflib.get_close_matches(key or section, known[section] if key else known, 1)
        place = config_files.place_of(name, reversed(self.loaded_config_files))
        hint = f"; did you mean c.{section + '.' if key else ''}{close[0]}?" if close else ""
        return f"{place}{': ' if place else ''}unknown setting c.{name}{hint}"

    def resembles_own_section(self, name: str) -> bool:
        """Return whether a section is meant for this program, in a file that other programs may read too."""
        section = name.removeprefix("--").partition(".")[0]
        return bool(
            difflib.get_close_matches(section, [cls.__name__ for cls in self._classes_inc_parents()], cutoff=0.8)
        )

    def fail(self, message: str) -> None:
        print(f"jupyter gpushare coordinator: {message}", file=sys.stderr)
        self.exit(2)


def allow_many_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard limit.

    Each process of a client takes half a dozen descriptors, and the usual soft limit is for programs that use select().
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def daemonize(path: str) -> bool:
    """Fork into the background and return True there.

    In the parent, wait until the socket accepts connections, then return False.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        os.wait()
        deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
        while not address.is_accepting(path):
            ended = not _is_running(read_end) and not address.is_accepting(path)
            if ended or time.monotonic() > deadline:
                print(
                    "jupyter gpushare coordinator: the coordinator ended before it served its socket; "
                    f"see its log in {address.state_directory()}",
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


def _is_running(read_end: int) -> bool:
    """Return whether the background process still has the other end of the pipe."""
    os.set_blocking(read_end, False)
    try:
        return os.read(read_end, 1) != b""
    except BlockingIOError:
        return True


def start_logging(path: str, level: int) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if path:
        try:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handler = RotatingFileHandler(path, maxBytes=4 << 20, backupCount=2)
        except OSError:
            handler = logging.NullHandler()  # sharing works without a log
    handler.addFilter(LogThrottle())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


async def serve(
    settings: LiveSettings,
    identifier: PeerIdentifier,
    sockets: SocketSet,
    exit_after: float,
    state: Path | None = None,
    faults: Sequence[str] = (),
) -> None:
    """Serve the sockets until stopped, or until `exit_after` seconds after the last client (0: never).

    `faults` are those of the configuration, which the coordinator reports among its problems.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # before the socket exists, or a signal might leave it behind
        loop.add_signal_handler(number, stopped.set)
    coordinator = Coordinator(settings, sockets.path, state)
    coordinator.state.problems += faults
    for fault in faults:
        log.warning("%s", fault)
    acceptor = ConnectionAcceptor(
        make_dispatcher(coordinator, stopped.set), identifier, lambda: coordinator.state.settings.traits
    )
    metrics_server = serve_metrics(coordinator)
    sockets.open()
    for listener, user in sockets.listeners.items():
        acceptor.listen(listener, user)

    def check() -> None:
        if exit_after and coordinator.registry.seconds_unconnected > exit_after and not coordinator.subscriptions:
            stopped.set()
        else:
            loop.call_later(min(1.0, exit_after or 1.0), check)

    check()
    gc.freeze()  # a collection that walks all imported modules would delay a turn by milliseconds
    log.info("serving at %s: coordinator %s, %s", sockets.path, __version__, settings.as_json())
    try:
        await stopped.wait()
        await asyncio.sleep(0)  # sends the reply to a stop request
    finally:
        acceptor.close()
        if metrics_server:
            metrics_server.close()
        if sockets.remove():
            coordinator.settings_override.remove()
        coordinator.close()


def serve_metrics(coordinator: Coordinator) -> MetricsServer | None:
    """Serve metrics at the address in the settings; return None without one.

    If the address cannot be used, add that to the coordinator's problems and go on without metrics.
    """
    where = coordinator.state.settings.traits.metrics
    try:
        return MetricsServer(address.metrics_address(where), coordinator.subscriptions.request) if where else None
    except OSError as error:
        coordinator.state.problems.append(f"metrics are not served at {where}: {error.strerror or error}")
        log.warning("%s", coordinator.state.problems[-1])
        return None
