"""Tests of pages: only sealed ones are mapped, C and Python have the same layout, and a torn report is not read."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.wire import page as pages

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
BYTES = 4096
CLIENT_BYTES = 8192
MAGIC = 0x65726873
HEADER = Path(__file__).resolve().parents[2] / "native" / "shim" / "base" / "page.h"

Make = Callable[..., int]


@pytest.fixture
def make() -> Iterator[Make]:
    """Yield a function that makes descriptors like the shim's, and close those that are open at the end."""
    made = []

    def memfd(seals: int = SEALS, size: int = BYTES, magic: int = MAGIC, version: int = 1) -> int:
        descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, struct.pack("<II", magic, version)[:size], 0)
        if seals:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        made.append(descriptor)
        return os.dup(descriptor)

    yield memfd
    for descriptor in made:
        os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_page_is_mapped_and_closed_without_a_trace(make: Make) -> None:
    descriptor = make()
    before = open_descriptors()
    page = pages.Page(descriptor)
    page.control.memory_limit = 1 << 40
    assert os.pread(descriptor, BYTES, 0).count((1 << 40).to_bytes(8, "little")) == 1
    page.close()
    page.close()
    assert open_descriptors() == before - 1


@pytest.mark.parametrize(
    "memory",
    [
        {"seals": 0},
        {"seals": fcntl.F_SEAL_GROW},
        {"seals": fcntl.F_SEAL_SHRINK},
        {"size": 0},
        {"size": 100},
        {"magic": MAGIC + 1},
        {"version": 2},
        {"seals": SEALS | fcntl.F_SEAL_WRITE},
    ],
    ids=["unsealed", "may shrink", "may grow", "empty", "short", "foreign", "another version", "read only"],
)
@pytest.mark.parametrize("kind", [pages.Page, pages.ClientPage])
def test_invalid_page_is_refused_and_closed(make: Make, memory: dict[str, int], kind: type[pages.SharedMemory]) -> None:
    """A process could shrink an unsealed page, and the next access would end the coordinator."""
    descriptor = make(**{"size": CLIENT_BYTES, **memory})
    before = open_descriptors()
    with pytest.raises(pages.BadPage):
        kind(descriptor)
    assert open_descriptors() == before - 1


