"""Checks of the hello of a process, of the two pages that come with it, and of the devices that it reports."""

from __future__ import annotations

import os
from collections.abc import Container

from ...wire import page as pages
from ...wire.messages import Hello
from ..transport.connection import Connection
from ..transport.rate_limits import LimitExceeded

MAX_UNVERIFIED_DEVICES = 64  # devices per user; they are kept until the coordinator ends


class InvalidHandshake(ValueError):
    """Error for a hello that the coordinator cannot accept; the message has the reason."""


def open_pages(hello: Hello, descriptors: list[int]) -> tuple[pages.Page, pages.ClientPage]:
    """Return the page of the process and the client page.

    Takes ownership of `descriptors`. Raises InvalidHandshake, with all descriptors closed.
    """
    if len(descriptors) != 2 or not hello.devices:
        _close_all(descriptors)
        raise InvalidHandshake(
            f"hello for {len(hello.devices)} devices came with {len(descriptors)} descriptors: "
            "allowed are one or more devices, with the page and the client page"
        )
    try:
        page = pages.Page(descriptors[0])
    except pages.BadPage as error:
        _close_all(descriptors[1:])
        raise InvalidHandshake(str(error)) from error
    try:
        return page, pages.ClientPage(descriptors[1])
    except pages.BadPage as error:
        page.close()
        raise InvalidHandshake(str(error)) from error


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class UnverifiedDevices:
    """Number of each user's unverified devices, which only processes have reported, such as invented devices."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def check(self, connection: Connection, hello: Hello, known: Container[str]) -> None:
        """Raise LimitExceeded if the hello has too many new devices. Devices in an admin's hello count as verified."""
        new = {report.uuid for report in hello.devices if report.uuid not in known}
        if new and not connection.admin and self._counts.get(connection.user, 0) + len(new) > MAX_UNVERIFIED_DEVICES:
            raise LimitExceeded(
                f"processes of this user have reported {MAX_UNVERIFIED_DEVICES} devices that the coordinator cannot "
                "find, the most a user may have: use the devices of this host"
            )

    def add(self, connection: Connection) -> bool:
        """Count a new device in a hello. Return whether the device is unverified."""
        if connection.admin:
            return False
        self._counts[connection.user] = self._counts.get(connection.user, 0) + 1
        return True
