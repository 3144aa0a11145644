"""Start of a kernel on its node: the client's registration, the environment, the ports, and the keeper."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import itertools
import json
import os
import random
import re
import signal
import socket
import string
import subprocess
import sys
from collections.abc import Iterable, Set
from pathlib import Path

import msgspec

from ... import launcher
from ...launch import kernel_env
from ...wire import program
from ..channel.messages import PORT_NAMES, Connection, NodeError, Start, Started
from . import broken_start, keeper, kernel_moves, orphan
from .kernel_folder import KernelFolder, all_kernels

_REGISTRATION_SECONDS = 20.0  # which a busy node may need to start a coordinator
_ENCRYPTING_IPYKERNEL = (7, 3)  # the first version that obeys the keys in a connection file
# Variables of the agent's job of Slurm, with which `srun` in a kernel would wait for a step of that job.
_JOB_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_")


def start_kernel(request: Start) -> Started:
    """Start a kernel, and block until its process runs. Raise NodeError, and leave nothing behind then."""
    folder = KernelFolder(request.kernel)
    with broken_start.lock(folder) as lock:
        return _start_locked(request, folder, lock)


def _start_locked(request: Start, folder: KernelFolder, lock: int) -> Started:
    if folder.exists() and folder.ended() is None:
        raise NodeError(f"the kernel {request.kernel} runs already", "runs_already")
    working_directory = request.folder or str(Path.home())
    identity = kernel_env.Identity(request.client.client, request.client.token)
    try:
        if not os.path.isdir(working_directory):
            raise NodeError(f"the node has no folder {working_directory}", "missing_folder")
        _check_encryption(request)
        folder.create()
        connection = _reserve_ports(folder, request.connection, request.port_range)
        broken_start.record(lock, identity.client, request.start)
        kernel_moves.prepare(folder, request.move)
        registration = _register(request, identity)
        if request.must_share and registration.note:
            _, _, fault = registration.note.partition(": ")
            raise NodeError(f"the kernel would not share a GPU there: {fault}", "unshared")
        env = kernel_env.build_environment(
            _node_environment(request, folder),
            **identity._asdict(),
            label=request.client.label,
            quota=request.client.quota,
            python=request.is_python,
            restart_reason=request.restart_reason,
            **registration._asdict(),
        )
        folder.connection_file.touch(mode=0o600)
        folder.connection_file.write_text(json.dumps(connection.fields()))
        ports = {name: getattr(connection, name) for name in PORT_NAMES}
        pid = _start_keeper(request, folder, env, working_directory, ports, lock)
    except BaseException:
        folder.remove()
        kernel_env.unregister_client(identity)
        raise
    return Started(kernel=request.kernel, pid=pid, ports=ports, note=registration.note)


def _check_encryption(request: Start) -> None:
    """Raise NodeError for a known ipykernel that would listen without encryption, so that no notebook reaches it."""
    if not request.connection.curve_publickey or "ipykernel_launcher" not in request.argv:
        return
    folders = map(str, Path(request.prefix or sys.prefix).glob("lib/python*/site-packages"))
    for found in importlib.metadata.distributions(name="ipykernel", path=list(folders)):
        if tuple(map(int, re.findall(r"\d+", found.version)[:2])) < _ENCRYPTING_IPYKERNEL:
            needed = ".".join(map(str, _ENCRYPTING_IPYKERNEL))
            raise NodeError(
                f"the ipykernel {found.version} on the node cannot encrypt its connections: {needed} or later can "
                "(c.GpuShareCluster.encryption = 'off' allows plain connections)",
                "no_encryption",
            )


def _register(request: Start, identity: kernel_env.Identity) -> kernel_env.Registration:
    """Register the client of the kernel. Raise NodeError if the node has no room for the client at present."""
    client = request.client
    try:
        return kernel_env.register_client(
            identity,
            label=client.label,
            quota=client.quota,
            gpus=client.gpus,
            simulate=client.simulate,
            memory_mode=client.memory_mode,
            settings=client.settings,
            wait=_REGISTRATION_SECONDS,
            needs_room=True,
        )
    except kernel_env.NoRoom as error:
        raise NodeError(f"the node has no room for the kernel: {error}", "no_room") from None


def _node_environment(request: Start, folder: KernelFolder) -> dict[str, str]:
    """Return the environment of the node agent, with that of the request and with the programs below the prefix.

    The variables of the node agent's job of Slurm are left out, unless the request has them.
    """
    env = dict(os.environ)
    if request.prefix:
        env["PATH"] = os.pathsep.join(filter(None, [os.path.join(request.prefix, "bin"), env.get("PATH", "")]))
        env["VIRTUAL_ENV"] = request.prefix
        env.pop("PYTHONHOME", None)
    requested = {name: string.Template(value).safe_substitute(env) for name, value in request.env.items()}
    env = {name: value for name, value in env.items() if not _is_of_job(name)} | requested
    if request.client.memory_mode:
        env["GPUSHARE_MEMORY_MODE"] = request.client.memory_mode
    env["GPUSHARE_KERNEL_FOLDER"] = str(folder.path)
    env.pop("GPUSHARE_VARIABLES", None)
    if request.move:
        env["GPUSHARE_VARIABLES"] = str(kernel_moves.variables_file(folder, request.move))
    return env


def _is_of_job(name: str) -> bool:
    return name.startswith(_JOB_PREFIXES) and name != "SLURM_CONF"


def _arguments(request: Start, folder: KernelFolder) -> list[str]:
    python = os.path.join(request.prefix, "bin", "python") if request.prefix else sys.executable
    first, *rest = launcher.strip_wrapper(request.argv)
    is_python = os.path.basename(first).startswith("python") and (first in _PYTHON_NAMES or bool(request.prefix))
    words = [python if is_python else first, *rest]
    return [word.replace("{connection_file}", str(folder.connection_file)) for word in words]


_PYTHON_NAMES = ("python", f"python{sys.version_info.major}", "python{}.{}".format(*sys.version_info[:2]))


def _reserve_ports(folder: KernelFolder, connection: Connection, port_range: tuple[int, int]) -> Connection:
    """Return the connection as `_with_ports` does, and reserve its ports. Raise NodeError.

    A kernel that starts at the same time has not bound its ports so far. A kernel that starts anew keeps its ports, so
    that pages remain connected.
    """
    lock = os.open(folder.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _with_ports(connection, port_range, _reserved_ports(folder))
        folder.reserve_ports([getattr(connection, name) for name in PORT_NAMES])
    finally:
        os.close(lock)
    return connection


def _reserved_ports(folder: KernelFolder) -> set[int]:
    """Return the ports of the user's other kernels, which run or start."""
    reserved: set[int] = set()
    for other in all_kernels():
        if other.kernel != folder.kernel and not _has_ended(other):
            reserved |= other.reserved_ports()
    return reserved


