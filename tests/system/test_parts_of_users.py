"""Test of the parts of users with notebooks whose memory must move, under the shipped defaults."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .notebook_client import Notebook
from .system_host import MOST, SystemHost, turn_intervals, wait_until

FIRST_TURN_SECONDS = 120.0
MEASURED_SECONDS = 120.0
LOOP = "while True: work(0.05)"


@pytest.fixture
def notebooks(
    host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Notebook]]:
    """Return five notebooks of ada and one of bob, no two of which fit on the device. Sockets identify the users."""
    sockets = {user: f"{host.folder}/{user}/c.sock" for user in ("ada", "bob")}
    for user in sockets:
        (host.folder / user).mkdir(mode=0o700)
    host.start_coordinator("--GpuShare.identity=socket", f"--GpuShare.sockets={sockets}")
    made: dict[str, list[Notebook]] = {user: [] for user in sockets}
    for user in (*5 * ["ada"], "bob"):
        monkeypatch.setenv("GPUSHARE_SOCKET", sockets[user])
        made[user].append(start())
        made[user][-1].run(host.allocation(MOST))
    monkeypatch.setenv("GPUSHARE_SOCKET", host.socket)
    return made


def held_since(host: SystemHost, moment: int, notebooks: dict[str, list[Notebook]]) -> dict[str, float]:
    """Return the seconds in which the notebooks of each user have had the device since that time.

    The time between launches of one turn counts, because a busy processor delays launches.
    """
    owners = [(user, one) for user, mine in notebooks.items() for one in mine]
    launches = [[e for e in host.launches(one.pid) if e.begin_ns >= moment] for _, one in owners]
    held = dict.fromkeys(notebooks, 0.0)
    for number, begin, end in turn_intervals(*launches):
        held[owners[number][0]] += (end - begin) / 1e9
    return held


@pytest.mark.exclusive
@pytest.mark.nightly  # the parts hold over many turns of the shipped settings
@pytest.mark.timeout(600)
def test_five_notebooks_of_one_user_get_as_much_as_one_of_another(
    host: SystemHost, notebooks: dict[str, list[Notebook]]
) -> None:
    everyone = [one for mine in notebooks.values() for one in mine]
    began = time.monotonic_ns()
    loops = [one.start(LOOP) for one in everyone]
    wait_until(lambda: host.worked_since(began, *(one.pid for one in everyone)), FIRST_TURN_SECONDS)
    measured_from = time.monotonic_ns()
    time.sleep(MEASURED_SECONDS)  # the length of the window, in which only the parts are compared
    held = held_since(host, measured_from, notebooks)
    assert host.worked_since(measured_from, *(one.pid for one in everyone))
    # the window cuts long turns, and without regard to users this part would be a sixth
    assert held["bob"] / sum(held.values()) == pytest.approx(0.5, abs=0.1), held
    for one, loop in zip(everyone, loops, strict=True):
        one.interrupt()
        assert one.finish(loop)["ename"] == "KeyboardInterrupt"