def test_other_descriptors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(BYTES))
    read, write = os.pipe()
    for descriptor in (os.open(tmp_path / "file", os.O_RDWR), read, os.open(tmp_path, os.O_RDONLY)):
        with pytest.raises(pages.BadPage):
            pages.Page(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    os.close(write)


@pytest.mark.parametrize("field", [*pages.Turn._fields, "check"])
def test_a_torn_report_is_not_read(make: Make, field: str) -> None:
    page = pages.Page(make())
    assert page.read_turn() == pages.Turn()
    turn = pages.Turn(1 << 33, 1, 2, 3, 4, pages.LEAVING, 6, 7)
    page.write_turn(turn)
    assert page.read_turn() == turn
    setattr(page.report.turn, field, getattr(page.report.turn, field) ^ 8)
    assert page.read_turn() is None
    page.close()


def test_a_page_is_shown_as_numbers(make: Make) -> None:
    page = pages.Page(make())
    page.write_permit(pages.Permit(epoch=3))
    page.report.drains[2] = 7
    page.report.devices[1].resident = 9
    values = page.values()
    assert (values["control"]["permit_epoch"], values["report"]["drains_2"], values["report"]["turn_phase"]) == (
        3,
        7,
        0,
    )
    assert (values["report"]["devices_1_resident"], values["report"]["devices_0_resident"]) == (9, 0)
    page.close()


def test_the_interrupt_sequence_wraps_around(make: Make) -> None:
    page = pages.Page(make())
    page.control.interrupt_seq = 0xFFFFFFFF
    page.interrupt()
    assert page.control.interrupt_seq == 0
    page.close()


def test_a_slot_is_cleared(make: Make) -> None:
    page = pages.ClientPage(make(size=CLIENT_BYTES))
    slot, neighbour = page.view.slots[3], page.view.slots[4]
    slot.allocated = slot.turn = slot.phase = neighbour.allocated = 99
    page.clear_slot(3)
    assert (slot.allocated, slot.turn, slot.phase, neighbour.allocated) == (0, 0, 0, 99)
    page.close()


class TestDeviceTable:
    def test_devices_are_appended(self, make: Make) -> None:
        descriptor = make(size=CLIENT_BYTES)
        page = pages.ClientPage(os.dup(descriptor))
        for uuid in ("GPU-b", "GPU-a", "GPU-b"):
            page.add_device(uuid)
        other = pages.ClientPage(descriptor)
        assert other.devices == ["GPU-b", "GPU-a"]
        assert (other.bits(["GPU-a"]), other.bits(["GPU-a", "GPU-b"])) == (2, 3)
        page.close()
        other.close()

    def test_a_full_table_and_a_long_name_are_refused(self, make: Make) -> None:
        page = pages.ClientPage(make(size=CLIENT_BYTES))
        with pytest.raises(pages.BadPage):
            page.add_device("x" * 48)
        for number in range(64):
            page.add_device(f"GPU-{number}")
        with pytest.raises(pages.BadPage):
            page.add_device("GPU-64")
        page.close()

    def test_a_table_with_nonsense_is_read_within_its_bounds(self, make: Make) -> None:
        descriptor = make(size=CLIENT_BYTES)
        os.pwrite(descriptor, b"\xff" * (CLIENT_BYTES - 12), 12)
        page = pages.ClientPage(descriptor)
        assert len(page.devices) == 64
        page.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_c_and_python_see_the_same_layout(tmp_path: Path) -> None:
    ffi, constants = pages.layout()
    parts = {
        "header": "gpushare_page_header",
        "control": "gpushare_control",
        "report": "gpushare_report",
        "control.permit": "gpushare_permit",
        "report.turn": "gpushare_turn",
    }
    seen = {
        f"offsetof(struct gpushare_page, {part}.{name})": ffi.offsetof("struct gpushare_page", *part.split("."), name)
        for part, name_of in parts.items()
        for name, _ in ffi.typeof(f"struct {name_of}").fields
    }
    for name in ("slots", "devices"):
        seen[f"offsetof(struct gpushare_client, {name})"] = ffi.offsetof("struct gpushare_client", name)
    for name in ("gpushare_page", "gpushare_client"):
        seen[f"sizeof(struct {name})"] = ffi.sizeof(f"struct {name}")
    seen["gpushare_check((uint64_t[]){1, 2, 3, 4, 5, 6}, 6)"] = pages.checksum(1, 2, 3, 4, 5, 6)
    seen["GPUSHARE_PAGE_BYTES"] = constants["GPUSHARE_PAGE_BYTES"]
    source = tmp_path / "layout.c"
    includes = f'#include <stdio.h>\n#include <stddef.h>\n#include "{HEADER}"\n'
    lines = [f'printf("%lu\\n", (unsigned long)({expression}));' for expression in seen]
    source.write_text(includes + "int main(void) { " + " ".join(lines) + " return 0; }\n")
    subprocess.run(["cc", "-o", str(tmp_path / "layout"), str(source)], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == list(seen.values())


@pytest.mark.parametrize(
    ("number", "name", "managed", "known"),
    [
        (0, "", 0, False),
        (1, "unified", 0, False),
        (2, "swap", 0, True),
        (3, "plain", 0, True),
        (3, "plain", 1, False),
        (4, "", 0, False),
    ],
)
def test_page_has_memory_mode_and_residency_precision(number: int, name: str, managed: int, known: bool) -> None:
    constants = pages.layout()[1]
    assert not name or constants[f"GPUSHARE_MEMORY_{name.upper()}"] == number
    assert (pages.memory_mode(number), pages.is_resident_exact(number, managed)) == (name, known)
