"""Test of coordinators and programs that are killed at random moments while clients move between devices."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from jupyter_gpushare.wire.client import CoordinatorError, Unreachable

from ..system.system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until
from ..system.test_moves import devices_of, fill, increment, move
from . import measurements
from .measurements import pause

KILL_COUNT = 100 if measurements.IS_LONG else 10  # at least
NAMES = ("a", "b", "c")


@pytest.mark.timeout(measurements.TIMEOUT_SECONDS)
def test_kills_during_moves_lose_no_client(host: SystemHost, rng: random.Random) -> None:
    """Each program that is not killed goes on with right results, and every client can move at the end."""
    host.devices = 2
    host.start_coordinator(*measurements.OPTIONS)
    programs = {name: start(host, name) for name in NAMES}
    moves: list[str] = []

    def request_move(client: str, device: str) -> None:
        with contextlib.suppress(CoordinatorError, Unreachable, OSError):
            move(host, client, device)
            moves.append(client)

    kills = 0
    while kills < KILL_COUNT or not moves:
        kills += 1
        movers = [
            threading.Thread(target=request_move, args=(name, str(rng.randrange(2)))) for name in rng.sample(NAMES, 2)
        ]
        for mover in movers:
            mover.start()
        pause(rng.uniform(0.0, 0.5))
        if rng.random() < 0.5:
            host.kill_coordinator()
            host.start_coordinator(*measurements.OPTIONS)
        else:
            name = rng.choice(NAMES)
            programs[name].end()
            programs[name] = start(host, name)
        for mover in movers:
            mover.join(3 * WAIT)
            assert not mover.is_alive()
        wait_until(lambda: sorted(host.clients()) == sorted(NAMES))
    for name, program in programs.items():
        program.stop()
        wait_until(lambda name=name: host.clients()[name]["processes"])
        (here,) = devices_of(host, name)
        (there,) = {*host.device_uuids()} - {here}
        assert move(host, name, there) == {"device": there}
        assert increment(program) == 8.0
    measurements.report_figures("move-kills", {"kills": kills, "moves": len(moves), "wrong results": 0})


def start(host: SystemHost, client: str) -> GpuProgram:
    program = host.program(client, GPUSHARE_MEMORY_MODE="swap", CUDA_VISIBLE_DEVICES="0")
    fill(program, 60 * MIB)
    program.busy()
    return program
