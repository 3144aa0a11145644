"""Devices of the simulated driver, and the processes on them."""

from __future__ import annotations

import ctypes
import json
import logging
from pathlib import Path
from typing import Any

from ...core.base.device_info import DeviceInfo

PATH = Path(__file__).resolve().parents[2] / "native" / "simcuda" / "libcuda.so.1"

log = logging.getLogger(__name__)


def devices() -> list[DeviceInfo]:
    """Return the simulated devices, with the MIG slices in place of their devices, without starting the driver.

    If the driver is not built, or a variable has a bad value, log the reason and return an empty list.
    """
    descriptions = _call("simcuda_describe")
    return [
        DeviceInfo(
            one["uuid"],
            one["name"],
            int(one["memory"]),
            simulated=True,
            parent=descriptions[one["parent"]]["uuid"] if one["parent"] >= 0 else "",
        )
        for one in descriptions
        if not one["slices"]
    ]


def processes() -> dict[str, dict[int, int | None]]:
    """Return the processes on each simulated device, with their memory in bytes."""
    uuids = [one["uuid"] for one in _call("simcuda_describe")]
    found: dict[str, dict[int, int | None]] = {}
    for process in _call("simcuda_processes"):
        found.setdefault(uuids[process["index"]], {})[process["pid"]] = process["memory"]
    return found


def fault() -> str:
    """Return the reason why the simulated driver does not work, such as a bad value of a variable, or ""."""
    try:
        _request("simcuda_describe")
    except _FAILURES as error:
        return str(error)
    return ""


_FAILURES = (OSError, AttributeError, ValueError)


def _call(function: str) -> list[dict[str, Any]]:
    """Return the result of a function of the simulated driver; empty, with a log record, if the function fails."""
    try:
        return _request(function)
    except _FAILURES as error:
        log.error("cannot call %s of the simulated driver %s: %s", function, PATH, error)
        return []


def _request(function: str) -> list[dict[str, Any]]:
    driver = ctypes.CDLL(str(PATH))
    buffer = ctypes.create_string_buffer(1 << 16)
    code = driver[function](buffer, ctypes.c_size_t(len(buffer)))
    result = json.loads(buffer.value or b"{}")
    if code < 0:
        raise OSError(result.get("error", f"{function} returned {code}"))
    return list(result)
