"""Tests of requests that cannot be granted, with the shipped defaults: each has a clear error and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .notebook_client import Notebook
from .system_host import SystemHost

CLIENT = "the client of the notebook"
COMMANDS = [
    (("config", "devices.7.policy", "fair"), "devices: '7' does not exist"),
    (("config", "devices.0.colour", "red"), "setting 'colour' is unknown"),
    (("quota", CLIENT, "share=0.7"), "has 0.5 of its share left"),
    (("move", CLIENT, "7"), "device='7' does not exist"),
    (("move", CLIENT, " "), "the name of a device is empty: allowed are a UUID, an index and a name"),
    (("device", "GPU-z", "--fail", "x"), "has no device 'GPU-z'"),
]
LINES = [("%gpushare share=0.7", "has 0.5 of its share left"), ("%gpushare move 7", "device='7' does not exist")]


def test_bad_input_changes_nothing(host: SystemHost, start: Callable[..., Notebook]) -> None:
    """The device has half of its share left for the notebook. The name of the device has the index that is wrong."""
    host.config = host.folder / "devices.conf"
    host.config.write_text("[device]\nname = Simulated A700\nmemory = 256MiB\n")
    host.start_coordinator()
    notebook = start()
    host.program("other", "share=0.5")

    def state() -> tuple[Any, ...]:
        status = host.status()
        (client,) = [one for one in status["clients"] if one["id"] == notebook.client_id]
        return status["config"], client["quota"], client["devices"], client["notes"], status["devices"][0]["failed"]

    before = state()
    for words, error in COMMANDS:
        done = host.command(*(notebook.client_id if word == CLIENT else word for word in words))
        assert done.returncode != 0 and error in done.stderr, done
        assert state() == before, words
    for line, error in LINES:
        reply = notebook.finish(notebook.start(line))
        assert error in reply.get("evalue", "") + notebook.text + notebook.errors, line
        assert state() == before, line
    notebook.run("work(0.1)")
