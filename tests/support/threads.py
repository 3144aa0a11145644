"""Names of the threads of a process."""

from __future__ import annotations

from pathlib import Path


def thread_names(pid: int, proc: Path = Path("/proc")) -> dict[int, str]:
    """Return the name of each thread of the process by its id, without threads that end meanwhile."""
    names = {}
    for task in (proc / str(pid) / "task").iterdir():
        try:
            names[int(task.name)] = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return names
