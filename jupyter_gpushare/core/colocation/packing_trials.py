"""Which clients run together on a device: tried out, measured, and undone where it does not pay.

Packing by trial, as Gandiva has it (Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI
2018): put clients together that fit, measure the progress of each, and part them if they do worse than in turns.
Gandiva knows the steps of training jobs; here progress is blocks launched.

A client's packed rate over its rate alone is what the packing leaves it. If two that keep the device busy get a half
each, nothing is lost; the sum over the members, 1, is what turns give as well, less what switching costs. A sum below
that means that they are in each other's way. Both may also pause at once, which is nobody's fault: so a packing is
undone only if the rates per second *of work* on the device, too, add up to less than turns would give.

What a client does alone need not be known while a packing leaves the device room: nobody can be in anybody's way then.
If the members keep it busy together, those of whom it is not known are parted to be seen alone first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

TRIAL_SECONDS = 2.0  # seconds of running together after which a packing is judged
MIN_EXCLUSIVE_SECONDS = 2.0  # seconds that a client must have been seen alone
FAILURE_VALID_SECONDS = 600.0  # seconds for which a bad packing is remembered
NOISE_MARGIN = 0.05  # of the total, that may be noise
CROWDED_LOAD = 1.5  # the sum of the members' times with work on the device, above which they may be in each other's way
LARGE_CHANGE = 1.5  # a rate, or bytes, that changed by this factor make another program of it
_HALF_LIFE_SECONDS = 30.0  # seconds alone, after which what was seen counts half
_MIN_LAUNCHES = 20  # of each member in a trial, at least
_MIN_COLOCATED_FRACTION = 0.9  # of an interval, that a member must have shared


@dataclass(frozen=True)
class Sample:
    """Counters of a client since its start, as read at the time `at`.

    `launches`, `blocks`, `gpu_seconds`: the client's work on the device. `granted_seconds`: for which the client has
    held the device. `colocated_seconds`: the part of these in a colocation. `memory` in bytes.
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
    """What was done in some time."""

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
        """Blocks per second of work; 0: not known."""
        return self.blocks / self.work_seconds if self.work_seconds > 0 else 0.0


@dataclass
class _Trial:
    work: dict[str, _WorkDone] = field(default_factory=dict)
    poor_results: int = 0  # trials in a row that showed a loss, if not a clear one


@dataclass(frozen=True)
class _FailedPacking:
    until: float
    baselines: Mapping[str, tuple[float, int]]  # each member's rate alone and memory, when it was judged


class PackingTrials:
    """The packings of one device."""

    def __init__(self) -> None:
        self._last: dict[str, Sample] = {}
        self._exclusive_work: dict[str, _WorkDone] = {}
        self._trials: dict[frozenset[str], _Trial] = {}
        self._failed: dict[frozenset[str], _FailedPacking] = {}
        self._needs_exclusive_run: set[str] = set()  # alone, before they are packed again
        self._members: tuple[str, ...] = ()
        self._since: float | None = None  # when the members became these

    # --- what happens

    def set_members(self, members: Sequence[str], now: float) -> None:
        """From now on these hold the device together, in the order in which they joined; one or none: nobody does."""
        if tuple(members) != self._members:
            self._members = tuple(members)
            self._since = now

    def add_samples(self, samples: Iterable[Sample], now: float) -> None:
        """What clients have done, about once a second; of all members of a packing at once."""
        shares: dict[str, _WorkDone] = {}
        for sample in samples:
            before, self._last[sample.client] = self._last.get(sample.client), sample
            if before is None or sample.at <= before.at:
                if before is not None:
                    self._last[sample.client] = before  # its counters have not been read again
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
        """The client is over."""
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

    # --- what follows

    def exclusive_rate(self, client: str) -> float | None:
        """Blocks per second of the time in which it held the device alone, its pauses included; None: not known yet."""
        alone = self._exclusive_work.get(client)
        return alone.rate if alone and alone.seconds >= MIN_EXCLUSIVE_SECONDS and alone.blocks else None

    def may_join(self, client: str, members: Collection[str], now: float) -> bool:
        """Report whether none of them has to be seen alone first, and no part of the packing is known to be bad."""
        packing = frozenset(members) | {client}
        return not packing & self._needs_exclusive_run and self._failed_subset(packing, now) is None

    def client_to_separate(self, now: float, overhead: float = 0.0) -> str | None:
        """The client to part from the present packing, the last that joined; None: nobody.

        `overhead`: the fraction of time that switching would take if these clients took turns.
        """
        for members in [members for members in self._trials if members <= set(self._members)]:
            self._judge(members, overhead, now)
        members = frozenset(self._members)
        bad = self._failed_subset(members, now)
        if bad is None and len(members) > 1 and members & self._needs_exclusive_run:
            bad = members
        return None if bad is None else next(client for client in reversed(self._members) if client in bad)

    def _failed_subset(self, packing: frozenset[str], now: float) -> frozenset[str] | None:
        for members, bad in list(self._failed.items()):
            if now >= bad.until or any(self._has_changed(client, *bad.baselines[client]) for client in members):
                del self._failed[members]
            elif members <= packing:
                return members
        return None

    def _has_changed(self, client: str, rate: float, memory: int) -> bool:
        sample, now_alone = self._last.get(client), self.exclusive_rate(client)
        return (sample is not None and _is_large_change(sample.memory, memory)) or (
            now_alone is not None and _is_large_change(now_alone, rate)
        )

    def _judge(self, members: frozenset[str], overhead: float, now: float) -> None:
        trial = self._trials[members]
        # Samples are about a second apart: two that come a little early are a trial of two seconds all the same.
        enough = 0.9 * TRIAL_SECONDS
        if not trial.work or any(w.seconds < enough or w.launches < _MIN_LAUNCHES for w in trial.work.values()):
            return
        alone = {client: self._exclusive_work[client] for client in members if self.exclusive_rate(client) is not None}
        if unknown := members - set(alone):
            if sum(done.work_seconds / done.seconds for done in trial.work.values()) > CROWDED_LOAD:
                self._needs_exclusive_run |= unknown
            del self._trials[members]
            return
        total = sum(done.rate / alone[client].rate for client, done in trial.work.items())
        if all(
            done.blocks_per_work_second and alone[client].blocks_per_work_second for client, done in trial.work.items()
        ):
            total = max(
                total,
                sum(
                    done.blocks_per_work_second / alone[client].blocks_per_work_second
                    for client, done in trial.work.items()
                ),
            )
        least = 1.0 - overhead - NOISE_MARGIN
        trial.poor_results = trial.poor_results + 1 if total < least else 0
        trial.work = {}
        if trial.poor_results > 1 or total < least - NOISE_MARGIN:
            del self._trials[members]
            known_by = {client: (one.rate, self._last[client].memory) for client, one in alone.items()}
            self._failed[members] = _FailedPacking(now + FAILURE_VALID_SECONDS, known_by)


def _is_large_change(value: float, before: float) -> bool:
    low, high = sorted((value, before))
    return high > low * LARGE_CHANGE
