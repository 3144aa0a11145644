"""Check of the hello of a process and of the two pages that come with it."""

from __future__ import annotations

import os

from ...wire import page as pages
from ...wire.messages import Hello


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
