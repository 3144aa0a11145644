"""Double of /proc and of the cgroup file systems, as plain files in a folder."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
UNLIMITED_V1 = 9223372036854771712


class CgroupDouble:
    """Files of one host: `mounts` has (kind, options, root, name of the folder) of each mounted hierarchy."""

    def __init__(self, folder: Path, *mounts: tuple[str, str, str, str]) -> None:
        self.proc = folder / "proc"
        self.folder = folder
        self._mounts = mounts or (("cgroup2", "rw", "/", "cgroup"),)
        lines = [
            f"{number} 1 0:{number} {root} {self._escape(folder / name)} rw shared:9 - {kind} {kind} {options}"
            for number, (kind, options, root, name) in enumerate(self._mounts, start=20)
        ]
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text("\n".join(["20 1 8:1 / / rw - ext4 /dev/sda rw", *lines, "bad"]))
        self.set_available(64 * GIB)
        for *_, name in self._mounts:
            (folder / name).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _escape(path: Path) -> str:
        return str(path).replace(" ", "\\040")

    def set_available(self, size: int) -> None:
        """Set the available bytes of the host."""
        (self.proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {size // 1024} kB\n")

    def add_process(self, pid: int, path: str, lines: str = "0::{}\n") -> int:
        """Add a process in the cgroup `path`, or move it there."""
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(lines.format(path))
        return pid

    def set_cgroup(self, path: str, used: int, maximum: int | None = None, name: str = "cgroup", **files: str) -> None:
        """Set the use and the limit of a cgroup of version 2; `memory_stat` and so on are further files."""
        limit = "max" if maximum is None else str(maximum)
        self.write(path, name, **{"memory_max": limit, "memory_high": "max", "memory_current": str(used), **files})

    def set_cgroup_v1(self, path: str, used: int, maximum: int = UNLIMITED_V1, **files: str) -> None:
        """Set the use and the limit of a cgroup of version 1."""
        made = {"memory_limit_in_bytes": str(maximum), "memory_usage_in_bytes": str(used)}
        self.write(path, "memory", **made, **files)

    def write(self, path: str, name: str = "cgroup", **files: str) -> None:
        folder = self.folder / name / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file.replace("memory_", "memory.").replace("memsw_", "memsw.")).write_text(text + "\n")
