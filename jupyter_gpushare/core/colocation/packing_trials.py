"""Trials of packings, which are sets of clients that are colocated on a device. A packing that does not pay is ended.

Gandiva packs by trial as well (Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018).
The scheduler puts clients together that fit, measures the progress of each, and separates clients that do worse than in
turns. As in Gandiva, the progress of a client is the number of its training steps, if its programs mark enough of them.
Otherwise the progress is the number of blocks launched.

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
from dataclasses import dataclass, field, replace

TRIAL_SECONDS = 2.0  # of colocation, after which a packing is judged
MIN_EXCLUSIVE_SECONDS = 2.0  # of exclusive work, for which a client must have been observed
FAILURE_VALID_SECONDS = 600.0  # for which a failed packing is not tried again
NOISE_MARGIN = 0.05  # fraction of the total that may be noise
CROWDED_LOAD = 1.5  # sum of the members' fractions of time with work above which members may slow each other down
LARGE_CHANGE = 1.5  # factor by which a rate or the bytes of a client change if it runs another program
_HALF_LIFE_SECONDS = 30.0  # of exclusive work, after which an observation counts half
_MIN_LAUNCHES = 20  # of each member in a trial
MIN_TRAINING_STEPS = 20  # of a member, both in a trial and in its exclusive run, because one of a few is noise
MAX_TRIAL_SECONDS = 10.0  # for which a trial waits for these steps
_MIN_COLOCATED_FRACTION = 0.9  # of an interval in which a member must have been colocated


@dataclass(frozen=True)
class Sample:
    """Counters of a client since its start, as read at the time `at`.

    `launches`, `blocks`, `gpu_seconds`: the client's work on the device. `granted_seconds`: for which the client has
    had the device. `colocated_seconds`: the part of these with clients of its class or a better one. `memory` in bytes.
    `training_steps`: those that the client's programs have marked.
    """

    client: str
    launches: int
    blocks: int
    gpu_seconds: float
    granted_seconds: float
    colocated_seconds: float
    memory: int
    at: float
    training_steps: int = 0

    @property
    def counters(self) -> tuple[int, int, int]:
        return self.launches, self.blocks, self.training_steps


@dataclass
class WorkDone:
    """Work done in some seconds."""

    seconds: float = 0.0
    launches: float = 0.0
    blocks: float = 0.0
    work_seconds: float = 0.0
    training_steps: float = 0.0

    def add(self, other: WorkDone, keep: float = 1.0) -> None:
        self.seconds = self.seconds * keep + other.seconds
        self.launches = self.launches * keep + other.launches
        self.blocks = self.blocks * keep + other.blocks
        self.work_seconds = self.work_seconds * keep + other.work_seconds
        self.training_steps = self.training_steps * keep + other.training_steps

    @property
    def has_progress(self) -> bool:
        return bool(self.blocks or self.training_steps)

    def progress_over(self, baseline: WorkDone) -> float | None:
        """Return its progress divided by the progress of `baseline`, in the best unit that both have; None: unknown.

        Programs whose work is launched as graphs have no blocks.
        """
        steps = (self.training_steps, baseline.training_steps)
        blocks = (self.blocks, baseline.blocks)
        done, known = steps if min(steps) >= MIN_TRAINING_STEPS or not all(blocks) else blocks
        return done / known if done and known else None

    def rate_over(self, baseline: WorkDone) -> float | None:
        """Return its progress per second divided by that of `baseline`; None: unknown."""
        progress = self.progress_over(baseline)
        return None if progress is None else progress * baseline.seconds / self.seconds

    def work_rate_over(self, baseline: WorkDone) -> float | None:
        """Return its progress per second of work divided by that of `baseline`; None: unknown."""
        progress = self.progress_over(baseline)
        known = self.work_seconds > 0 and baseline.work_seconds > 0
        return None if progress is None or not known else progress * baseline.work_seconds / self.work_seconds


@dataclass
class _Trial:
    work: dict[str, WorkDone] = field(default_factory=dict)
    poor_results: int = 0  # trials in a row that showed a loss, even a small one


@dataclass(frozen=True)
class _FailedPacking:
    until: float
    baselines: Mapping[str, tuple[WorkDone, int]]  # by member: its exclusive work and its memory at the judgement
    progress: float  # of all members, over the progress in turns


class PackingTrials:
    """Trials of the packings of one device."""

    def __init__(self) -> None:
        self._last: dict[str, Sample] = {}
        self._exclusive_work: dict[str, WorkDone] = {}
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
        shares: dict[str, WorkDone] = {}
        for sample in samples:
            before, self._last[sample.client] = self._last.get(sample.client), sample
            if before is None or sample.at <= before.at:
                if before is not None:
                    self._last[sample.client] = before  # the counters have not been read again
                continue
            if any(now < then for now, then in zip(sample.counters, before.counters, strict=True)):
                continue  # a process has ended
            shared = sample.colocated_seconds - before.colocated_seconds
            done = WorkDone(
                sample.at - before.at,
                sample.launches - before.launches,
                sample.blocks - before.blocks,
                max(0.0, sample.gpu_seconds - before.gpu_seconds),
                sample.training_steps - before.training_steps,
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
        active = frozenset(client for client, done in shares.items() if done.has_progress)
        if len(active) > 1 and active <= set(self._members):
            trial = self._trials.setdefault(active, _Trial())
            for client in active:
                trial.work.setdefault(client, WorkDone()).add(shares[client])

    def remove(self, client: str) -> None:
        """Drop the state of the client, which has ended."""
        self._needs_exclusive_run.discard(client)
        self._last.pop(client, None)
        self._exclusive_work.pop(client, None)
        for packings in (self._trials, self._failed):
            for members in [members for members in packings if client in members]:
                del packings[members]

    def _record_exclusive_run(self, client: str, done: WorkDone) -> None:
        if done.seconds > 0:
            self._exclusive_work.setdefault(client, WorkDone()).add(done, 0.5 ** (done.seconds / _HALF_LIFE_SECONDS))
            if self.exclusive_work(client) is not None:
                self._needs_exclusive_run.discard(client)

    # --- verdicts

    def exclusive_work(self, client: str) -> WorkDone | None:
        """Return the work of exclusive runs, whose seconds include pauses; None: unknown."""
        work = self._exclusive_work.get(client)
        return work if work and work.seconds >= MIN_EXCLUSIVE_SECONDS and work.has_progress else None

    def may_join(self, client: str, members: Collection[str], now: float) -> bool:
        """Return whether no client needs an exclusive run first, and no subset of the packing has failed."""
        packing = frozenset(members) | {client}
        return not packing & self._needs_exclusive_run and self._failed_subset(packing, now) is None

    def failure(self, client: str, members: Collection[str], now: float) -> tuple[frozenset[str], float] | None:
        """Return the failed packing that keeps the client from joining, and its progress over that in turns.

        None: no packing of these clients has failed.
        """
        packing = frozenset(members) | {client}
        for tried, failed in self._failed.items():
            if client in tried and tried <= packing and self._holds(tried, failed, now):
                return tried, failed.progress
        return None

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
            if not self._holds(members, failed, now):
                del self._failed[members]
            elif members <= packing:
                return members
        return None

    def _holds(self, members: frozenset[str], failed: _FailedPacking, now: float) -> bool:
        return now < failed.until and not any(
            self._has_changed(client, *failed.baselines[client]) for client in members
        )

    def _has_changed(self, client: str, baseline: WorkDone, memory: int) -> bool:
        sample, work = self._last.get(client), self.exclusive_work(client)
        rate = work.rate_over(baseline) if work else None
        return (sample is not None and _is_large_change(sample.memory, memory)) or (
            rate is not None and _is_large_change(rate, 1.0)
        )

    def _judge(self, members: frozenset[str], overhead: float, now: float) -> None:
        trial = self._trials[members]
        # Samples are about a second apart, and two samples that come a little early are a trial of two seconds as well.
        enough = 0.9 * TRIAL_SECONDS
        if not trial.work or any(
            done.seconds < enough or done.launches < _MIN_LAUNCHES for done in trial.work.values()
        ):
            return
        known = {client: work for client in members if (work := self.exclusive_work(client))}
        if any(_awaits_steps(done, known.get(client)) for client, done in trial.work.items()):
            return
        rates = {client: done.rate_over(known[client]) for client, done in trial.work.items() if client in known}
        if unknown := {client for client in members if rates.get(client) is None}:
            if sum(done.work_seconds / done.seconds for done in trial.work.values()) > CROWDED_LOAD:
                self._needs_exclusive_run |= unknown
            del self._trials[members]
            return
        total = sum(rate for rate in rates.values() if rate)
        work_rates = [done.work_rate_over(known[client]) for client, done in trial.work.items()]
        if all(work_rates):
            total = max(total, sum(rate for rate in work_rates if rate))
        min_total = 1.0 - overhead - NOISE_MARGIN
        trial.poor_results = trial.poor_results + 1 if total < min_total else 0
        trial.work = {}
        if trial.poor_results > 1 or total < min_total - NOISE_MARGIN:
            del self._trials[members]
            baselines = {client: (replace(one), self._last[client].memory) for client, one in known.items()}
            self._failed[members] = _FailedPacking(now + FAILURE_VALID_SECONDS, baselines, total / (1.0 - overhead))


def _awaits_steps(done: WorkDone, known: WorkDone | None) -> bool:
    """Return whether a trial goes on until the member has marked enough training steps."""
    return (
        known is not None
        and known.training_steps >= MIN_TRAINING_STEPS > done.training_steps
        and done.seconds < 0.95 * MAX_TRIAL_SECONDS
    )


def _is_large_change(value: float, before: float) -> bool:
    low, high = sorted((value, before))
    return high > low * LARGE_CHANGE
