"""The page: only sealed ones are mapped, C and Python see the same words, the futex wakes who sleeps on the gate."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.wire import page as pages

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
BYTES = 4096
MAGIC = 0x65726873
FUTEX_WAIT = 0
HEADER = Path(__file__).resolve().parents[2] / "native" / "shim" / "page.h"

Make = Callable[..., int]


@pytest.fixture
def make() -> Iterator[Make]:
    """Descriptors like the shim's; what is left open is closed."""
    made = []

    def memfd(seals: int = SEALS, size: int = BYTES, magic: int = MAGIC) -> int:
        descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, magic.to_bytes(4, "little")[:size], 0)
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
    page.orders.memory_limit = 1 << 40
    assert os.pread(descriptor, BYTES, 0).count((1 << 40).to_bytes(8, "little")) == 1
    page.close()
    page.close()
    assert open_descriptors() == before - 1


@pytest.mark.parametrize(
    ("seals", "size", "magic"),
    [
        (0, BYTES, MAGIC),
        (fcntl.F_SEAL_GROW, BYTES, MAGIC),
        (fcntl.F_SEAL_SHRINK, BYTES, MAGIC),
        (SEALS, 0, MAGIC),
        (SEALS, 100, MAGIC),
        (SEALS, BYTES, MAGIC + 1),
        (SEALS | fcntl.F_SEAL_WRITE, BYTES, MAGIC),
    ],
    ids=["unsealed", "may shrink", "may grow", "empty", "short", "foreign", "read only"],
)
def test_what_is_no_page_is_refused_and_closed(make: Make, seals: int, size: int, magic: int) -> None:
    """Unsealed, it could be shrunk under us: the next access would end the coordinator."""
    descriptor = make(seals, size, magic)
    before = open_descriptors()
    with pytest.raises(pages.BadPage):
        pages.Page(descriptor)
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


def test_a_larger_page_of_a_newer_process_is_taken(make: Make) -> None:
    page = pages.Page(make(size=4 * BYTES))
    page.open_gate(1)
    page.close()


# Of each version, the last field of each block that it added to, and where it is: for ever.
LAST = {
    1: [("header", "pid", 12), ("orders", "quota_set", 180), ("report", "refused", 1088 + 144)],
    2: [("orders", "hand_on", 188)],
    3: [("orders", "hears", 200)],
    4: [("orders", "no_room", 204), ("report", "unused_report", 1088 + 188)],
    5: [("orders", "inspect_seq", 208)],
    6: [("orders", "spacing_ppm", 212), ("report", "drains", 1088 + 232)],
    7: [("orders", "exempt_ns", 224), ("report", "asked_managed", 1088 + 284)],
}


@pytest.mark.parametrize(("version", "fields"), LAST.items())
def test_what_older_versions_know_stays_where_it_is(version: int, fields: list[tuple[str, str, int]]) -> None:
    ffi, constants = pages.layout()
    assert constants["GPUSHARE_PAGE_VERSION"] == max(LAST)
    for block, field, offset in fields:
        assert ffi.offsetof("struct gpushare_page", block, field) == offset, field


def test_the_gate_word(make: Make) -> None:
    page = pages.Page(make())
    assert (page.orders.gate, page.gate_open) == (0, False)
    page.open_gate(5)
    assert (page.orders.gate, page.gate_open) == (5 << 2 | 1, True)
    page.close_gate(5)
    assert (page.orders.gate, page.gate_open) == (5 << 2 | 2, False)
    page.open_gate((1 << 30) - 1)
    assert page.orders.gate == 0xFFFFFFFD
    page.close()


def test_the_interrupt_sequence_wraps_around(make: Make) -> None:
    page = pages.Page(make())
    page.interrupt()
    assert page.orders.interrupt_seq == 1
    page.orders.interrupt_seq = 0xFFFFFFFF
    page.interrupt()
    assert page.orders.interrupt_seq == 0
    page.close()


