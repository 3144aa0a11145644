"""Starts a shared kernel where front ends ignore provisioners: prepares its environment and *execs* it.

    python -c START [OPTIONS] -m MODULE ARGUMENTS...   (a module of this Python)
    python -c START [OPTIONS] -- COMMAND...            (anything)

`START` keeps the current folder off the path, where the package could be a clone of the sources; kernelspecs made by
earlier versions have `-m jupyter_gpushare.launcher` in its place.
Options: `--quota TEXT`, `--gpus N`, `--label TEXT`, `--memory-mode MODE`, `--simulate`. The kernel has the
process id of the launcher, gets every signal itself, and its exit status is the launcher's. Where our
provisioner has prepared the environment already (GPUSHARE_PREPARED), there is nothing to do but exec. Little is
imported on that way.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import NamedTuple, NoReturn

MODULE = "jupyter_gpushare.launcher"
START = f"import sys; sys.path[:] = filter(None, sys.path); from {MODULE} import main; sys.exit(main(sys.argv[1:]))"
_WRAPPER_OPTIONS = (["-c", START], ["-m", MODULE])


class LauncherUsageError(ValueError):
    """The launcher's own command line is wrong."""


class LaunchOptions(NamedTuple):
    command: list[str]
    quota: str = ""
    gpus: int = 1
    label: str = ""
    simulate: bool | None = None
    memory_mode: str = ""


def parse(arguments: list[str], python: str) -> LaunchOptions:
    """Split the launcher's options from the command, which `python` runs if it is a module. Raises Usage."""
    options: dict[str, str] = {}
    simulate: bool | None = None
    rest = list(arguments)
    while rest and rest[0].startswith("--") and rest[0] != "--":
        name = rest.pop(0)
        if name == "--simulate":
            simulate = True
        elif name not in ("--quota", "--gpus", "--label", "--memory-mode"):
            raise LauncherUsageError(
                f"unknown option {name!r}: allowed are --quota, --gpus, --label, --memory-mode, --simulate"
            )
        elif not rest:
            raise LauncherUsageError(f"{name} needs a value")
        else:
            options[name] = rest.pop(0)
    gpus = options.get("--gpus", "1")
    if not gpus.isdecimal() or not 1 <= int(gpus) <= 64:
        raise LauncherUsageError(f"--gpus {gpus!r} is out of range: allowed are 1 to 64")
    if rest[:1] == ["--"]:
        command = rest[1:]
        # As jupyter_client does for a kernelspec's own first word: the environment may not be activated.
        if command and command[0] in ("python", "python3", f"python3.{sys.version_info.minor}"):
            command[0] = python
    else:
        command = [python, *rest] if rest else []
    if not command:
        raise LauncherUsageError(f"no command: {MODULE} [OPTIONS] -m MODULE ... | -- COMMAND ...")
    mode = options.get("--memory-mode", "")
    return LaunchOptions(command, options.get("--quota", ""), int(gpus), options.get("--label", ""), simulate, mode)


def strip_wrapper(command: list[str]) -> list[str]:
    """What `command` execs if it is our launcher, else `command`. Saves the provisioner a detour."""
    if command[1:3] not in _WRAPPER_OPTIONS:
        return command
    return parse(command[3:], command[0]).command


def label_option(command: list[str]) -> str:
    """The `--label` of `command` if it is our launcher, else ""."""
    if command[1:3] not in _WRAPPER_OPTIONS:
        return ""
    try:
        return parse(command[3:], command[0]).label
    except LauncherUsageError:
        return ""


def default_label(command: list[str]) -> str:
    """What people would call it: `train.py` of `python -u train.py`, the module of `python -m MODULE`."""
    program = os.path.basename(command[0])
    words = iter(command[1:] if program.startswith("python") else [])
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        elif re.fullmatch(r"-[A-Za-z]*c", word):  # what follows is the program itself
            return f"{program} -c"
        elif word == "-m" or not word.startswith("-"):
            return os.path.basename(next(words, program) if word == "-m" else word)
    return program


def exec_program(command: list[str], env: dict[str, str]) -> NoReturn:
    """Become `command`. Raises OSError when that can't be."""
    # Python ignores these, and exec would hand that on; programs expect the default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, env)


def build_shared_environment(parsed: LaunchOptions, prefix: str) -> dict[str, str]:
    """Register a new client and return the environment for it. Takes at most a few seconds."""
    from .config import quota_options
    from .launch import kernel_env

    identity = kernel_env.Identity.new(prefix=prefix)
    try:
        mode = quota_options.parse_memory_mode(parsed.memory_mode)
    except ValueError as error:
        raise LauncherUsageError(str(error)) from None
    try:
        quota = quota_options.with_inherited_quota(parsed.quota)
    except ValueError:  # a kernel starts all the same: the coordinator refuses it, which the first cell says
        quota = f"{os.environ.get('GPUSHARE_QUOTA', '')} {parsed.quota}".strip()
    label = parsed.label or kernel_env.label_of(os.environ, default_label(parsed.command))
    announced = kernel_env.register_client(
        identity,
        label=label,
        quota=quota,
        gpus=parsed.gpus,
        simulate=parsed.simulate,
        memory_mode=mode,
        own_program=prefix == "run",
    )
    inherited = {**os.environ, "GPUSHARE_MEMORY_MODE": mode} if mode else os.environ
    return kernel_env.build_environment(
        inherited, label=label, quota=quota, **identity._asdict(), **announced._asdict()
    )


def main(arguments: list[str]) -> int:
    """Returns only when the command can't be executed: 2 usage, 126 not executable, 127 not found."""
    try:
        parsed = parse(arguments, sys.executable)
    except LauncherUsageError as error:
        print(f"{MODULE}: {error}", file=sys.stderr)
        return 2
    env = dict(os.environ)
    try:
        if not env.get("GPUSHARE_PREPARED"):
            env = build_shared_environment(parsed, "kernel")
    except LauncherUsageError as error:
        print(f"{MODULE}: {error}", file=sys.stderr)
        return 2
    try:
        exec_program(parsed.command, env)
    except OSError as error:
        print(f"{MODULE}: {parsed.command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
