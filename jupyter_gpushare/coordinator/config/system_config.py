"""The coordinator of a whole host: what binds its users is read only from where no user may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

CONFIG_DIRECTORIES = ("/usr/local/etc/jupyter", "/etc/jupyter")  # the later one counts more
STATE_DIRECTORY = "/var/lib/gpushare"
_FILES = ("jupyter_config", "jupyter_gpushare_config")


class NotOwnedByRoot(PermissionError):
    """A configuration that somebody other than root could change; the message says which and what is allowed."""


def config_directories() -> list[str]:
    """Where the configuration is looked for, the most important first, as Jupyter has it.

    `$GPUSHARE_SYSTEM_CONFIG_PATH` names others. Raises NotRoots: a ceiling that users could lift is none, and one that
    is passed over in silence is none either.
    """
    given = os.environ.get("GPUSHARE_SYSTEM_CONFIG_PATH", "")
    directories = given.split(os.pathsep) if given else list(reversed(CONFIG_DIRECTORIES))
    for directory in directories:
        for name in _FILES:
            for end in (".py", ".json"):
                check_owned_by_root(Path(directory) / (name + end))
    return directories


def check_owned_by_root(file: Path) -> None:
    """Raise NotRoots if somebody other than root could change what is read from `file`, if it is there, and OSError if
    that cannot be seen, or it is a link to nothing: then it is not passed over as one that isn't there."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    file = file.resolve(strict=True)
    for part in (file, *file.parents):
        found = part.stat()
        others_write = found.st_mode & 0o022 and not (part is not file and found.st_mode & stat.S_ISVTX)
        if found.st_uid != 0 or others_write:
            raise NotOwnedByRoot(
                f"{part} belongs to uid {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}: the system "
                f"coordinator reads {file} only if it and every folder above belong to root and nobody else may write "
                "to them"
            )


def state_directory() -> Path:
    """`$STATE_DIRECTORY`, which systemd sets, else /var/lib/gpushare."""
    return Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or STATE_DIRECTORY)
