"""Generator of the reference pages on configuration and commands, from the package's own tables and parsers.

`make reference` runs this file.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from jupyter_core.application import base_aliases, base_flags

from jupyter_gpushare import cli
from jupyter_gpushare.cluster.settings import GpuShareCluster
from jupyter_gpushare.coordinator.app import CoordinatorApp
from jupyter_gpushare.settings.quota import QUOTA
from jupyter_gpushare.settings.setting import Setting
from jupyter_gpushare.settings.table import SETTINGS

_CONFIGURATION = """\
# Configuration

<!-- Generated from jupyter_gpushare/settings/: `make reference` writes this file. -->

Admins set `c.GpuShare.NAME` in `jupyter_gpushare_config.py` or `jupyter_server_config.py`, or pass `--GpuShare.NAME=VALUE` to `jupyter gpushare coordinator`.
A file with an error counts as empty: the coordinator reports the file, the line and the error in `jupyter gpushare status`, in `doctor` and in its log.
A wrong value of `c.GpuShare` in a file is reported in the same places, and no setting of `c.GpuShare` in the files is in force then.
Options of the command line stay in force.
With a wrong value, a Jupyter server and its kernels use the defaults, and JupyterLab's panel shows the problem.
A Jupyter server passes its settings as options, so a coordinator that the server or one of its kernels starts ends at a wrong value of `tenants` or `topology`.
The kernel's first cell shows the reason then.
An unknown name is reported there too.
A [system coordinator](../how-to/multiuser.md) does not start with any of these.
The *live* settings of a running coordinator are changed by `jupyter gpushare config NAME VALUE`, in JupyterLab's panel, or by `PATCH /gpushare/api/config`; such changes last until the coordinator ends.
Settings that are live *per device* may have another value on single devices, by the setting `devices` or `jupyter gpushare config devices.DEVICE.NAME VALUE`.

Times are seconds, or texts such as `"30s"`, `"5min"` and `"1h"`.
Sizes are bytes, or texts such as `"8GiB"` (1024s) and `"8GB"` (1000s).
Fractions are numbers, or texts such as `"50%"`.

## Settings
"""  # noqa: E501 # one sentence per line

_QUOTA = """
## Quotas

A quota is a text such as `share=0.5 memory=8GiB`: of a kernel, a program (`GPUSHARE_QUOTA`) or a running client, and of `default_quota`.
`class` is another name of `service`.
"""  # noqa: E501

_CLUSTER = """
## Kernels on other hosts

Users and admins set `c.GpuShareCluster.NAME` in `jupyter_server_config.py`: see [nodes by ssh](../how-to/cluster-ssh.md), [nodes of Slurm](../how-to/cluster-slurm.md), [nodes of Ray](../how-to/cluster-ray.md) and [nodes of Kubernetes](../how-to/cluster-kubernetes.md).
"""  # noqa: E501

_CLI = """\
# Command line

<!-- Generated from the help of the commands: `make reference` writes this file. -->

`jupyter gpushare COMMAND --help` prints the same for one command.
"""

_COORDINATOR = """
## `coordinator`

The daemon that schedules.

    jupyter gpushare coordinator [OPTIONS]

Every setting of the [configuration](configuration.md) is an option as well: `--GpuShare.NAME=VALUE`.
`jupyter gpushare coordinator --help-all` prints them, and the options of all Jupyter applications.
"""


def configuration() -> str:
    """Return the text of docs/reference/configuration.md."""
    traits = GpuShareCluster.class_own_traits(config=True).items()
    rows = [[f"`{name}`", f"`{trait.default()!r}`", str(trait.help)] for name, trait in sorted(traits)]
    cluster = _table(["name", "default", "meaning"], rows)
    return f"{_CONFIGURATION}\n{_settings(SETTINGS)}{_QUOTA}\n{_settings(QUOTA)}{_CLUSTER}\n{cluster}"


def _settings(table: dict[str, Setting]) -> str:
    rows = []
    for name, setting in table.items():
        choices = "<br>".join(f"`{word}`: {meaning}." for word, meaning in setting.choices.items())
        default = "none" if setting.default is None else f"`{setting.default!r}`"
        live = "yes, per device" if setting.per_device else "yes" if setting.live else "no"
        meaning = f"{setting.help} {setting.more}"
        rows.append([f"`{name}`", default, choices or setting.allowed or setting.type, live, meaning])
    return _table(["name", "default", "allowed", "live", "meaning"], rows)


def command_line() -> str:
    """Return the text of docs/reference/cli.md."""
    return _CLI + "".join(_command(name, cli.build_parser(name), 2) for name in cli.COMMANDS) + _coordinator()


def _command(name: str, parser: argparse.ArgumentParser, level: int) -> str:
    """Return the section of the sub-command `name` of `parser`, with the sections of its own sub-commands."""
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    command = commands.choices[name]
    actions = [action for action in command._actions if action.dest != "help"]
    words = [word for action in actions if (word := _usage(action))]
    options = ["[OPTIONS]"] if any(action.option_strings for action in actions) else []
    sentence = f"{helps[name]}".strip().rstrip(".")
    parts = [
        f"\n{'#' * level} `{command.prog.removeprefix('jupyter gpushare ')}`",
        f"{sentence[0].upper()}{sentence[1:]}.",
        f"    {' '.join([command.prog, *options, *words])}",
    ]
    nested = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    rows = [[_signature(action), _meaning(command, action)] for action in actions if action not in nested]
    text = "\n\n".join(parts) + "\n" + (f"\n{_table(['argument', 'meaning'], rows)}" if rows else "")
    return text + "".join(_command(child, command, level + 1) for action in nested for child in action.choices)


def _usage(action: argparse.Action) -> str:
    """Return a positional argument as the usage line shows it, or "" for an option."""
    if action.option_strings:
        return ""
    word = str(action.metavar or action.dest.upper())
    return {"?": f"[{word}]", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _signature(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{option}`" if action.nargs == 0 else f"`{option} {value}`" for option in action.option_strings)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action)
    choices = [f"`{choice}`" for choice in action.choices or []]
    return f"{text} ({', '.join(choices)})" if choices else text


def _coordinator() -> str:
    # Options of every Jupyter application are left out, because they depend on the version of jupyter_core.
    flags = {name: flag for name, flag in CoordinatorApp.flags.items() if flag != base_flags.get(name)}
    aliases = {name: trait for name, trait in CoordinatorApp.aliases.items() if name not in base_aliases}
    rows = [[f"`--{name}`", str(meaning)] for name, (_, meaning) in flags.items()]
    rows += [[f"`--{name}=VALUE`", f"sets `{trait}`"] for name, trait in aliases.items()]
    own = CoordinatorApp.class_own_traits(config=True).items()
    rows += [[f"`--CoordinatorApp.{name}=VALUE`", str(trait.help)] for name, trait in sorted(own)]
    return f"{_COORDINATOR}\n{_table(['argument', 'meaning'], rows)}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    return re.sub(r"\bdocs/(\S+/(\w+\.md))\b", r"[\2](../\1)", "".join(_lines([head, ["---"] * len(head), *rows])))


def _lines(rows: Iterable[list[str]]) -> Iterator[str]:
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |\n"


PAGES = {"configuration.md": configuration, "cli.md": command_line}

if __name__ == "__main__":
    for file_name, make in PAGES.items():
        (Path(__file__).parent / "reference" / file_name).write_text(make())
