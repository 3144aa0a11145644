"""Command `jupyter gpushare doctor`, which checks GPU sharing on this machine and suggests remedies.

The checks of the driver, the shim, the coordinator, the locks, the host memory and Jupyter are here.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import __version__, units
from ...launch import kernel_env
from ...wire import address, messages
from ...wire.client import Client, CoordinatorError
from .. import kernelspec, without_coordinator
from . import clients, cluster_daemon, costs, mps, other_coordinators
from .finding import Finding

_MANAGED_MEMORY, _CONCURRENT_MANAGED_ACCESS, _VIRTUAL_MEMORY_MANAGEMENT = 83, 89, 102  # CUdevice_attribute
_GRANULE_BYTES = 2 << 20  # as GRANULE_BYTES in native/shim/memory/swap/swap.h
_MIN_HOST_MEMORY_BYTES = 4 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--simulate", action="store_true", help="check the simulated driver instead of the real driver")
    parser.add_argument(
        "--costs", action="store_true", help="measure mappings and copies, with a context and 64 MiB on each device"
    )
    parser.add_argument("--socket", default="", help="the coordinator's socket")
    parser.add_argument(
        "--as-node",
        action="store_true",
        help="leave out the checks of Jupyter's host, which a node does not need (--node adds this option)",
    )
    parser.add_argument(
        "--pid", type=int, metavar="N", help="show the gate, limits and memory of this process instead of the checks"
    )


def main(args: argparse.Namespace) -> int:
    """Run the checks, and return 1 for an error and 0 otherwise."""
    if args.pid is not None:
        from ..inspection import show

        return show(args.pid, args.socket, args.json)
    simulate = args.simulate or os.environ.get("GPUSHARE_SIMULATE") == "1"
    findings = [finding for check in _checks(args, simulate, _status(args.socket)) for finding in check()]
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        _print(findings)
    return int(any(finding.level == "error" for finding in findings))


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    colours = {"ok": "green", "warning": "yellow", "error": "red"}
    for finding in findings:
        console.print(f"[{colours[finding.level]}]{finding.level:>8}[/]  {finding.subject}: {escape(finding.message)}")
        if finding.remedy:
            console.print(f"{'':>8}  -> {escape(finding.remedy)}")


def _checks(
    args: argparse.Namespace, simulate: bool, status: dict[str, Any] | None
) -> list[Callable[[], Iterator[Finding]]]:
    socket = args.socket
    devices = status["devices"] if status else []
    is_simulated = bool(devices) and all(device["simulated"] for device in devices)
    return [
        lambda: _simulation(is_simulated and not simulate),
        lambda: _driver(simulate or is_simulated, args.costs),
        lambda: _slices(devices),
        lambda: mps.control_daemon(os.environ),
        lambda: _shim(socket),
        lambda: _coordinator(socket, status),
        lambda: _configuration(status["coordinator"].get("problems", ()) if status else ()),
        lambda: clients.overruns(status) if status else iter(()),
        lambda: clients.bypassing_libraries(status) if status else iter(()),
        lambda: other_coordinators.coordinators(socket),
        lambda: other_coordinators.lock_holders(status) if status else iter(()),
        _locks,
        _host_memory,
        lambda: clients.unbacked_memory(status) if status else iter(()),
        lambda: clients.foreign_programs(status, simulate or is_simulated),
        *(() if args.as_node else (cluster_daemon.daemon, _jupyter)),
    ]


def _simulation(is_unrequested: bool) -> Iterator[Finding]:
    if is_unrequested:
        yield Finding(
            "warning",
            "simulation",
            "the coordinator has SIMULATED devices, so the checks below are about the simulated driver",
            "for real devices, end all clients and restart the coordinator without c.GpuShare.simulate and "
            "GPUSHARE_SIMULATE",
        )


def _driver(simulate: bool, with_costs: bool = False) -> Iterator[Finding]:
    name = str(kernel_env.SIMULATED_DRIVER) if simulate else "libcuda.so.1"
    subject = "driver"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        yield Finding(
            "error",
            subject,
            str(error),
            "install NVIDIA's driver, or use the simulated driver (--simulate, c.GpuShare.simulate)",
        )
        return
    if status := driver.cuInit(0):
        yield _failed_start(status, simulate)
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    kind = "simulated driver" if simulate else "driver"
    number = _cuda_number(version.value)
    yield Finding("ok", subject, f"{kind}, CUDA {number}, {count.value} device(s)")
    known = _known_cuda_version()
    if known and version.value > known:
        yield Finding(
            "warning",
            subject,
            f"CUDA {number} is newer than CUDA {_cuda_number(known)}, the newest version whose functions this "
            "package intercepts; programs for a newer CUDA may pass the gate",
            "update jupyter-gpushare",
        )
    for index in range(count.value):
        yield _device(driver, index)
        yield from _mode_swap(driver, index)
        if with_costs:
            yield from costs.swap_costs(index, simulate)
        yield from mps.compute_mode(driver, index, os.environ)


def _failed_start(status: int, simulate: bool) -> Finding:
    message, remedy = f"cuInit fails with CUDA error {status}", "check that nvidia-smi works"
    if simulate:
        from ...coordinator.gpu import simulated_driver

        message = f"{message}: {simulated_driver.fault() or 'there are no simulated devices'}"
        remedy = "correct or remove the variables GPUSHARE_SIM_… (native/simcuda/README.md)"
    return Finding("error", "driver", message, remedy)


def _known_cuda_version() -> int:
    """Return the newest CUDA version with which the shim's table of functions has been compared; 0 if unknown."""
    try:
        found = re.search(rb"gpushare shim [^\0]* cuda (\d+)", kernel_env.SHIM.read_bytes())
    except OSError:  # The check of the shim reports this error.
        return 0
    return int(found[1]) if found else 0


