"""What a process brings with its hello: pages and lock files, checked before anything of them is used."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..wire import page as pages
from ..wire.messages import Hello
from . import locks


class BadHello(ValueError):
    """A hello that cannot be accepted; the message says why."""


class Brought(NamedTuple):
    """The page of the process, the client page, and per device of the hello a descriptor of its lock file."""

    page: pages.Page
    client_page: pages.ClientPage
    locks: list[int]

    @classmethod
    def with_hello(cls, hello: Hello, descriptors: list[int]) -> Brought:
        """Takes ownership of `descriptors`. Raises BadHello, with all of them closed."""
        given = list(descriptors)
        if len(given) != 2 + len(hello.devices) or not hello.devices:
            _close(given)
            raise BadHello(
                f"hello for {len(hello.devices)} devices came with {len(given)} descriptors: "
                "allowed are one or more devices, with the page, the client page and one lock per device"
            )
        page = client_page = None
        try:
            page = pages.Page(given.pop(0))
            client_page = pages.ClientPage(given.pop(0))
            for device, descriptor in zip(hello.devices, given, strict=True):
                locks.check(descriptor, device.uuid)
        except (pages.BadPage, locks.BadLock) as error:
            for mapped in (page, client_page):
                if mapped:
                    mapped.close()
            _close(given)
            raise BadHello(str(error)) from error
        return cls(page, client_page, given)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
