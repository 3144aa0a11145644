"""Episodes in which clients move to other devices and hibernate, at the request of users and by the policies.

These clients have one process on one device. All choices come from generators of their own, so that an episode without
moves keeps its seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.handlers import client_moves
from jupyter_gpushare.core.interface import events as ev

from ..support.turn_audit import SimulatedClient, Violation
from ..support.virtual_clock import EventOwner
from .coordinator import CoordinatorUnderTest, NoNvml
from .episode import Episode
from .external_actors import NotebookKernel
from .moving_process import MAX_ROOM_WAIT_SECONDS, MovingProcess
from .simulated_host import FaultHost

CONTEXT_BYTES = 64 << 20  # of a process, which leave the device with a process that hibernates


class DriverFigures(NoNvml):
    """NVML's figures of the memory on the devices of a host."""

    def __init__(self, host: FaultHost) -> None:
        super().__init__()
        self._host = host

    def sample(self) -> None:
        pass

    def processes(self, uuid: str) -> dict[int, int | None]:
        agents = [agent for agent in self._host.agents() if uuid in agent.devices and not agent.hibernated]
        return {agent.pid: CONTEXT_BYTES + int(agent.page.report.resident) for agent in agents}

    def memory_used(self, uuid: str) -> int:
        return sum(size or 0 for size in self.processes(uuid).values())


class MovingUsers(EventOwner):
    """Users of a host who ask for moves of random clients to random devices."""

    def __init__(self, host: FaultHost, seed: int) -> None:
        super().__init__()
        self.host, self.random = host, Random(seed)
        self._ask()

    def _ask(self) -> None:
        host = self.host
        host.clock.schedule(host.clock.now + self.random.expovariate(2.0), self, self._ask)
        if host.clients and host.coordinator:
            client = self.random.choice(list(host.clients.values()))
            host.send_user_request(client, {"type": "move", "device": self.random.choice(host.devices)})


class SlowNotebook(NotebookKernel):
    """Notebook kernel with a long pause after each report of a cell."""

    def _schedule_cell(self) -> None:
        self.clock.schedule(self.clock.now + self.random.expovariate(0.3), self, self._cell, self.connection)


class EpisodeWithMoves(Episode):
    """Episode with moves and hibernation."""

    options = " --moves"

    def __init__(self, seed: int, *what: Any) -> None:
        super().__init__(seed, *what)
        self._move_random = Random(seed)

    def _make_host(self, folder: Path) -> FaultHost:
        host = super()._make_host(folder)
        host.process_type = MovingProcess
        self._uses_swap = self._uses_swap or self._move_random.random() < 0.8
        host.settings.traits.hibernate_after = self._move_random.choice((0.0, 1.0, 1.0))
        host.settings.traits.wait_move = self._move_random.choice((0.0, 0.1, 3.0))
        start = host.start_coordinator

        def start_with_devices() -> CoordinatorUnderTest:
            """Start a coordinator that finds the devices itself, as by NVML."""
            coordinator = start()
            coordinator.engine.moves._nvml = DriverFigures(host)
            for uuid in host.devices:
                info = DeviceInfo(uuid, "Simulated GPU", host.memory)
                coordinator.engine.dispatcher.dispatch(ev.DeviceFound(info))
            return coordinator

        host.start_coordinator = start_with_devices  # type: ignore[method-assign]
        return host

    def _make_client(self, host: FaultHost, number: int) -> SimulatedClient:
        client = super()._make_client(host, number)
        client.devices, client.process_count = client.devices[:1], 1
        if self._uses_swap:
            client.profile.uses_swap, client.profile.max_bytes = True, 6 << 30
        if self._move_random.random() < 0.5:  # a notebook that pauses for long enough to hibernate
            client.profile.think_seconds, client.profile.calls = 6.0, 2
            host.notebooks.append(SlowNotebook(client))
        return client

    def _run_storms(self, host: FaultHost) -> None:
        self.users = MovingUsers(host, self.seed)
        super()._run_storms(host)

    def _calm(self, host: FaultHost) -> None:
        self.users.alive = False
        super()._calm(host)
        self._check_places(host)
        self.users = MovingUsers(host, self.seed)

    def _answer_bound(self, host: FaultHost) -> float:
        """Return the bound of answers, with the time for which a move may wait for its turn, and then for its room."""
        return super()._answer_bound(host) + client_moves._MAX_WAIT_SECONDS + MAX_ROOM_WAIT_SECONDS

    def _check_places(self, host: FaultHost) -> None:
        """Check that the scheduler has the right device of each process, and the right hibernated processes."""
        assert host.coordinator is not None
        handles = {handle.page.inode: handle for handle in host.coordinator.engine.state.process_handles.values()}
        processes = host.coordinator.engine.state.scheduler.processes
        for agent in host.agents():
            process = processes[handles[agent.page.inode].number]
            if (process.devices, bool(process.hibernated)) != (agent.devices, bool(agent.hibernated)):
                raise Violation(f"{agent.describe()}, {agent.hibernated} away, and the scheduler has {process}")
