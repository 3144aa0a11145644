"""Checks of `jupyter gpushare doctor` on clients, and on programs that do not share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...nvml_devices import devices_of_gpu
from ...units import format_size
from ..inspection import process_name, read_page
from .finding import Finding
from .other_coordinators import coordinator_owners

_FOREIGN_REMEDY = (
    "start them with a shared kernel or 'jupyter gpushare run --', or leave room for them (setting device_memory)"
)
_LIMIT_REMEDY = (
    "raise that limit (memory.max of the cgroup), free host memory there, or free GPU memory in the client; a lower "
    "memory quota prevents this"
)
_UNKNOWN_LIMIT_REMEDY = (
    "keep the memory quota of these clients below what the limits of their containers leave (docs/how-to/kubernetes.md)"
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
    remedy = "interrupt the client, or wait until its launch ends or its memory has moved"
    if pids:
        commands = " and ".join(f"'jupyter gpushare doctor --pid {pid}'" for pid in pids)
        remedy += f"; the state of its processes: {commands}"
    elif not client.get("own", True):
        remedy = f"ask {client['user']} to interrupt the client, or wait until its launch ends"
    return Finding(
        "warning",
        "overrun",
        f"{_client_label(client)} does not end its turn and is still on the GPU, so {len(waiting)} client(s) wait",
        remedy,
    )


def bypassing_libraries(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each client of a snapshot with libraries whose work may pass the gate."""
    for client in status["clients"]:
        names = sorted({name for process in client["processes"] for name in process.get("bypassing_libraries", ())})
        if names:
            message = (
                f"{_client_label(client)} has loaded {', '.join(names)}, whose work may run during other clients' "
                "turns; in memory mode swap its memory stays on the device"
            )
            remedy = f"reserve the GPU while such work runs: 'jupyter gpushare hold {client['id']}'"
            yield Finding("warning", "libraries", message, remedy)


def unbacked_memory(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings for clients whose memory cannot leave the GPU, or whose memory limits are unknown."""
    for client in status["clients"]:
        if client.get("unbacked"):
            where = f" (cgroup {client['cgroup']})" if client["cgroup"] else ""
            message = (
                f"{format_size(client['unbacked'])} of {_client_label(client)} cannot leave the GPU, because the "
                f"memory limit of its container or service{where} is reached; clients that need the room wait"
            )
            yield Finding("warning", "host memory", message, _LIMIT_REMEDY)
    unknown = [client for client in status["clients"] if not client.get("cgroup_is_known", True)]
    if unknown:
        names = ", ".join(_client_label(client) for client in unknown)
        message = (
            f"the coordinator cannot read the memory limits of {names}, so only the host's available memory bounds "
            "the memory that leaves the GPU"
        )
        yield Finding("warning", "host memory", message, _UNKNOWN_LIMIT_REMEDY)


def foreign_programs(status: dict[str, Any] | None, simulated: bool) -> Iterator[Finding]:
    """Yield a finding for GPU processes that belong to no client, because they use memory and time outside turns."""
    listed = (status or {"clients": []})["clients"]
    client_pids = {os.getpid(), *(process["pid"] for client in listed for process in client["processes"])}
    found = None if simulated else pids_from_nvml()
    if found is not None and any(not client.get("may_change", True) for client in listed):
        # The snapshot lacks the processes of other users' clients.
        found = {pid for pid in found if _is_own(pid)}
    has_all_users = found is not None and all(client.get("may_change", True) for client in listed)
    other_owners = coordinator_owners() - {os.getuid()}
    scope = "" if has_all_users else " (among your own processes)"
    foreign = (pids_from_files(simulated) if found is None else found) - client_pids
    # The coordinator also reports processes of other users. A process in another namespace has no process id here.
    reported = [
        process["pid"]
        for device in (status or {}).get("devices", [])
        for process in device.get("foreign_processes", [])
    ]
    foreign |= {pid for pid in reported if pid is not None} - client_pids
    # Processes of a user with another coordinator probably are clients of that coordinator.
    foreign = {pid for pid in foreign if not _is_of(pid, other_owners) and not _runs_under_shim(pid)}
    if None in reported:
        message = f"{reported.count(None)} process(es) on the GPU do not share it and have no process id here"
        yield Finding("warning", "other programs", message, _FOREIGN_REMEDY)
    if foreign:
        names = ", ".join(f"{pid} ({process_name(pid)})" for pid in sorted(foreign))
        message = f"programs use the GPU without sharing it: {names}{scope}"
        yield Finding("warning", "other programs", message, _FOREIGN_REMEDY)
    elif None not in reported:
        yield Finding("ok", "other programs", f"no program uses the GPU without sharing it{scope}")


def _runs_under_shim(pid: int) -> bool:
    """Return true if a process has a page, even without a coordinator or after its refusal."""
    try:
        return read_page(pid) is not None
    except OSError:  # The process has ended, or belongs to another user.
        return False


def pids_from_nvml() -> set[int] | None:
    """Return the processes that compute on a GPU of this machine, or None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found: set[int] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            for device in devices_of_gpu(pynvml, index):  # NVML shows the processes of a GPU in MIG mode to root only
                found |= {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device.handle)}
    except Exception:  # ImportError, or an error of NVML, such as a missing driver or a lost device
        return None
    return found


def pids_from_files(simulated: bool) -> set[int]:
    """Return this user's processes that have a GPU's device file open, or the simulated devices mapped.

    The function serves where NVML reports no process ids, as in containers.
    """
    return {
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if (_maps_simulated_device(folder) if simulated else _has_device_open(folder))
    }


def _has_device_open(folder: Path) -> bool:
    try:
        return any(_DEVICE_FILE.match(os.readlink(entry)) for entry in (folder / "fd").iterdir())
    except OSError:  # The process has ended, or belongs to another user.
        return False


def _maps_simulated_device(folder: Path) -> bool:
    path = os.environ.get("GPUSHARE_SIM_STATE", "")
    mapping = f" {path}\n" if path else f" /dev/shm/gpushare-sim-{os.getuid()}."
    try:
        return mapping in (folder / "maps").read_text()
    except OSError:
        return False


def _is_own(pid: int) -> bool:
    return _is_of(pid, {os.getuid()})


def _is_of(pid: int, users: set[int]) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid in users
    except OSError:  # The process has ended.
        return False


def _client_label(client: dict[str, Any]) -> str:
    if client["label"] or client.get("own", True):
        return str(client["label"] or client["id"])
    return f"a client of {client['user']}"