class Sleeper(threading.Thread):
    """Sleeps on the gate word like a thread of the shim, through a mapping of its own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._map = mmap.mmap(descriptor, BYTES)
        word = ctypes.c_uint32.from_buffer(self._map, pages.layout()[0].offsetof("struct gpushare_page", "orders"))
        self._address = ctypes.addressof(word)
        self._word = word
        self.expected = word.value
        self.tid = 0
        self.result = None

    def run(self) -> None:
        class Timespec(ctypes.Structure):
            _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

        self.tid = threading.get_native_id()
        libc = ctypes.CDLL(None, use_errno=True)
        futex = {"x86_64": 202, "aarch64": 98}[platform.machine()]
        self.result = libc.syscall(
            ctypes.c_long(futex),
            ctypes.c_void_p(self._address),
            ctypes.c_int(FUTEX_WAIT),
            ctypes.c_uint32(self.expected),
            ctypes.byref(Timespec(10, 0)),
            None,
            0,
        )

    def asleep(self) -> bool:
        """Whether it is inside the futex call on the gate."""
        call = Path(f"/proc/self/task/{self.tid}/syscall").read_text().split() if self.tid else []
        return len(call) > 1 and int(call[1], 16) == self._address


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of the system call")
@pytest.mark.parametrize("action", ["open", "interrupt"])
def test_threads_that_sleep_on_the_gate_are_woken(make: Make, action: str) -> None:
    descriptor = make()
    sleepers = [Sleeper(descriptor) for _ in range(3)]
    page = pages.Page(descriptor)
    for sleeper in sleepers:
        sleeper.start()
    deadline = time.monotonic() + 5
    while not all(sleeper.asleep() for sleeper in sleepers):
        assert time.monotonic() < deadline
    woken = time.monotonic()
    if action == "open":
        page.open_gate(1)
    else:
        page.interrupt()
    for sleeper in sleepers:
        sleeper.join(5)
    assert time.monotonic() - woken < 3
    assert [sleeper.result for sleeper in sleepers] == [0, 0, 0]
    page.close()


def test_closing_wakes_nobody(make: Make) -> None:
    """The agent learns of it by the doorbell; waiting threads have nothing to do."""
    descriptor = make()
    sleeper = Sleeper(descriptor)
    page = pages.Page(descriptor)
    sleeper.start()
    deadline = time.monotonic() + 5
    while not sleeper.asleep():
        assert time.monotonic() < deadline
    page.close_gate(1)
    page.wake()
    sleeper.join(5)
    assert sleeper.result == 0
    page.close()


def test_a_slot_is_cleared(make: Make) -> None:
    page = pages.ClientPage(make())
    page.view.allocated[3] = 99
    page.clear_slot(3)
    assert page.view.allocated[3] == 0
    page.close()


def test_a_gate_that_is_open_out_of_reach(make: Make) -> None:
    """Another process holds a record lock on the byte of its slot; the kernel drops it when that process ends."""
    descriptor = make()
    page = pages.ClientPage(descriptor)
    assert not page.any_gate_open()
    holds = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1, 7); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", holds, str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    assert page.any_gate_open()
    holder.kill()
    holder.communicate()
    assert not page.any_gate_open()
    page.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_c_and_python_see_the_same_layout(tmp_path: Path) -> None:
    ffi, constants = pages.layout()
    structs = {name: ffi.typeof(f"struct {name}") for name in ("gpushare_page", "gpushare_client")}
    lines = []
    expected = []
    parts = {"header": "gpushare_page_header", "orders": "gpushare_orders", "report": "gpushare_report"}
    for part, struct in parts.items():
        for name, _ in ffi.typeof(f"struct {struct}").fields:
            lines.append(f'printf("%zu\\n", offsetof(struct gpushare_page, {part}.{name}));')
            expected.append(ffi.offsetof("struct gpushare_page", part, name))
    for name in structs:
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        expected.append(ffi.sizeof(f"struct {name}"))
    lines.append('printf("%d\\n", GPUSHARE_PAGE_BYTES);')
    expected.append(constants["GPUSHARE_PAGE_BYTES"])
    source = tmp_path / "layout.c"
    includes = f'#include <stdio.h>\n#include <stddef.h>\n#include "{HEADER}"\n'
    source.write_text(includes + "int main(void) { " + " ".join(lines) + " return 0; }\n")
    subprocess.run(["cc", "-o", str(tmp_path / "layout"), str(source)], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == expected


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
def test_the_memory_mode_and_whether_what_is_resident_is_known(
    number: int, name: str, managed: int, known: bool
) -> None:
    constants = pages.layout()[1]
    assert not name or constants[f"GPUSHARE_MEMORY_{name.upper()}"] == number
    assert (pages.memory_mode(number), pages.knows_resident(number, managed)) == (name, known)
