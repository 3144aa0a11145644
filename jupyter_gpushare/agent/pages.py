"""Page and client page, as a process makes them and maps them."""

from __future__ import annotations

import fcntl
import os

from ..wire import page as pages
from .rule import CONSTANTS, ffi

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
SIZES = {"gpushare_page": CONSTANTS["GPUSHARE_PAGE_BYTES"], "gpushare_client": CONSTANTS["GPUSHARE_CLIENT_BYTES"]}
SLOTS = CONSTANTS["GPUSHARE_SLOTS"]
SLOT_WORDS = ffi.sizeof("struct gpushare_slot") // 4
SLOTS_OFFSET = ffi.offsetof("struct gpushare_client", "slots")
PHASE_WORD = ffi.offsetof("struct gpushare_slot", "phase") // 4

_PERMIT_OFFSET = ffi.offsetof("struct gpushare_page", "control")
PERMIT = slice(_PERMIT_OFFSET, _PERMIT_OFFSET + ffi.sizeof("struct gpushare_permit"))


def create_memfd(struct: str, seals: int = SEALS, size: int | None = None, magic: int | None = None) -> int:
    """Return a memfd for `gpushare_page` or `gpushare_client` as the shim makes it.

    Tests pass other `seals`, `size` (bytes) or `magic` to get an invalid one.
    """
    size = SIZES[struct] if size is None else size
    descriptor = os.memfd_create(struct, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if size >= 16:
        header = ffi.new("uint32_t[4]")
        header[0] = CONSTANTS["GPUSHARE_PAGE_MAGIC"] if magic is None else magic
        header[1] = CONSTANTS["GPUSHARE_PAGE_VERSION"]
        header[2] = size
        header[3] = os.getpid() if struct == "gpushare_page" else 0
        os.pwrite(descriptor, bytes(ffi.buffer(header)), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Page(pages.Page):
    """Page of a process for one connection. A page made from the page `before` keeps all its fields but the permit."""

    def __init__(self, before: Page | None = None) -> None:
        super().__init__(create_memfd("gpushare_page"))
        if before:
            self.view[0] = before.view[0]
            self.control.permit = ffi.new("struct gpushare_permit *")[0]

    def permit_bytes(self) -> bytes:
        return self._map[PERMIT]


class ClientPage(pages.ClientPage):
    """Page of a client, made by its first process (`new`) or received with the message "join"."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.slots = self.view.slots
        words = memoryview(self._map)[SLOTS_OFFSET : SLOTS_OFFSET + SLOTS * SLOT_WORDS * 4].cast("I")
        self._phases: memoryview | None = words[PHASE_WORD::SLOT_WORDS]

    @classmethod
    def new(cls, turn: int, devices: tuple[str, ...]) -> ClientPage:
        """Return the page of a client without other processes."""
        page = cls(create_memfd("gpushare_client"))
        page.view.turn = turn
        for uuid in devices:
            page.add_device(uuid)
        return page

    def refresh_devices(self) -> list[str]:
        """Return the UUIDs in the table; read it again if the coordinator has appended a device."""
        if self.view.device_count != len(self.devices):
            self.devices = self.table()
        return self.devices

    def phases(self) -> list[int]:
        """Return the phase of each slot."""
        assert self._phases is not None
        return self._phases.tolist()

    def close(self) -> None:
        self._phases = self.slots = None
        super().close()
