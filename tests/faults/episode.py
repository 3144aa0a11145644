"""Episode of one seed: a random host with clients, then storms of faults with calm after each, and checks."""

from __future__ import annotations

import gc
import hashlib
import itertools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from jupyter_gpushare import units
from jupyter_gpushare.agent.link import CONNECTED
from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings, parse_quota
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface.settings import Settings

from ..support.memory_requests import ANSWER_TIMEOUT_SECONDS
from ..support.simulated_program import WorkloadProfile
from ..support.turn_audit import SimulatedClient
from ..support.virtual_clock import EventOwner
from .coordinator import CoordinatorUnderTest, simulated_kernel
from .external_actors import NotebookKernel, SnapshotSubscriber
from .fault_injection import FaultInjector
from .invariants import MAX_IDLE_SECONDS, IdleWatch, resource_leaks, state_mismatches, wrong_refusals
from .simulated_host import FaultHost, Violation

STORM_COUNT = 2
STORM_SECONDS = (2.0, 8.0)
MIN_CALM_SECONDS = 3.0
CHECK_EVERY_EVENTS = 16  # events of the coordinator between two checks of its whole state


@dataclass
class Outcome:
    """Outcome of an episode. `digest` covers all events, so two runs of a seed have the same one."""

    seed: int
    events: int = 0
    turns: int = 0
    coordinators: int = 0
    digest: str = ""
    longest_wait: float = 0.0  # seconds from the end of the faults
    faults: Counter[str] = field(default_factory=Counter)
    failure: str = ""


class CoordinatorLog(logging.Handler):
    """Log handler that records a bug for each record above WARNING, because no fault may cause one."""

    def __init__(self, host: FaultHost) -> None:
        super().__init__(logging.WARNING)
        self._host = host

    def emit(self, record: logging.LogRecord) -> None:
        text = f"coordinator: {record.levelname} {record.getMessage()}"
        self._host.log_event(text)
        if record.levelno > logging.WARNING:
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
            self._host.bugs.append(f"{text}\n{trace}")


class ShortOverrunSettings(LiveSettings):
    """Settings with which a drain of more than 0.2 s is an overrun."""

    def core_settings(self) -> Settings:
        return replace(super().core_settings(), overrun_after=0.2, evicting_overrun_after=0.3)


