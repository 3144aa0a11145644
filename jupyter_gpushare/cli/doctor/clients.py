"""Checks of `jupyter gpushare doctor` on who uses the GPU just now: clients that hold others up, and programs that
don't share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..inspection import process_name, read_page
from .finding import Finding
from .other_coordinators import coordinator_owners

_FOREIGN_REMEDY = (
    "start them with the shared kernel or 'jupyter gpushare run --', or keep them apart with device_memory"
)
_DEVICE_FILE = re.compile(r"/dev/nvidia\d+$")


def overruns(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each turn of a snapshot that does not end."""
    for client in status["clients"]:
        if client["phase"] == "overrun":
            yield _overrun(client, status["devices"])


def _overrun(client: dict[str, Any], devices: list[dict[str, Any]]) -> Finding:
    waiting = {other for device in devices if device["uuid"] in client["devices"] for other in device["queue"]}
    pids = [process["pid"] for process in client["processes"]]
    advice = "interrupt it, or wait for a launch that takes long or for its memory to leave"
    if pids:
        advice += "; " + " and ".join(f"'jupyter gpushare doctor --pid {pid}'" for pid in pids)
        advice += " shows what it is at"
    elif not client.get("own", True):
        advice = f"{client['user']}, whose client it is, can interrupt it; or wait for a launch that takes long"
    return Finding(
        "warning",
        "overrun",
        f"{_client_label(client)} does not end its turn: it has not left the GPU, and {len(waiting)} client(s) wait",
        advice,
    )


def foreign_programs(status: dict[str, Any] | None, simulated: bool) -> Iterator[Finding]:
    """GPU processes that no client of the coordinator accounts for: they take memory and time that are not theirs."""
    listed = (status or {"clients": []})["clients"]
    ours = {os.getpid(), *(process["pid"] for client in listed for process in client["processes"])}
    found = None if simulated else pids_from_nvml()
    if found is not None and any(not client.get("may_change", True) for client in listed):
        found = {pid for pid in found if _is_own(pid)}  # which processes others' clients have we are not told
    everybodys = found is not None and all(client.get("may_change", True) for client in listed)
    neighbours = coordinator_owners() - {os.getuid()}
    how = "" if everybodys else " (looked for among your processes)"
    strangers = (pids_from_files(simulated) if found is None else found) - ours
    # Others' programs too, as the coordinator sees them. One that has no process id here cannot be named.
    seen = [
        process["pid"]
        for device in (status or {}).get("devices", [])
        for process in device.get("foreign_processes", [])
    ]
    strangers |= {pid for pid in seen if pid is not None} - ours
    # Those of users who have coordinators of their own are taken to share by these.
    strangers = {pid for pid in strangers if not _is_of(pid, neighbours) and not _runs_under_shim(pid)}
    if None in seen:
        yield Finding(
            "warning", "other programs", f"{seen.count(None)} on the GPU have no process id here", _FOREIGN_REMEDY
        )
    if strangers:
        names = ", ".join(f"{pid} ({process_name(pid)})" for pid in sorted(strangers))
        yield Finding("warning", "other programs", f"on the GPU without sharing it: {names}{how}", _FOREIGN_REMEDY)
    elif None not in seen:
        yield Finding("ok", "other programs", f"none bypasses sharing{how}")


def _runs_under_shim(pid: int) -> bool:
    """Whether it does though no coordinator here knows it: there is none, or it was turned away."""
    try:
        return read_page(pid) is not None
    except OSError:  # it has ended, or is another user's
        return False


def pids_from_nvml() -> set[int] | None:
    """The processes that compute on a GPU here; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found: set[int] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found |= {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except Exception:  # ImportError or any of NVML's exceptions: no driver, a device that can't be asked
        return None
    return found


def pids_from_files(simulated: bool) -> set[int]:
    """This user's processes that have a GPU's device file open, or the simulated devices mapped.

    Where NVML sees no process ids, as in containers, there is nothing better.
    """
    return {
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if (_maps_simulated_device(folder) if simulated else _has_device_open(folder))
    }


def _has_device_open(folder: Path) -> bool:
    try:
        return any(_DEVICE_FILE.match(os.readlink(entry)) for entry in (folder / "fd").iterdir())
    except OSError:  # it has ended, or is another user's
        return False


def _maps_simulated_device(folder: Path) -> bool:
    given = os.environ.get("GPUSHARE_SIM_STATE", "")
    place = f" {given}\n" if given else f" /dev/shm/gpushare-sim-{os.getuid()}."
    try:
        return place in (folder / "maps").read_text()
    except OSError:
        return False


def _is_own(pid: int) -> bool:
    return _is_of(pid, {os.getuid()})


def _is_of(pid: int, users: set[int]) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid in users
    except OSError:  # it has ended
        return False


def _client_label(client: dict[str, Any]) -> str:
    if client["label"] or client.get("own", True):
        return str(client["label"] or client["id"])
    return f"a client of {client['user']}"
