"""Environment of a shared kernel or program, and registration of its client before the start.

`register_client` sends requests to the coordinator, and `build_environment` returns the variables.
The provisioner, the launcher and `jupyter gpushare run` use both.
docs/reference/environment.md describes the variables.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import units
from ..wire import address
from .mps import MpsRequest, prepare_environment

PACKAGE = Path(__file__).resolve().parents[1]
SHIM = PACKAGE / "native" / "libgpushare.so"
SIMULATED_DRIVER = PACKAGE / "native" / "simcuda" / "libcuda.so.1"
STARTUP = PACKAGE / "kernel" / "startup.py"

# The dynamic loader splits LD_PRELOAD at spaces and colons, and LD_LIBRARY_PATH at colons and semicolons.
# In both, the loader expands words such as "$ORIGIN".
_PRELOAD_SPLITS = " :$"
_LIBRARY_PATH_SPLITS = ":;$"
_MAX_LABEL_LENGTH = 200
_MIN_ANSWER_SECONDS = 1.0  # for the answers of a coordinator that has just started

# By default, these frameworks allocate the whole device at their start.
_FRAMEWORKS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def native_part(name: str) -> Path:
    """Return the path of a part that is built from C. Raise FileNotFoundError with the remedy."""
    path = PACKAGE / "native" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {native_remedy()}")
    return path


def native_remedy() -> str:
    """Return the user's remedy for a missing native part."""
    if (PACKAGE.parent / "hatch_build.py").exists():
        return f"run 'make native' in {PACKAGE.parent}, or leave this folder to use an installed package"
    return "reinstall the package"


class TooManyDevices(ValueError):
    """Request for devices that the placement cannot give; the message lists the devices."""


class NoRoom(ValueError):
    """Request for devices that have no room for the client at present; the message has the reasons."""


class Identity(NamedTuple):
    """Public id of a client, and the secret token that proves that a process belongs to the client."""

    client: str
    token: str

    @classmethod
    def new(cls, client: str = "", prefix: str = "client") -> Identity:
        """Return an identity with a new token for `client`, or for a new id.

        The id has only characters that the protocol allows.
        """
        client = re.sub(r"[^\w.:@-]", "-", client)[:128] or f"{prefix}-{secrets.token_hex(8)}"
        return cls(client, secrets.token_hex(16))


class Registration(NamedTuple):
    """Result of `register_client`, whose fields are arguments of `build_environment`.

    `note` is empty or describes a fault as `REASON: SENTENCE`, with the reason "unreachable", "refused" or "unshared".
    With the reason "defaults", sharing works with the defaults of the settings.
    """

    socket: str
    simulate: bool
    visible_devices: Sequence[str] = ()
    note: str = ""
    coordinator_argv: Sequence[str] = ()
    memory_mode: str = ""
    pinned_memory: str = ""
    mps_request: MpsRequest | None = None  # None: the settings are unknown


def register_client(
    identity: Identity,
    *,
    label: str = "",
    quota: str = "",
    gpus: int = 1,
    socket: str = "",
    simulate: bool | None = None,
    memory_mode: str = "",
    settings: Sequence[str] = (),
    wait: float = 10.0,
    own_program: bool = False,
    needs_room: bool = False,
) -> Registration:
    """Register a client, and start a coordinator if none answers. Block for at most about `wait` seconds.

    Without a coordinator, the function returns a note about the fault, because the program must start nevertheless.
    With `simulate=None`, `$GPUSHARE_SIMULATE` or else the coordinator decides.
    With `memory_mode=""`, `$GPUSHARE_MEMORY_MODE` or else the coordinator decides.
    `settings` are options for a coordinator that this client or its kernel starts.
    With `own_program`, the client ends with the calling process, which will execute the client's program.

    Raise TooManyDevices for such a program with a request for devices that it cannot get.
    A kernel with such a request starts, with a note.
    Raise NoRoom with `needs_room` if the devices have no room for the client at present.
    """
    from ..wire import client, messages

    is_simulated = os.environ.get("GPUSHARE_SIMULATE") == "1" if simulate is None else simulate
    mode = memory_mode or os.environ.get("GPUSHARE_MEMORY_MODE", "")
    result = Registration(
        socket, is_simulated, coordinator_argv=_coordinator_argv(is_simulated, settings), memory_mode=mode
    )
    try:
        result = result._replace(socket=address.socket_path(socket))
        if not SHIM.exists():
            return result._replace(note=_missing_shim_note())
        deadline = time.monotonic() + wait
        path = client.ensure_coordinator(result.socket, result.coordinator_argv, wait)
        with client.Client(path, timeout=max(_MIN_ANSWER_SECONDS, deadline - time.monotonic())) as coordinator:
            registered = coordinator.request(
                messages.Register(
                    **identity._asdict(),
                    label=label[:_MAX_LABEL_LENGTH],
                    quota=quota,
                    gpus=gpus,
                    ends_with_sender=own_program,
                )
            )
            status = coordinator.request(messages.Status())
    except client.Unreachable as error:
        return result._replace(note=f"unreachable: {_one_line(error)}")
    except (client.CoordinatorError, address.BadAddress) as error:
        reason = getattr(error, "reason", "")
        if own_program and reason in ("too_many_devices", "placement_failed", "no_room"):
            raise TooManyDevices(str(error)) from None
        if needs_room and reason == "no_room":
            raise NoRoom(_one_line(error)) from None
        return result._replace(note=f"refused: {_one_line(error)}")
    config = status.get("config", {})
    is_simulated = is_simulated or (simulate is None and bool(config.get("simulate")))
    return Registration(
        path,
        is_simulated,
        [str(uuid) for uuid in registered.get("devices", [])],  # empty on a host with one device
        coordinator_argv=_coordinator_argv(is_simulated, settings),
        memory_mode=mode or str(config.get("memory_mode", "")),
        pinned_memory=str(config.get("pinned_memory", "")),
        mps_request=_mps_request(identity.client, status),
    )


