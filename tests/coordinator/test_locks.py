"""The locks that back a grant: all of its devices or none, and none is let go of by mistake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.coordinator import locks

from .fake_process import lock_file, outsider
from .test_turns import locked

DEVICES = ("GPU-l1", "GPU-l2")


@pytest.fixture
def make() -> Iterator[Callable[[], locks.Locks]]:
    made = []

    def client() -> locks.Locks:
        made.append(locks.Locks())
        for uuid in DEVICES:
            made[-1].add(uuid, lock_file(uuid))
        return made[-1]

    yield client
    for held in made:
        held.close()


def test_all_or_none(make: Callable[[], locks.Locks]) -> None:
    client = make()
    with outsider(DEVICES[1]):
        assert not client.acquire(DEVICES)
        assert not locked(DEVICES[0])
    assert client.acquire(DEVICES)
    assert [locked(uuid) for uuid in DEVICES] == [True, True]
    assert not make().acquire(DEVICES)
    client.release(DEVICES)
    assert [locked(uuid) for uuid in DEVICES] == [False, False]


def test_what_was_locked_before_stays_locked_when_more_is_refused(make: Callable[[], locks.Locks]) -> None:
    client = make()
    assert client.acquire(DEVICES[:1])
    with outsider(DEVICES[1]):
        assert not client.acquire(DEVICES)
    assert locked(DEVICES[0]), "a process of the client runs there"
    client.release(DEVICES)
    assert not locked(DEVICES[0])


def test_closing_unlocks_nothing_that_others_hold_open(make: Callable[[], locks.Locks]) -> None:
    """A process that is not quite dead still holds its device."""
    client = locks.Locks()
    descriptor = lock_file(DEVICES[0])
    client.add(DEVICES[0], os.dup(descriptor))
    assert client.acquire(DEVICES[:1])
    client.close()
    assert locked(DEVICES[0])
    os.close(descriptor)
    assert not locked(DEVICES[0])


class TestTogether:
    """Clients of one coordinator on one device, and another coordinator that looks on."""

    def test_who_joins_needs_nobody_to_let_go(self, make: Callable[[], locks.Locks]) -> None:
        first, second, elsewhere = make(), make(), make()
        device = DEVICES[:1]
        assert first.acquire(device, locks.Mode.SHARED)
        assert first.shared(device)
        assert second.acquire(device, locks.Mode.JOIN)
        assert not elsewhere.acquire(device)
        assert not elsewhere.acquire(device, locks.Mode.SHARED), "its first one needs the device for itself"
        first.release(device)
        assert not elsewhere.acquire(device)
        second.release(device)
        assert elsewhere.acquire(device)

    def test_nobody_joins_who_has_the_device_for_itself(self, make: Callable[[], locks.Locks]) -> None:
        alone, other = make(), make()
        assert alone.acquire(DEVICES[:1])
        assert not other.acquire(DEVICES[:1], locks.Mode.JOIN)
        assert not alone.shared(DEVICES[:1])

    def test_a_lock_that_is_held_is_kept_as_it_is(self, make: Callable[[], locks.Locks]) -> None:
        """Another coordinator finds it so: changing it would let go of it for a moment, with the gate open."""
        one, other = make(), make()
        assert one.acquire(DEVICES[:1], locks.Mode.SHARED)
        assert other.acquire(DEVICES[:1], locks.Mode.JOIN)
        assert one.acquire(DEVICES[:1], locks.Mode.KEEP)
        assert one.shared(DEVICES[:1])
        assert locked(DEVICES[0])

    def test_one_joins_only_where_another_has_a_shared_lock(self, make: Callable[[], locks.Locks]) -> None:
        """Where nobody has, another coordinator's clients may."""
        first, second, elsewhere = make(), make(), make()
        assert first.acquire(DEVICES[:1], locks.Mode.SHARED)
        assert elsewhere.acquire(DEVICES[1:], locks.Mode.SHARED)
        assert not second.acquire(DEVICES, locks.Mode.SHARED, DEVICES[:1])
        elsewhere.release(DEVICES[1:])
        assert second.acquire(DEVICES, locks.Mode.SHARED, DEVICES[:1])
