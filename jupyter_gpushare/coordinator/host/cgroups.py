"""Control groups of processes, and how much memory their limits leave.

A process counts in its cgroup and in every cgroup above. When a cgroup reaches its limit and no page cache is left
there, Linux kills a process in it. Source: Documentation/admin-guide/cgroup-v2.rst (interface files of the memory
controller) and cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_MIN_UNLIMITED_BYTES = 1 << 60  # version 1 shows an absent limit as the largest number of pages
_VERSION_2 = "0"  # the hierarchy in /proc/PID/cgroup


class Membership(NamedTuple):
    """Line of /proc/PID/cgroup: the cgroup of a process in one hierarchy. A line of version 2 names no controllers."""

    hierarchy: str
    controllers: str
    path: str


class MemoryCgroup(NamedTuple):
    """Cgroup with a memory limit. `free_bytes` is what its processes can still take, page cache included."""

    path: str
    limit_bytes: int
    free_bytes: int


class _Files(NamedTuple):
    """Interface files of a version of the memory controller: limits, each with its use, and reclaimable memory."""

    limits: tuple[tuple[str, str], ...]
    reclaimable: tuple[str, ...]  # keys of memory.stat
    not_reclaimable: tuple[str, ...]  # keys of memory.stat: the part of the above that must be written to disk first


# Above memory.high, processes are stopped for so long that a limit is no worse. Memory on swap is no room: the driver
# cannot swap its pages out. The limit of memory.memsw counts swapped memory, and so may be nearer than that of memory.
_FILES = {
    2: _Files(
        (("memory.max", "memory.current"), ("memory.high", "memory.current")),
        ("inactive_file", "active_file", "slab_reclaimable"),
        ("file_dirty", "file_writeback"),
    ),
    1: _Files(
        (
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
        ),
        ("total_inactive_file", "total_active_file"),
        ("total_dirty", "total_writeback"),
    ),
}


class _Mount(NamedTuple):
    """Mounted hierarchy with the memory controller. `root` is the cgroup that `folder` shows."""

    version: int
    root: str
    folder: Path


class MemoryCgroups:
    """Memory cgroups with a limit, each of them read once, so that one object is a sample of one moment.

    `proc` is the folder of the processes.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._mounts = list(_memory_mounts(_read(proc / "self" / "mountinfo")))
        self._cgroups: dict[Path, MemoryCgroup | None] = {}

    def of_process(self, pid: int) -> tuple[MemoryCgroup, ...] | None:
        """Return the cgroups with a limit that a process counts in, its own first; None: they cannot be read.

        The cgroups cannot be read for a process that has ended or is hidden. A cgroup that is not mounted here cannot
        be read either, such as that of another container than the coordinator's.
        """
        memberships = parse_memberships(_read(self._proc / str(pid) / "cgroup"))
        if memberships and not any(_has_memory(one) for one in memberships):
            return ()  # this Linux has no memory cgroups
        found = self._find_folder(memberships)
        if found is None:
            return None
        mount, folder, path = found
        levels = []
        while True:
            if folder not in self._cgroups:
                self._cgroups[folder] = _read_cgroup(mount.version, folder, path)
            if (cgroup := self._cgroups[folder]) is not None:
                levels.append(cgroup)
            if folder == mount.folder:
                return tuple(levels)
            folder, path = folder.parent, path.rpartition("/")[0] or "/"

    def _find_folder(self, memberships: list[Membership]) -> tuple[_Mount, Path, str] | None:
        """Return the mount, the folder and the path of a process's cgroup in the hierarchy of the memory controller."""
        by_version = {2 if one.hierarchy == _VERSION_2 else 1: one.path for one in memberships if _has_memory(one)}
        version = min(by_version, default=0)  # a controller that is in use with version 1 is absent in version 2
        path = by_version.get(version, "")
        for mount in self._mounts:
            below = _relative(path, mount.root)
            if mount.version == version and below is not None and (folder := mount.folder / below).is_dir():
                return mount, folder, path
        return None


def parse_memberships(text: str) -> list[Membership]:
    """Return the lines in the text of /proc/PID/cgroup."""
    return [Membership(*line.split(":", 2)) for line in text.splitlines() if line.count(":") >= 2]


def _has_memory(membership: Membership) -> bool:
    return membership.hierarchy == _VERSION_2 or "memory" in membership.controllers.split(",")


def _relative(path: str, root: str) -> str | None:
    """Return the path of a cgroup below `root`, or None for a cgroup that is not below it.

    A path that begins with ".." is outside of the cgroup namespace of this process.
    """
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    if root == "/":
        return path[1:]
    return path[len(root) + 1 :] if path == root or path.startswith(root + "/") else None


def _memory_mounts(mountinfo: str) -> Iterator[_Mount]:
    """Yield the mounts that may have the memory controller, from the text of /proc/PID/mountinfo."""
    for line in mountinfo.splitlines():
        fields, _, filesystem = line.partition(" - ")
        words, kind = fields.split(" "), filesystem.split(" ")
        if len(words) < 5 or len(kind) < 3:
            continue
        root, folder = _unescape(words[3]), Path(_unescape(words[4]))
        if kind[0] == "cgroup2":
            yield _Mount(2, root, folder)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mount(1, root, folder)


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _read_cgroup(version: int, folder: Path, path: str) -> MemoryCgroup | None:
    """Return the cgroup with its nearest limit, or None if the cgroup has no limit or is gone."""
    files = _FILES[version]
    pairs = [(_number(folder / limit), _number(folder / used)) for limit, used in files.limits]
    limits = [(limit, used) for limit, used in pairs if limit is not None and used is not None]
    limits = [(limit, used) for limit, used in limits if limit < _MIN_UNLIMITED_BYTES]
    if not limits:
        return None
    lines = [line.split() for line in _read(folder / "memory.stat").splitlines()]
    stat = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}
    cache = sum(stat.get(key, 0) for key in files.reclaimable) - sum(stat.get(key, 0) for key in files.not_reclaimable)
    limit, used = min(limits, key=lambda one: one[0] - one[1])
    return MemoryCgroup(path, limit, max(0, limit - used + min(max(cache, 0), used)))


def _number(file: Path) -> int | None:
    """Return the number in a file, or None without one, as for the limit "max"."""
    text = _read(file).strip()
    return int(text) if text.isdecimal() else None


def _read(file: Path) -> str:
    """Return the text of a file, or "" for a file that cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
