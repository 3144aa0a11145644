"""Launcher of shared kernels for front ends that ignore provisioners.

    python -c START [OPTIONS] -m MODULE ARGUMENTS...   (a module of this Python)
    python -c START [OPTIONS] -- COMMAND...            (any command)

The launcher prepares the environment and executes the command in the same process (exec).
So the kernel has the launcher's process id and exit status, and receives all signals.
`START` keeps the current folder off the path, because a clone of the sources there would hide the package.
Kernelspecs of earlier versions have `-m jupyter_gpushare.launcher` in place of `-c START`.
The options are `--quota TEXT`, `--gpus N`, `--label TEXT`, `--memory-mode MODE` and `--simulate`.
If the provisioner has prepared the environment (GPUSHARE_PREPARED), the launcher only executes the command, and
imports little for that.
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
    """Invalid command line of the launcher."""


class LaunchOptions(NamedTuple):
    """Options of the launcher, and the command that it executes."""

    command: list[str]
    quota: str = ""
    gpus: int = 1
    label: str = ""
    simulate: bool | None = None
    memory_mode: str = ""


def parse(arguments: list[str], python: str) -> LaunchOptions:
    """Split the launcher's options from the command, whose module `python` runs. Raise LauncherUsageError."""
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
        raise LauncherUsageError(f"--gpus {gpus!r} is not a whole number from 1 to 64")
    if rest[:1] == ["--"]:
        command = rest[1:]
        # The environment may not be activated; jupyter_client replaces the first word of kernelspecs as well.
        if command and command[0] in ("python", "python3", f"python3.{sys.version_info.minor}"):
            command[0] = python
    else:
        command = [python, *rest] if rest else []
    if not command:
        raise LauncherUsageError(f"no command: {MODULE} [OPTIONS] -m MODULE ... | -- COMMAND ...")
    mode = options.get("--memory-mode", "")
    return LaunchOptions(command, options.get("--quota", ""), int(gpus), options.get("--label", ""), simulate, mode)


def strip_wrapper(command: list[str]) -> list[str]:
    """Return the command that the launcher in `command` would execute, or `command` without a launcher."""
    if command[1:3] not in _WRAPPER_OPTIONS:
        return command
    return parse(command[3:], command[0]).command


def label_option(command: list[str]) -> str:
    """Return the `--label` of the launcher in `command`, or "" without one."""
    if command[1:3] not in _WRAPPER_OPTIONS:
        return ""
    try:
        return parse(command[3:], command[0]).label
    except LauncherUsageError:
        return ""


def default_label(command: list[str]) -> str:
    """Return the script, module or program of a command, such as `train.py` for `python -u train.py`."""
    program = os.path.basename(command[0])
    words = iter(command[1:] if program.startswith("python") else [])
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        elif re.fullmatch(r"-[A-Za-z]*c", word):  # the next word is the text of the program
            return f"{program} -c"
        elif word == "-m" or not word.startswith("-"):
            return os.path.basename(next(words, program) if word == "-m" else word)
    return program


def exec_program(command: list[str], env: dict[str, str]) -> NoReturn:
    """Execute a command in this process. Raise OSError if the command cannot be executed."""
    # Python ignores these signals, and a program would inherit that, but programs expect the default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, env)


def build_shared_environment(parsed: LaunchOptions, prefix: str) -> dict[str, str]:
    """Register a new client and return its environment, in at most a few seconds."""
    from .config import quota_options
    from .launch import kernel_env

    identity = kernel_env.Identity.new(prefix=prefix)
    try:
        mode = quota_options.parse_memory_mode(parsed.memory_mode)
    except ValueError as error:
        raise LauncherUsageError(str(error)) from None
    try:
        quota = quota_options.with_inherited_quota(parsed.quota)
    except ValueError:
        # The kernel starts nevertheless, the coordinator refuses the quota, and the first cell shows the reason.
        quota = f"{os.environ.get('GPUSHARE_QUOTA', '')} {parsed.quota}".strip()
    label = parsed.label or kernel_env.label_of(os.environ, default_label(parsed.command))
    registration = kernel_env.register_client(
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
        inherited, label=label, quota=quota, **identity._asdict(), **registration._asdict()
    )


def main(arguments: list[str]) -> int:
    """Execute the command, or return the exit status: 2 for usage, 126 for not executable, 127 for not found."""
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