def _mps_request(client: str, status: Mapping[str, Any]) -> MpsRequest:
    """Return the settings of the client's first device, and the client's share, from a snapshot."""
    config = status.get("config", {})
    own: Mapping[str, Any] = next((one for one in status.get("clients", ()) if one["id"] == client), {})
    devices = own.get("devices") or [None]
    device: Mapping[str, Any] = next((one for one in status.get("devices", ()) if one["uuid"] == devices[0]), {})
    sharing = device.get("settings", {}).get("sharing", config.get("sharing", "exclusive"))
    return MpsRequest(str(config.get("mps", "auto")), str(sharing), float(own.get("quota", {}).get("share", 0.0)))


def unregister_client(identity: Identity, *, socket: str = "", timeout: float = 1.0) -> None:
    """Unregister a client that has ended, and ignore failures, because the coordinator detects the end by itself."""
    from ..wire import client, messages

    with suppress(client.CoordinatorError, address.BadAddress), client.Client(socket, timeout) as coordinator:
        coordinator.request(messages.Unregister(client=identity.client))


def build_environment(
    env: Mapping[str, str],
    *,
    client: str,
    token: str,
    label: str = "",
    quota: str = "",
    socket: str = "",
    simulate: bool = False,
    visible_devices: Sequence[str] | None = None,
    note: str = "",
    coordinator_argv: Sequence[str] = (),
    memory_mode: str = "",
    pinned_memory: str = "",
    mps_request: MpsRequest | None = None,
    python: bool = True,
    restart_reason: str = "",
) -> dict[str, str]:
    """Return the environment `env` of a shared program, which is unchanged if it is prepared for `client` already.

    The user's values remain.
    The user's LD_PRELOAD and PYTHONSTARTUP follow those of the package.
    CUDA_VISIBLE_DEVICES and the variables of frameworks keep the user's values.
    Without the shim, the program uses the GPU without turns, and GPUSHARE_NOTE has the reason.
    With `python`, the program is a Python kernel, which gets the magics and reports its cells.
    `restart_reason` is a sentence for a kernel that has moved to another node, and its first cell shows it.
    """
    prepared = dict(env)
    if prepared.get("GPUSHARE_PREPARED") == client:
        return prepared
    for inherited in ("GPUSHARE_NOTE", "GPUSHARE_LABEL", "GPUSHARE_QUOTA", "GPUSHARE_RESTART_REASON"):
        prepared.pop(inherited, None)
    chosen = prepared.pop("GPUSHARE_DEVICES", "")
    if chosen and chosen == prepared.get("CUDA_VISIBLE_DEVICES"):
        del prepared["CUDA_VISIBLE_DEVICES"]  # the choice of placement for another client
    prepared["GPUSHARE_PREPARED"] = client
    prepared["GPUSHARE_SOCKET"] = socket
    prepared["GPUSHARE_COORDINATOR_ARGV"] = json.dumps(list(coordinator_argv or _coordinator_argv(simulate)))
    if python:
        _wrap_pythonstartup(prepared)
    shim = preloadable_shim(socket)
    if shim is None:
        note = note if note.startswith("unshared:") else _missing_shim_note()
    else:
        prepared["LD_PRELOAD"] = _prepend(shim, prepared.get("LD_PRELOAD", ""), " ", r"[ :]+")
        prepared |= {"GPUSHARE_CLIENT": client, "GPUSHARE_TOKEN": token}
        prepared |= {name: value for name, value in _FRAMEWORKS.items() if name not in prepared}
        if label:
            prepared["GPUSHARE_LABEL"] = label[:_MAX_LABEL_LENGTH]
        if quota:
            prepared["GPUSHARE_QUOTA"] = quota
        if memory_mode:
            prepared.setdefault("GPUSHARE_MEMORY_MODE", memory_mode)
        if pinned_memory:
            prepared.setdefault("GPUSHARE_PINNED", str(units.parse_size(pinned_memory)))
        if visible_devices and "CUDA_VISIBLE_DEVICES" not in prepared:
            # While both have the same value, the shim may choose other devices at the first CUDA call.
            prepared["CUDA_VISIBLE_DEVICES"] = prepared["GPUSHARE_DEVICES"] = ",".join(visible_devices)
    if mps_request:
        prepare_environment(prepared, mps_request)
    if simulate:
        note = _use_simulated_driver(prepared, socket) or note
    if note:
        prepared["GPUSHARE_NOTE"] = note
    if restart_reason:
        prepared["GPUSHARE_RESTART_REASON"] = restart_reason
    return prepared


