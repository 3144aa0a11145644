"""Fixtures of tests/provisioner, and a page with widgets in place of a front end."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..provisioner.conftest import coordinator, jupyter, no_coordinator, own_device, start, wait_until_fixture

__all__ = ["coordinator", "jupyter", "no_coordinator", "own_device", "start", "wait_until_fixture"]


class Page:
    """Front end with the models of a kernel's widgets, and with the actions of its user."""

    def __init__(self, notebook: Any) -> None:
        self.models: dict[str, dict[str, Any]] = {}  # open models by id
        self.updates = 0
        self._kernel = notebook.manager.blocking_client()
        self._kernel.start_channels()
        self._kernel.wait_for_ready(timeout=60)

    def close(self) -> None:
        self._kernel.stop_channels()

    def wait_until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Receive messages of the kernel until `condition` is true, and fail after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {self.text}"
            self._receive()
        return value

    @property
    def text(self) -> str:
        """HTML of all models."""
        return "\n".join(m["value"] for m in self.models.values() if m["_model_name"] == "HTMLModel")

    def wait_for_text(self, *words: str) -> None:
        self.wait_until(lambda: all(word in self.text for word in words))

    def model(self, name: str, description: str = "") -> str:
        """Return the id of the last model with this name and description."""
        found = [
            identity
            for identity, state in self.models.items()
            if state["_model_name"] == name and state.get("description", "") == description
        ]
        return found[-1] if found else ""

    def enabled_buttons(self) -> set[str]:
        """Return the enabled buttons."""
        return {
            state["description"]
            for state in self.models.values()
            if state["_model_name"] == "ButtonModel" and not state["disabled"]
        }

    def _enabled_text_field(self, name: str) -> str:
        identity = self.model("TextModel", name)
        return "" if not identity or self.models[identity]["disabled"] else identity

    def press(self, button: str) -> None:
        """Press a button as soon as it is enabled."""
        self.wait_until(lambda: button in self.enabled_buttons())
        self._send(self.model("ButtonModel", button), {"method": "custom", "content": {"event": "click"}})

    def fill(self, field: str, text: str) -> None:
        """Set the text of a field as soon as the field is enabled."""
        self.set(self.wait_until(lambda: self._enabled_text_field(field)), value=text)

    def set(self, identity: str, **state: Any) -> None:
        self._send(identity, {"method": "update", "state": state, "buffer_paths": []})

    def shut(self, identity: str) -> None:
        """Close a model in the front end."""
        del self.models[identity]
        self._post("comm_close", {"comm_id": identity, "data": {}})

    def _send(self, identity: str, data: dict[str, Any]) -> None:
        assert identity in self.models
        self._post("comm_msg", {"comm_id": identity, "data": data})

    def _post(self, kind: str, content: dict[str, Any]) -> None:
        self._kernel.shell_channel.send(self._kernel.session.msg(kind, content))

    def _receive(self) -> None:
        try:
            message = self._kernel.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            return
        content = message["content"]
        if message["msg_type"] == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"]["state"])
        elif message["msg_type"] == "comm_close":
            self.models.pop(content["comm_id"], None)
        elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
            self.models[content["comm_id"]].update(content["data"]["state"])
            self.updates += 1


@pytest.fixture
def page() -> Iterator[Callable[[Any], Page]]:
    """Return a function that opens a page on a notebook."""
    pages: list[Page] = []

    def open_one(notebook: Any) -> Page:
        pages.append(Page(notebook))
        return pages[-1]

    yield open_one
    for one in pages:
        one.close()
