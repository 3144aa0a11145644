"""Configuration and state directory of the coordinator of a whole host.

The coordinator reads only configuration files that root alone can change.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

CONFIG_DIRECTORIES = ("/usr/local/etc/jupyter", "/etc/jupyter")  # the later one counts more
STATE_DIRECTORY = "/var/lib/gpushare"
_FILES = ("jupyter_config", "jupyter_gpushare_config")


class NotOwnedByRoot(PermissionError):
    """Error for a configuration that a user other than root could change; the message has the file and the remedy."""


def config_directories() -> list[str]:
    """Return the directories of the configuration, the most important first, as Jupyter expects them.

    `$GPUSHARE_SYSTEM_CONFIG_PATH` replaces the defaults. Raises NotOwnedByRoot, because users must not be able to lift
    a ceiling, and because a ceiling must not be ignored in silence.
    """
    given = os.environ.get("GPUSHARE_SYSTEM_CONFIG_PATH", "")
    directories = given.split(os.pathsep) if given else list(reversed(CONFIG_DIRECTORIES))
    for directory in directories:
        for name in _FILES:
            for end in (".py", ".json"):
                check_owned_by_root(Path(directory) / (name + end))
    return directories


def check_owned_by_root(file: Path) -> None:
    """Raise NotOwnedByRoot if a user other than root could change the content of `file`.

    A missing file is accepted. Raises OSError if the owner cannot be read or the file is a broken link.
    """
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    file = file.resolve(strict=True)
    for path in (file, *file.parents):
        status = path.stat()
        others_write = status.st_mode & 0o022 and not (path is not file and status.st_mode & stat.S_ISVTX)
        if status.st_uid != 0 or others_write:
            raise NotOwnedByRoot(
                f"{path} belongs to uid {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}: the system "
                f"coordinator reads {file} only if it and every folder above belong to root, and only root may write "
                "to them"
            )


def state_directory() -> Path:
    """Return `$STATE_DIRECTORY`, which systemd sets, else /var/lib/gpushare."""
    return Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or STATE_DIRECTORY)