class Episode:
    """Run of the fault tests with one seed. `options`: of the command that repeats the run."""

    options = ""

    def __init__(self, seed: int, kinds: tuple[str, ...] | None = None, check_every: int = CHECK_EVERY_EVENTS) -> None:
        self.seed, self._kinds, self._check_every = seed, kinds, check_every
        self.random = Random(seed)
        self.outcome = Outcome(seed)
        self._digest = hashlib.blake2b(digest_size=8)
        self._storm: FaultInjector | None = None
        self._state: list[str] = []
        self._event_count = 0

    def run(self) -> Outcome:
        """Run the episode. The outcome's `failure` has a failed check and the command that repeats it."""
        with tempfile.TemporaryDirectory(prefix="gpushare-faults-") as folder:
            host = self.host = self._make_host(Path(folder))
            try:
                with self._log(), simulated_kernel(host.is_stopped, host.open_pidfd, host.cgroups_of):
                    try:
                        self._run_storms(host)
                    except Exception:
                        self._state = host.describe()
                        raise
                    finally:
                        self._record_counts(host)
                        if self._storm:
                            self._storm.end()
                        host.close()
                    left = len(os.listdir("/proc/self/fd")) - self._open_descriptors + len(host.devices)
                    if left:
                        raise Violation(f"{left} descriptors are open after the end of all processes")
            except Exception as error:  # a Violation, or any crash
                self.outcome.failure = self._failure_report(error)
        return self.outcome

    def _record_counts(self, host: FaultHost) -> None:
        self.outcome.events, self.outcome.turns = host.clock.events, host.turns
        self.outcome.coordinators = host.coordinators
        self.outcome.digest = host.digest()

    def _failure_report(self, error: Exception) -> str:
        import traceback

        events = "\n".join(f"{at:.6f} {what}" for at, what in self.host.event_log)
        trace = "" if isinstance(error, Violation) else "".join(traceback.format_exception(error))
        kinds = f" --kinds {','.join(self._kinds)}" if self._kinds else ""
        state = "\n".join(self._state)
        return (
            f"{events}\n{state}\n{trace}seed {self.seed}, event {self.outcome.events}: {error}\n"
            f"again: python -m tests.faults --seed {self.seed}{kinds}{self.options}"
        )

    @contextmanager
    def _log(self) -> Iterator[None]:
        log = logging.getLogger("jupyter_gpushare.coordinator")
        handler, level, propagate = CoordinatorLog(self.host), log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.WARNING)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate

    # --- the host and its clients

    def _make_host(self, folder: Path) -> FaultHost:
        random = self.random
        # On a crowded host, turns pass from one process to the next by the lock.
        self._is_crowded = random.random() < 0.4
        self._uses_swap = random.random() < 0.3
        traits = GpuShare()
        traits.policy = random.choice(("fcfs", "interactive", "fair"))
        traits.sharing = random.choice(("exclusive", "exclusive", "exclusive", "auto", "packed"))
        traits.time_quantum = random.choice((0.03, 0.1, 0.3))
        traits.min_quantum = 0.02
        traits.idle_release = random.choice((0.005, 0.02, 0.1))
        traits.overrun = random.choice(("wait", "wait", "join", "interrupt"))
        traits.overrun_patience = random.choice((0.0, 0.3))
        traits.max_wait = 5.0
        traits.max_hold = 3.0
        devices = random.choice((1, 1, 1, 2, 3))
        if self._uses_swap:
            traits.sharing = random.choice(("exclusive", "auto", "packed"))
        if self._is_crowded:
            traits.sharing, traits.overrun, devices = "exclusive", "wait", 1
        gc.collect()  # so that garbage of other tests closes no descriptors during the episode
        self._open_descriptors = len(os.listdir("/proc/self/fd"))
        shared = traits.sharing != "exclusive" or traits.overrun == "join"
        host = FaultHost(random.getrandbits(64), folder, ShortOverrunSettings(traits), devices, shared)
        self._open_descriptors += devices
        host.log_event(f"{traits.policy}, {traits.sharing}, quantum {traits.time_quantum}, overruns: {traits.overrun}")
        return host

    def _make_profile(self) -> WorkloadProfile:
        random = self.random
        return WorkloadProfile(
            threads=random.choice((1, 1, 1, 2)),
            think_seconds=0.02 if self._is_crowded else random.choice((0.02, 0.3, 2.0)),
            calls=200 if self._is_crowded else random.choice((2, 20, 200)),
            pause_seconds=random.choice((0.003, 0.02)),
            work_seconds=random.choice((0.0005, 0.005, 0.03)),
            give_up_probability=random.choice((0.0, 0.0, 0.2)),
            max_bytes=random.choice((0, 2 << 30, 6 << 30)),
        )

    def _make_client(self, host: FaultHost, number: int) -> SimulatedClient:
        random = self.random
        few = random.random() < 0.8
        count = 1 if few else random.randint(1, len(host.devices))
        devices = tuple(sorted(random.sample(host.devices, count)))
        client = host.client(f"client-{number}", devices, self._make_profile(), uid=random.choice((1000, 1000, 1001)))
        client.quota = random.choice(
            ("", "", "", "limit=0.3", "share=0.1", "class=offline", "memory=2GiB resident=1GiB")
        )
        client.process_count = random.choice((1, 1, 1, 1, 1, 2) if self._is_crowded else (1, 1, 1, 2, 3))
        if self._uses_swap and count == 1:
            client.profile.uses_swap, client.profile.max_bytes = True, 6 << 30
        if client.process_count > 1 and random.random() < 0.5:
            client.profile.collective_probability = 0.3
        return client

    # --- what happens

    def _run_storms(self, host: FaultHost) -> None:
        random = self.random
        host.start_coordinator()
        host.checks.append(self._check)
        for number in range(random.randint(2, 7)):
            client = self._make_client(host, number)
            for _ in range(client.process_count):
                client.start()
            if random.random() < 0.5:
                host.notebooks.append(NotebookKernel(client))
        if random.random() < 0.3:
            host.notebooks.append(SnapshotSubscriber(host, 1000))
        for _ in range(STORM_COUNT):
            storm = self._storm = FaultInjector(host, self._kinds)
            host.run(host.clock.now + random.uniform(*STORM_SECONDS))
            storm.heal()
            self.outcome.faults.update(storm.faults)
            self._calm(host)

    def _check(self, owner: EventOwner) -> None:
        host = self.host
        if host.bugs:
            raise Violation(host.bugs[0])
        if isinstance(owner, CoordinatorUnderTest) and owner.alive:
            self._require_none(wrong_refusals(owner, host))
            self._event_count += 1
            if self._event_count % self._check_every == 0:
                self._require_none(state_mismatches(owner, host))

    def _require_none(self, problems: Iterator[str]) -> None:
        if found := list(problems):
            raise Violation("\n".join(found))

    def _calm(self, host: FaultHost) -> None:
        """Check that every process connects again and that every waiting thread gets its turn, within the bound."""
        began = host.clock.now
        for client in host.clients.values():
            host.send_user_request(client, {"type": "hold", "seconds": 0.0})
        bound = self._calm_bound(host)
        self._run_until(host, bound, "are not connected", lambda: self._unconnected(host))
        for client in host.clients.values():  # a page may have reported a suspension to a new coordinator
            host.send_user_request(client, {"type": "resume"})
        self._run_until(
            host,
            self._answer_bound(host),
            "got no answer",
            lambda: [str(user.request) for user in host.requests if not user.is_done],
        )
        host.requests.clear()
        unbounded = self._clients_without_bound(host)
        idle = IdleWatch(host, unbounded)
        waiting = {
            (thread, thread.passes): agent
            for agent in host.agents()
            if agent.client not in unbounded
            for thread in agent.program.threads
            if thread.is_waiting or thread.is_restoring
        }

        def stuck() -> list[str]:
            return [
                f"{agent} since {thread.waiting_since:.3f}"
                for (thread, before), agent in waiting.items()
                if agent.alive and (thread.is_waiting or thread.is_restoring) and thread.passes == before
            ]

        self._run_until(host, bound, "still wait for a turn", stuck, idle.check)
        bounded = [agent.program.memory_requests for agent in host.agents() if agent.client not in unbounded]
        requests = {room: room.waiting_since for room in bounded if room.is_waiting}

        def unmet() -> list[str]:
            return [str(room) for room, since in requests.items() if room.is_waiting and room.waiting_since == since]

        self._run_until(host, bound, "still wait for room", unmet)
        self.outcome.longest_wait = max(self.outcome.longest_wait, host.clock.now - began)
        while host.clock.now < began + MIN_CALM_SECONDS:
            host.run(min(host.clock.now + 0.05, began + MIN_CALM_SECONDS))
            idle.check()
        self._run_until(host, bound, "are not connected", lambda: self._unconnected(host))
        assert host.coordinator is not None
        self._run_until(host, 5.0, "wait for the answer to hello", host.hellos_in_flight)
        self._require_none(state_mismatches(host.coordinator, host))
        self._require_none(resource_leaks(host.coordinator, host, self._open_descriptors))

    def _unconnected(self, host: FaultHost) -> list[str]:
        """Return the processes without a connection to the present coordinator.

        A process that was stopped finds only later that its connection has ended.
        """
        assert host.coordinator is not None
        known = {handle.page.inode for handle in host.coordinator.engine.state.process_handles.values()}
        agents = host.agents()
        return [str(agent) for agent in agents if agent.link.state != CONNECTED or agent.page.inode not in known]

    def _clients_without_bound(self, host: FaultHost) -> set[SimulatedClient]:
        """Return the clients whose waits have no bound.

        Offline clients run only while online clients leave the device.
        Clients with a small limit, or with a limit that a long turn has used up, pause for long.
        """
        assert host.coordinator is not None
        scheduled = host.coordinator.engine.state.scheduler.clients

        def is_unbounded(client: SimulatedClient) -> bool:
            if found := scheduled.get(client.name):
                paused = found.time_limit and found.time_limit.ready_at() > host.clock.now + MAX_IDLE_SECONDS
                return bool(found.service_rank or paused or found.quota.limit < 0.1)
            # A new coordinator may not have the client yet.
            quota = Quota().with_changes(parse_quota(units.parse_pairs(client.quota)))
            return quota.service == "offline" or quota.limit < 0.1

        return {client for client in host.clients.values() if is_unbounded(client)}

    def _calm_bound(self, host: FaultHost) -> float:
        """Return the bound of the calm in seconds.

        The parts are the back-off after refusals, one turn with its drain for each client, and the longest timeouts.
        Where context memory takes the room of restores, a turn lasts until the restore has failed.
        """
        restoring = [client for client in host.clients.values() if host.driver_bytes and client.profile.uses_swap]
        return 16.0 + 7.0 + 5.0 + 1.5 * len(host.clients) + ANSWER_TIMEOUT_SECONDS * len(restoring) + 10.0

    def _answer_bound(self, host: FaultHost) -> float:
        """Return the bound of the answers to requests in seconds."""
        return self._calm_bound(host)

    def _run_until(
        self,
        host: FaultHost,
        bound: float,
        what: str,
        left: Callable[[], list[str]],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        end = host.clock.now + bound
        for tick in itertools.count():
            if not (names := left()):
                return
            if host.clock.now >= end:
                raise Violation(f"{bound:.1f} s after the last fault {', '.join(names)} {what}")
            host.run(min(end, host.clock.now + min(0.05, 0.001 * (tick + 1))))
            check()