def preloadable_shim(socket: str) -> Path | None:
    """Return a path of the shim for LD_PRELOAD, or None if the shim or a necessary link is missing."""
    return _path_without(SHIM, _PRELOAD_SPLITS, socket)


def label_of(env: Mapping[str, str], fallback: str) -> str:
    """Return the notebook's file name, as far as the server sends it, without the folder, which is private."""
    return (os.path.basename(env.get("JPY_SESSION_NAME", "")) or fallback)[:_MAX_LABEL_LENGTH]


def _missing_shim_note() -> str:
    if SHIM.exists():
        return f"unshared: {SHIM} cannot be preloaded because of its path, and no folder for a link to it is writable"
    return f"unshared: {SHIM} is missing ({native_remedy()})"


def _use_simulated_driver(env: dict[str, str], socket: str) -> str:
    directory = _path_without(SIMULATED_DRIVER.parent, _LIBRARY_PATH_SPLITS, socket)
    if directory is None or not SIMULATED_DRIVER.exists():
        return f"unshared: the simulated driver {SIMULATED_DRIVER} is missing ({native_remedy()})"
    env["GPUSHARE_SIMULATE"] = "1"
    env["LD_LIBRARY_PATH"] = _prepend(directory, env.get("LD_LIBRARY_PATH", ""), ":", r"[:;]")
    return ""


def _coordinator_argv(simulate: bool, settings: Sequence[str] = ()) -> list[str]:
    from ..wire import client

    argv = client.default_coordinator_argv(simulate)
    return argv + [option for option in settings if option not in argv]


def _wrap_pythonstartup(env: dict[str, str]) -> None:
    own = env.get("PYTHONSTARTUP", "")
    if own == str(STARTUP):  # inherited from another shared kernel, together with the chain
        return
    env["PYTHONSTARTUP"] = str(STARTUP)
    env.pop("GPUSHARE_STARTUP_CHAIN", None)
    if own:
        env["GPUSHARE_STARTUP_CHAIN"] = own


def _prepend(path: Path, present: str, separator: str, split: str) -> str:
    others = [entry for entry in re.split(split, present) if entry and entry != str(path)]
    return separator.join([str(path), *others])


def _path_without(path: Path, forbidden: str, socket: str) -> Path | None:
    """Return a path, or a link to the path, without a forbidden character; None if neither is possible."""
    if not path.exists():
        return None
    if not set(str(path)) & set(forbidden):
        return path
    name = f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}-{path.name}"
    last_resort = Path(f"/tmp/gpushare-{os.getuid()}")
    for directory in (Path(socket or "/").parent, address.runtime_directory(), last_resort):
        link = directory / name
        if set(str(link)) & set(forbidden):
            continue
        with suppress(OSError):
            address.make_private_directory(directory)
            if not link.is_symlink() or os.readlink(link) != str(path):
                fresh = directory / f".{name}.{os.getpid()}"
                fresh.symlink_to(path)
                fresh.replace(link)
            return link
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
