"""The environment of a shared kernel or program, and making its client known before it starts.

`announce` talks to the coordinator, `prepare` only computes. Both are used by the provisioner, the launcher
of the shared kernelspec and `jupyter gpushare run`. What the variables mean: `docs/reference/environment.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import units
from ..wire import address

PACKAGE = Path(__file__).resolve().parents[1]
SHIM = PACKAGE / "native" / "libgpushare.so"
SIMULATED_DRIVER = PACKAGE / "native" / "simcuda" / "libcuda.so.1"
STARTUP = PACKAGE / "kernel" / "startup.py"

# The dynamic loader splits LD_PRELOAD at spaces and colons, LD_LIBRARY_PATH at colons and semicolons, and
# expands "$ORIGIN" and its like in both.
_PRELOAD_SPLITS = " :$"
_LIBRARY_PATH_SPLITS = ":;$"
_MAX_LABEL_LENGTH = 200

# Frameworks that take the whole card at their start would leave nothing to share.
_FRAMEWORKS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def native_part(name: str) -> Path:
    """Return the path of a part that is built from C. Raises FileNotFoundError, which names the remedy."""
    path = PACKAGE / "native" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {native_remedy()}")
    return path


def native_remedy() -> str:
    """Return what to do if a native part is missing."""
    if (PACKAGE.parent / "hatch_build.py").exists():
        return f"run 'make native' in {PACKAGE.parent}, or use an installed package from another folder than this one"
    return "reinstall the package"


class TooManyDevices(ValueError):
    """More devices are asked for than there are, or others than can be had; the message says which there are."""


class Identity(NamedTuple):
    """Who a client is: the id is public, the token proves to the coordinator that a process belongs to it."""

    client: str
    token: str

    @classmethod
    def new(cls, client: str = "", prefix: str = "client") -> Identity:
        """A fresh token for `client`, in characters that the wire allows, or for a fresh id."""
        client = re.sub(r"[^\w.:@-]", "-", client)[:128] or f"{prefix}-{secrets.token_hex(8)}"
        return cls(client, secrets.token_hex(16))


class Registration(NamedTuple):
    """What is known once the coordinator was asked: goes into `prepare` as it is.

    `note` is empty, or `REASON: SENTENCE` on what isn't working ("unreachable", "refused", "unshared").
    """

    socket: str
    simulate: bool
    visible_devices: Sequence[str] = ()
    note: str = ""
    coordinator_argv: Sequence[str] = ()
    memory_mode: str = ""
    pinned_memory: str = ""


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
    wait: float = 3.0,
    own_program: bool = False,
) -> Registration:
    """Register a client, starting a coordinator if none answers. Blocks for at most about `wait` seconds.

    Never fails because there is no coordinator: the program is to start anyway, with a note on what isn't working.
    `simulate=None` means: as `$GPUSHARE_SIMULATE` says, else as the coordinator does; `memory_mode=""` likewise, by
    `$GPUSHARE_MEMORY_MODE`. `settings` are options for a
    coordinator that this client or its kernel starts. `own_program`: the client ends with the calling process, which
    is about to become its program.

    Raises TooManyDevices when such a program asks for devices that it cannot have; a kernel starts, with a note.
    """
    from ..wire import client, messages

    wanted = os.environ.get("GPUSHARE_SIMULATE") == "1" if simulate is None else simulate
    mode = memory_mode or os.environ.get("GPUSHARE_MEMORY_MODE", "")
    known = Registration(socket, wanted, coordinator_argv=_coordinator_argv(wanted, settings), memory_mode=mode)
    try:
        known = known._replace(socket=address.socket_path(socket))
        if not SHIM.exists():
            return known._replace(note=_missing_shim_note())
        path = client.ensure_coordinator(known.socket, known.coordinator_argv, wait)
        with client.Client(path, timeout=wait) as coordinator:
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
        return known._replace(note=f"unreachable: {_one_line(error)}")
    except (client.CoordinatorError, address.BadAddress) as error:
        if own_program and getattr(error, "reason", "") in ("too_many_devices", "placement_failed"):
            raise TooManyDevices(str(error)) from None
        return known._replace(note=f"refused: {_one_line(error)}")
    config = status.get("config", {})
    wanted = wanted or (simulate is None and bool(config.get("simulate")))
    return Registration(
        path,
        wanted,
        [str(uuid) for uuid in registered.get("devices", [])],  # none where there is but one device
        coordinator_argv=_coordinator_argv(wanted, settings),
        memory_mode=mode or str(config.get("memory_mode", "")),
        pinned_memory=str(config.get("pinned_memory", "")),
    )


def unregister_client(identity: Identity, *, socket: str = "", timeout: float = 1.0) -> None:
    """Tell the coordinator that the client is over. Failures do not matter: it finds out by itself."""
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
    python: bool = True,
) -> dict[str, str]:
    """Return `env` as the environment of a shared program; unchanged if it is prepared for `client` already.

    What the user has set stays: an own LD_PRELOAD and PYTHONSTARTUP come after ours, CUDA_VISIBLE_DEVICES and
    the frameworks' switches are not touched. Without the shim the program runs unshared, and GPUSHARE_NOTE
    says why. `python` is whether the program is a Python kernel, which gets the magics and reports its cells.
    """
    made = dict(env)
    if made.get("GPUSHARE_PREPARED") == client:
        return made
    for inherited in ("GPUSHARE_NOTE", "GPUSHARE_LABEL", "GPUSHARE_QUOTA"):
        made.pop(inherited, None)
    made["GPUSHARE_PREPARED"] = client
    made["GPUSHARE_SOCKET"] = socket
    made["GPUSHARE_COORDINATOR_ARGV"] = json.dumps(list(coordinator_argv or _coordinator_argv(simulate)))
    if python:
        _wrap_pythonstartup(made)
    shim = preloadable_shim(socket)
    if shim is None:
        note = note if note.startswith("unshared:") else _missing_shim_note()
    else:
        made["LD_PRELOAD"] = _prepend(shim, made.get("LD_PRELOAD", ""), " ", r"[ :]+")
        made |= {"GPUSHARE_CLIENT": client, "GPUSHARE_TOKEN": token}
        made |= {name: value for name, value in _FRAMEWORKS.items() if name not in made}
        if label:
            made["GPUSHARE_LABEL"] = label[:_MAX_LABEL_LENGTH]
        if quota:
            made["GPUSHARE_QUOTA"] = quota
        if memory_mode:
            made.setdefault("GPUSHARE_MEMORY_MODE", memory_mode)
        if pinned_memory:
            made.setdefault("GPUSHARE_PINNED", str(units.parse_size(pinned_memory)))
        if visible_devices:
            made.setdefault("CUDA_VISIBLE_DEVICES", ",".join(visible_devices))
    if simulate:
        note = _use_simulated_driver(made, socket) or note
    if note:
        made["GPUSHARE_NOTE"] = note
    return made


def preloadable_shim(socket: str) -> Path | None:
    """The shim by a path that LD_PRELOAD can hold; None if it is missing or a link to it can't be made."""
    return _path_without(SHIM, _PRELOAD_SPLITS, socket)


def label_of(env: Mapping[str, str], fallback: str) -> str:
    """The notebook's file name, if the server says which it is; its folder is its owner's business."""
    return (os.path.basename(env.get("JPY_SESSION_NAME", "")) or fallback)[:_MAX_LABEL_LENGTH]


def _missing_shim_note() -> str:
    if SHIM.exists():
        return f"unshared: {SHIM} can't be preloaded from a path like this, and a link to it can't be made"
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
    if own == str(STARTUP):  # inherited from another shared kernel: the chain is in place
        return
    env["PYTHONSTARTUP"] = str(STARTUP)
    env.pop("GPUSHARE_STARTUP_CHAIN", None)
    if own:
        env["GPUSHARE_STARTUP_CHAIN"] = own


def _prepend(path: Path, present: str, separator: str, split: str) -> str:
    others = [entry for entry in re.split(split, present) if entry and entry != str(path)]
    return separator.join([str(path), *others])


def _path_without(path: Path, forbidden: str, socket: str) -> Path | None:
    """`path`, or a link to it whose name has no `forbidden` character; None if neither can be had."""
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
