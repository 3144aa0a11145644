"""Costs of mode `swap` on a device: the driver's calls for the mapping of a block, and pinned copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from ...launch import kernel_env
from .finding import Finding

_BLOCK_BYTES = 64 << 20  # as MAX_BLOCK_BYTES in native/shim/memory/swap/blocks.h
_TIMES = 10
_TIMEOUT_SECONDS = 60


def swap_costs(index: int, simulate: bool) -> Iterator[Finding]:
    """Measure in a process of its own, which takes a context and 64 MiB of the device for a moment."""
    subject = f"device {index}"
    commands = f"mappings {_BLOCK_BYTES} {_TIMES}\ncopies {_BLOCK_BYTES} {_TIMES}\n"
    argv = [sys.executable, "-m", "jupyter_gpushare.bench.support.memory_program"]
    try:
        done = subprocess.run(
            argv,
            env=_environment(index, simulate),
            input=commands,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        _, mappings, copies = (json.loads(line) for line in done.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().rpartition("\n")[2]
        message = f"the costs of memory mode swap could not be measured: {reason}"
        yield Finding("warning", subject, message, "free memory of the device, and try again")
        return
    calls = ", ".join(f"{name} {seconds * 1e6:.0f} µs" for name, seconds in mappings.items())
    out, back = (_BLOCK_BYTES / copies[way] for way in ("to_host", "to_device"))
    moved = f"{out * 1e3:.1f} ms to the host and {back * 1e3:.1f} ms to the device"
    simulated = ", simulated" if simulate else ""
    message = f"memory mode swap maps 64 MiB by these calls: {calls}; pinned copies of 64 MiB take {moved}{simulated}"
    if sum(mappings.values()) <= out + back:
        yield Finding("ok", subject, message)
    else:
        remedy = "use memory mode unified (docs/explanation/memory.md); in mode swap, changes of turns take longer"
        yield Finding("warning", subject, f"{message}; the mappings take longer than the copies", remedy)


def _environment(index: int, simulate: bool) -> dict[str, str]:
    """Return an environment in which the device is the first one, and no shim acts."""
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    device = visible[index] if index < len(visible) else str(index)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": device, "GPUSHARE_DISABLE": "1"}
    if simulate:
        env |= {"GPUSHARE_SIMULATE": "1", "LD_LIBRARY_PATH": str(kernel_env.SIMULATED_DRIVER.parent)}
    return env