def _has_ended(folder: KernelFolder) -> bool:
    """Return whether a kernel has ended, and False for one that starts or whose folder is removed meanwhile."""
    with contextlib.suppress(NodeError):
        return folder.exists() and folder.ended() is not None
    return False


def _with_ports(connection: Connection, port_range: tuple[int, int], used: set[int]) -> Connection:
    """Return the connection with a free port in place of each port that is 0 or taken. Raise NodeError.

    The ports of a range come in random order, because kernels of other users may start at the same time.
    """
    first, last = port_range
    order: Iterable[int] = random.sample(range(first, last + 1), last + 1 - first) if last else itertools.repeat(0)
    free = iter(order)
    ports = {name: getattr(connection, name) for name in PORT_NAMES}
    with contextlib.ExitStack() as sockets:
        kept = {name: port for name, port in ports.items() if port and _bind(connection.ip, [port], used, sockets)}
        used = used | set(kept.values())
        others = [name for name in PORT_NAMES if name not in kept]
        found = sorted(_bind(connection.ip, free, used, sockets) for _ in others)
    if not all(found):
        raise NodeError(f"the node has no free port among {first} to {last}", "no_port")
    return msgspec.structs.replace(connection, **kept, **dict(zip(others, found, strict=True)))


def _bind(ip: str, ports: Iterable[int], used: Set[int], sockets: contextlib.ExitStack) -> int:
    """Return the first of the ports that is free and not used, which a socket in `sockets` keeps so far; 0: none is."""
    for port in ports:
        if port in used:
            continue
        probe = sockets.enter_context(socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET))
        if port:  # Linux would choose among half of the ports otherwise
            # Connections of a kernel that has ended may linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise NodeError(f"the node does not have the address {ip}", "bad_address") from None
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise NodeError(f"the node cannot use the address {ip}: {error.strerror}", "bad_address") from None
            probe.close()
            continue
        bound = int(probe.getsockname()[1])
        if bound not in used:
            return bound
    return 0


def _start_keeper(
    request: Start, folder: KernelFolder, env: dict[str, str], working_directory: str, ports: dict[str, int], lock: int
) -> int:
    """Start a keeper and its kernel, and return the kernel's process id."""
    client = env.get("GPUSHARE_CLIENT", "")
    before_end = program.argv(orphan.__name__, env.get("GPUSHARE_SOCKET", ""), client) if client else []
    specification = {
        "argv": _arguments(request, folder),
        "env": env,
        "folder": str(folder.path),
        "working_directory": working_directory,
        "orphan_timeout": request.orphan_timeout,
        "before_end": before_end,
        "lock": lock,
        "shown": {"ports": ports, "client": client, "start": request.start},
    }
    command = [sys.executable, "-I", "-S", keeper.__file__]
    started = subprocess.run(
        command,
        input=json.dumps(specification) + "\n",
        capture_output=True,
        text=True,
        start_new_session=True,
        pass_fds=(lock,),
        check=False,
    )
    answer = json.loads(started.stdout) if started.stdout else {}
    if "pid" in answer:
        return int(answer["pid"])
    if "failed" in answer:
        reason = "cannot_execute" if answer["failed"] == "start" else "node_failed"
        raise NodeError(f"the node cannot {answer['failed']} {answer['path']}: {os.strerror(answer['errno'])}", reason)
    lines = started.stderr.strip().splitlines() or [f"exit status {started.returncode}"]
    raise NodeError(f"the keeper of the kernel failed: {lines[-1]}", "keeper_failed")


def send_signal(folder: KernelFolder, number: int) -> None:
    """Send a signal to the process group of a kernel. Raise NodeError."""
    if number not in set(signal.Signals):
        raise NodeError(f"{number} is no number of a signal", "bad_signal")
    state = folder.state()
    if keeper.start_ticks(state["pid"]) != state["pid_ticks"]:
        return  # the kernel has ended
    with contextlib.suppress(ProcessLookupError):
        os.killpg(state["pid"], number)