def _cuda_number(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _device(driver: Any, index: int) -> Finding:
    device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    total = ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    supported = {}
    for attribute in (_MANAGED_MEMORY, _CONCURRENT_MANAGED_ACCESS, _VIRTUAL_MEMORY_MANAGEMENT):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        supported[attribute] = bool(value.value)
    title = f"{name.value.decode()}, {units.format_size(total.value)}"
    if supported[_MANAGED_MEMORY] and supported[_CONCURRENT_MANAGED_ACCESS]:
        return Finding("ok", f"device {index}", f"{title}, unified memory may exceed the device")
    return Finding(
        "warning",
        f"device {index}",
        f"{title}, unified memory cannot exceed the device, so clients of memory mode unified use mode "
        + ("swap" if supported[_VIRTUAL_MEMORY_MANAGEMENT] else "plain"),
        "choose the mode by the setting memory_mode (docs/explanation/memory.md)",
    )


def _mode_swap(driver: Any, index: int) -> Iterator[Finding]:
    """Check the calls that map memory, without a context, because a context takes memory of the device."""
    device, value, granule = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetAttribute(ctypes.byref(value), _VIRTUAL_MEMORY_MANAGEMENT, device)
    properties = (ctypes.c_uint32 * 8)(1, 0, 1, device.value)  # CUmemAllocationProp: pinned memory of the device
    status = driver.cuMemGetAllocationGranularity(ctypes.byref(granule), properties, 0) if value.value else 0
    subject, remedy = f"device {index}", "use memory mode unified or plain (docs/explanation/memory.md)"
    if not value.value:
        yield Finding("warning", subject, "memory mode swap is not possible, because memory cannot be mapped", remedy)
    elif status:
        message = f"memory mode swap is not possible: cuMemGetAllocationGranularity fails with CUDA error {status}"
        yield Finding("warning", subject, message, remedy)
    elif granule.value != _GRANULE_BYTES:
        message = (
            f"memory is mapped in granules of {units.format_size(granule.value)}, and memory mode swap needs "
            f"{units.format_size(_GRANULE_BYTES)}"
        )
        yield Finding("warning", subject, message, remedy)
    else:
        message = f"memory mode swap is possible: memory is mapped in granules of {units.format_size(granule.value)}"
        yield Finding("ok", subject, message)


def _slices(devices: list[dict[str, Any]]) -> Iterator[Finding]:
    slices = [device for device in devices if device.get("parent")]
    if slices:
        gpus = len({device["parent"] for device in slices})
        message = (
            f"the coordinator has {len(slices)} MIG slice{'s' if len(slices) > 1 else ''} of {gpus} "
            f"GPU{'s' if gpus > 1 else ''}; a process sees one slice, so the check of the driver is about one device"
        )
        yield Finding("ok", "MIG", message)


def _shim(socket: str) -> Iterator[Finding]:
    path = kernel_env.SHIM
    if not path.exists():
        yield Finding("error", "shim", f"{path} is missing", kernel_env.native_remedy())
        return
    with suppress(address.BadAddress):  # the check of the coordinator reports this error
        socket = address.socket_path(socket)
    preloaded = kernel_env.preloadable_shim(socket)
    if preloaded is None:
        remedy = "set XDG_RUNTIME_DIR to a writable directory without spaces, or install the package at another path"
        yield Finding("error", "shim", f"{path} cannot be preloaded because of the characters in its path", remedy)
        return
    try:
        done = subprocess.run(
            ["/bin/true"], env={**os.environ, "LD_PRELOAD": str(preloaded)}, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("error", "shim", f"a test of preloading has failed: {error}", "reinstall the package")
        return
    if done.returncode or "cannot be preloaded" in done.stderr:
        yield Finding(
            "error",
            "shim",
            f"{path} cannot be preloaded: {done.stderr.strip()}",
            "reinstall the package for this platform",
        )
    else:
        yield Finding("ok", "shim", f"{path} can be preloaded")


def _coordinator(socket: str, status: dict[str, Any] | None) -> Iterator[Finding]:
    try:
        path = address.socket_path(socket)
    except address.BadAddress as error:
        yield Finding(
            "error", "socket", str(error), "set GPUSHARE_SOCKET or c.GpuShare.coordinator to a short absolute path"
        )
        return
    if status is None:
        if holder := without_coordinator.describe_silent_holder(path):
            yield Finding("warning", "coordinator", holder, without_coordinator.silence_remedy(path))
        elif problem := _socket_problem(Path(path)):
            remedy = "set GPUSHARE_SOCKET or c.GpuShare.coordinator to a path in a directory that you own"
            if Path(path).parent == address.runtime_directory():
                remedy = f"remove {Path(path).parent} or set XDG_RUNTIME_DIR"
            yield Finding("error", "socket", f"no coordinator can run at {path}: {problem}", remedy)
        else:
            yield Finding("ok", "coordinator", f"none runs at {path}; {without_coordinator.describe_sharing(socket)}")
        return
    about = status["coordinator"]
    yield Finding("ok", "coordinator", f"version {about['version']}, pid {about['pid']}, at {path}")
    if about["version"] != __version__:
        yield Finding(
            "warning",
            "coordinator",
            f"version {about['version']} of the coordinator differs from version {__version__} of this package",
            "the two versions work together; restart the coordinator when no kernel is busy",
        )
    for problem in about.get("problems", ()):
        yield Finding("warning", "coordinator", problem, "GPU sharing continues without this part")


def _configuration(known: Collection[str]) -> Iterator[Finding]:
    """Check the files that a coordinator of this user reads. `known` has the problems that a coordinator reports."""
    from ...coordinator.app import CoordinatorApp

    subject, remedy = "configuration", "correct the file; the next coordinator reads the file at its start"
    reader = CoordinatorApp()
    try:
        reader.load_config_file()
    except SystemExit:  # traitlets prints the reason
        yield Finding("error", subject, "a wrong value of c.CoordinatorApp keeps coordinators from starting", remedy)
        return
    for fault in [*reader.faults(), *reader.drop_wrong_values()]:
        if fault not in known:
            yield Finding("warning", subject, fault, remedy)


def _socket_problem(path: Path) -> str:
    """Return the reason why a coordinator cannot create a socket at `path`, or "".

    The function creates only the package's own runtime directory.
    """
    directory = path.parent
    try:
        if directory == address.runtime_directory():
            address.make_private_directory(directory)
        if path.exists() and not path.is_socket():
            return f"{path} exists and is not a socket"
        while not directory.exists():
            directory = directory.parent
    except OSError as error:
        return str(error)
    if not directory.is_dir():
        return f"{directory} is not a directory"
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return f"{directory} is not writable ({error.strerror})"
    return ""


def _locks() -> Iterator[Finding]:
    directory = address.lock_directory()
    parent = directory if directory.exists() else directory.parent
    if os.access(parent, os.W_OK | os.X_OK):
        yield Finding("ok", "locks", f"{directory} is usable")
    else:
        yield Finding(
            "error",
            "locks",
            f"{directory} is not writable",
            "give the directory mode 1777, or set GPUSHARE_LOCK_DIR for all users",
        )


def _host_memory() -> Iterator[Finding]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        yield Finding(
            "warning",
            "host memory",
            "/proc/meminfo cannot be read, so memory beyond the device has no bound",
            "give every client a memory quota",
        )
        return
    message = f"{units.format_size(free)} available for memory that does not fit the device"
    if free < _MIN_HOST_MEMORY_BYTES:
        remedy = "free host memory; meanwhile, allocations beyond the device and the host memory fail"
        yield Finding("warning", "host memory", message, remedy)
    else:
        yield Finding("ok", "host memory", message)


def _jupyter() -> Iterator[Finding]:
    names = [entry.name for entry in importlib.metadata.entry_points(group="jupyter_client.kernel_provisioners")]
    if "gpushare-provisioner" in names:
        yield Finding("ok", "provisioner", "gpushare-provisioner is installed")
    else:
        remedy = "pip install . in the folder of the project"
        yield Finding("error", "provisioner", "gpushare-provisioner is not installed", remedy)
    shared = [name for name, spec in kernelspec.installed_specs().items() if spec.shared]
    if shared:
        yield Finding("ok", "kernels", f"shared: {', '.join(shared)}")
    else:
        yield Finding("warning", "kernels", "no shared kernel is installed", "jupyter gpushare kernelspec install")


def _status(socket: str) -> dict[str, Any] | None:
    try:
        with Client(socket, timeout=3) as client:
            status: dict[str, Any] = client.request(messages.Status())
            return status
    except (CoordinatorError, ValueError):
        return None
