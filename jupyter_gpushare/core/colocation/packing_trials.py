"""Trials of packings, which are sets of clients that are colocated on a device. A packing that does not pay is ended.

Gandiva packs by trial as well (Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018).
The scheduler puts clients together that fit, measures the progress of each, and separates clients that do worse than in
turns. Gandiva knows the steps of training jobs; here the progress is the number of blocks launched.

A client's packed rate over its exclusive rate is the fraction of its progress that the packing leaves. If two clients
that keep the device busy get a half each, nothing is lost. Turns give a sum of 1 as well, less the switch cost. A
smaller sum shows that the members slow each other down, or that they pause at the same time. Therefore a packing is
ended only if the rates per second *of work* on the device, too, have a smaller sum than turns would give.

A client's exclusive rate need not be known while a packing leaves the device room, because no member can slow another
down then. If the members keep the device busy together, the members with an unknown rate are separated for an exclusive
run first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TRIAL_SECONDS = 2.0  # of colocation, after which a packing is judged
MIN_EXCLUSIVE_SECONDS = 2.0  # of exclusive work, for which a client must have been observed
FAILURE_VALID_SECONDS = 600.0  # for which a failed packing is not tried again
NOISE_MARGIN = 0.05  # fraction of the total that may be noise
CROWDED_LOAD = 1.5  # sum of the members' fractions of time with work above which members may slow each other down
LARGE_CHANGE = 1.5  # factor by which a rate or the bytes of a client change if it runs another program
_HALF_LIFE_SECONDS = 30.0  # of exclusive work, after which an observation counts half
_MIN_LAUNCHES = 20  # of each member in a trial
_MIN_COLOCATED_FRACTION = 0.9  # of an interval in which a member must have been colocated


@dataclass(frozen=True)
class Sample:
    """Counters of a client since its start, as read at the time `at`.

    `launches`, `blocks`, `gpu_seconds`: the client's work on the device. `granted_seconds`: for which the client has
    had the device. `colocated_seconds`: the part of these in a colocation. `memory` in bytes.
    """

    client: str
    launches: int
    blocks: int
    gpu_seconds: float
    granted_seconds: float
    colocated_seconds: float
    memory: int
    at: float


@dataclass
class _WorkDone:
    """Work done in some seconds."""

    seconds: float = 0.0
    launches: float = 0.0
    blocks: float = 0.0
    work_seconds: float = 0.0

    def add(self, other: _WorkDone, keep: float = 1.0) -> None:
        self.seconds = self.seconds * keep + other.seconds
        self.launches = self.launches * keep + other.launches
        self.blocks = self.blocks * keep + other.blocks
        self.work_seconds = self.work_seconds * keep + other.work_seconds

    @property
    def rate(self) -> float:
        return self.blocks / self.seconds if self.seconds else 0.0

    @property
    def blocks_per_work_second(self) -> float:
        """Blocks per second of work; 0: unknown."""
        return self.blocks / self.work_seconds if self.work_seconds > 0 else 0.0


@dataclass
class _Trial:
    work: dict[str, _WorkDone] = field(default_factory=dict)
    poor_results: int = 0  # trials in a row that showed a loss, even a small one


@dataclass(frozen=True)
class _FailedPacking:
    until: float
    baselines: Mapping[str, tuple[float, int]]  # by member: its exclusive rate and its memory at the judgement


class PackingTrials:
    """Trials of the packings of one device."""

    def __init__(self) -> None:
        self._last: dict[str, Sample] = {}
        self._exclusive_work: dict[str, _WorkDone] = {}
        self._trials: dict[frozenset[str], _Trial] = {}
        self._failed: dict[frozenset[str], _FailedPacking] = {}
        self._needs_exclusive_run: set[str] = set()  # clients that must run exclusively before they are packed again
        self._members: tuple[str, ...] = ()
        self._since: float | None = None  # when the present members came together

    # --- events

    def set_members(self, members: Sequence[str], now: float) -> None:
        """Set the clients that have the device, in the order in which they joined; none or one: no packing runs."""
        if tuple(members) != self._members:
            self._members = tuple(members)
            self._since = now

    def add_samples(self, samples: Iterable[Sample], now: float) -> None:
        """Add samples, which come about once a second; samples of the members of a packing come at once."""
        shares: dict[str, _WorkDone] = {}
        for sample in samples:
            before, self._last[sample.client] = self._last.get(sample.client), sample
            if before is None or sample.at <= before.at:
                if before is not None:
                    self._last[sample.client] = before  # the counters have not been read again
                continue
            if sample.blocks < before.blocks or sample.launches < before.launches:
                continue  # a process has ended
            shared = sample.colocated_seconds - before.colocated_seconds
            done = _WorkDone(
                sample.at - before.at,
                sample.launches - before.launches,
                sample.blocks - before.blocks,
                max(0.0, sample.gpu_seconds - before.gpu_seconds),
            )
            if shared <= 0:
                done.seconds = sample.granted_seconds - before.granted_seconds
                self._record_exclusive_run(sample.client, done)
            elif (
                self._since is not None
                and self._since <= before.at
                and shared >= _MIN_COLOCATED_FRACTION * done.seconds
            ):
                shares[sample.client] = done
        active = frozenset(client for client, done in shares.items() if done.blocks)
        if len(active) > 1 and active <= set(self._members):
            trial = self._trials.setdefault(active, _Trial())
            for client in active:
                trial.work.setdefault(client, _WorkDone()).add(shares[client])

    def remove(self, client: str) -> None:
        """Drop the state of the client, which has ended."""
        self._needs_exclusive_run.discard(client)
        self._last.pop(client, None)
        self._exclusive_work.pop(client, None)
        for packings in (self._trials, self._failed):
            for members in [members for members in packings if client in members]:
                del packings[members]

    def _record_exclusive_run(self, client: str, done: _WorkDone) -> None:
        if done.seconds > 0:
            self._exclusive_work.setdefault(client, _WorkDone()).add(done, 0.5 ** (done.seconds / _HALF_LIFE_SECONDS))
            if self.exclusive_rate(client) is not None:
                self._needs_exclusive_run.discard(client)

    # --- verdicts

    def exclusive_rate(self, client: str) -> float | None:
        """Return the blocks per second of an exclusive run, including pauses; None: unknown."""
        work = self._exclusive_work.get(client)
        return work.rate if work and work.seconds >= MIN_EXCLUSIVE_SECONDS and work.blocks else None

    def may_join(self, client: str, members: Collection[str], now: float) -> bool:
        """Return whether no client needs an exclusive run first, and no subset of the packing has failed."""
        packing = frozenset(members) | {client}
        return not packing & self._needs_exclusive_run and self._failed_subset(packing, now) is None

    def client_to_separate(self, now: float, overhead: float = 0.0) -> str | None:
        """Return the client to separate from the present packing, the last that joined; None: no client.

        `overhead`: the fraction of time that switching would take if these clients took turns.
        """
        for members in [members for members in self._trials if members <= set(self._members)]:
            self._judge(members, overhead, now)
        members = frozenset(self._members)
        failed = self._failed_subset(members, now)
        if failed is None and len(members) > 1 and members & self._needs_exclusive_run:
            failed = members
        return None if failed is None else next(client for client in reversed(self._members) if client in failed)

    def _failed_subset(self, packing: frozenset[str], now: float) -> frozenset[str] | None:
        for members, failed in list(self._failed.items()):
            if now >= failed.until or any(self._has_changed(client, *failed.baselines[client]) for client in members):
                del self._failed[members]
            elif members <= packing:
                return members
        return None

    def _has_changed(self, client: str, rate: float, memory: int) -> bool:
        sample, exclusive_rate = self._last.get(client), self.exclusive_rate(client)
        return (sample is not None and _is_large_change(sample.memory, memory)) or (
            exclusive_rate is not None and _is_large_change(exclusive_rate, rate)
        )

    def _judge(self, members: frozenset[str], overhead: float, now: float) -> None:
        trial = self._trials[members]
        # Samples are about a second apart, and two samples that come a little early are a trial of two seconds as well.
        enough = 0.9 * TRIAL_SECONDS
        if not trial.work or any(
            done.seconds < enough or done.launches < _MIN_LAUNCHES for done in trial.work.values()
        ):
            return
        known = {client: self._exclusive_work[client] for client in members if self.exclusive_rate(client) is not None}
        if unknown := members - set(known):
            if sum(done.work_seconds / done.seconds for done in trial.work.values()) > CROWDED_LOAD:
                self._needs_exclusive_run |= unknown
            del self._trials[members]
            return
        total = sum(done.rate / known[client].rate for client, done in trial.work.items())
        if all(
            done.blocks_per_work_second and known[client].blocks_per_work_second for client, done in trial.work.items()
        ):
            total = max(
                total,
                sum(
                    done.blocks_per_work_second / known[client].blocks_per_work_second
                    for client, done in trial.work.items()
                ),
            )
        min_total = 1.0 - overhead - NOISE_MARGIN
        trial.poor_results = trial.poor_results + 1 if total < min_total else 0
        trial.work = {}
        if trial.poor_results > 1 or total < min_total - NOISE_MARGIN:
            del self._trials[members]
            baselines = {client: (one.rate, self._last[client].memory) for client, one in known.items()}
            self._failed[members] = _FailedPacking(now + FAILURE_VALID_SECONDS, baselines)


def _is_large_change(value: float, before: float) -> bool:
    low, high = sorted((value, before))
    return high > low * LARGE_CHANGE
