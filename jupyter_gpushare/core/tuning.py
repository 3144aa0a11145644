"""The scheduler tunes two of its own parameters by what it measures; off by default.

SIREN (Wang, Niu and Li, "Distributed Machine Learning with a Serverless Architecture", INFOCOM 2019) has a learning
agent that decides on resources anew in each epoch. Here the agent is a bandit, and it is kept safe: two parameters with
three sound values each, one epoch in so many for a try, each try compared with the epochs before and after it (the load
changes more from hour to hour than any setting could), and the defaults again whenever too little is known. What to try
is chosen by its lower confidence bound on discounted costs (discounted UCB: Garivier and Moulines, "On Upper-Confidence
Bound Policies for Switching Bandit Problems", ALT 2011).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import sqrt

from .settings import Settings

EPOCH = 60.0  # seconds of one setting, at least
TURNS = 20  # and turns
EVERY = 4  # one epoch in so many is a try
DISCOUNT = 0.995  # of all that is known, in the time between two tries
EVIDENCE = 5.0  # tries, discounted, without which a setting is not believed to be better
CONFIDENCE = 2.5  # standard errors by which it must be better; and worse, not to be tried any more for a while


@dataclass(frozen=True)
class Setting:
    """`overhead`: the part of time that switching may take, from which a quantum "auto" follows; `release`: a factor on
    the time without work after which an idle device is given up."""

    overhead: float = 0.05
    release: float = 1.0


DEFAULT = Setting()
OVERHEADS = (0.025, 0.05, 0.1)
RELEASES = (0.5, 1.0, 2.0)
SETTINGS = tuple(Setting(overhead, release) for overhead, release in product(OVERHEADS, RELEASES))


def neighbours(setting: Setting) -> list[Setting]:
    """Those that differ by one step of one parameter. Only they are tried: they are hardly much worse."""
    at = (OVERHEADS.index(setting.overhead), RELEASES.index(setting.release))
    return [
        other
        for other in SETTINGS
        if abs(OVERHEADS.index(other.overhead) - at[0]) + abs(RELEASES.index(other.release) - at[1]) == 1
    ]


@dataclass(frozen=True)
class Totals:
    """Sums over all clients from the beginning: seconds `waited` at the gate, spent on `switching`, and `worked` on the
    devices, and the number of `turns`."""

    waited: float = 0.0
    switching: float = 0.0
    worked: float = 0.0
    turns: int = 0


@dataclass
class _Known:
    """Discounted sums of a setting's cost over that of the trusted one, as fractions, one term per try."""

    tries: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, difference: float) -> None:
        self.tries += 1.0
        self.total += difference
        self.squares += difference * difference

    def fade(self, factor: float) -> None:
        self.tries *= factor
        self.total *= factor
        self.squares *= factor

    @property
    def mean(self) -> float:
        return self.total / self.tries if self.tries else 0.0

    @property
    def scatter(self) -> float:
        """The sum of squared differences from the mean."""
        return max(self.squares - self.tries * self.mean**2, 0.0)


class Tuning:
    """Says which setting to use. Deterministic for a given `seed`, which is the order of the first tries."""

    def __init__(self, seed: int = 0, epoch: float = EPOCH) -> None:
        self.setting = DEFAULT  # to be used now
        self.trusted = DEFAULT  # in force but for tries
        self._epoch = epoch
        self._known = {setting: _Known() for setting in SETTINGS}
        self._order = sorted(SETTINGS, key=lambda setting: _mixed(seed * 64 + SETTINGS.index(setting)))
        self._began: tuple[float, Totals] | None = None
        self._epochs = 0
        self._before: float | None = None  # the cost of the trusted setting's epoch before a try
        self._tried: tuple[Setting, float] | None = None  # a try, and its cost

    def observe(self, totals: Totals, now: float) -> bool:
        """Call it now and then. True: `setting` has changed."""
        if self._began is None or totals.turns < self._began[1].turns:
            self._began = (now, totals)
            return False
        since, first = self._began
        seconds = now - since
        if seconds < self._epoch or totals.turns - first.turns < TURNS:
            return False
        self._began = (now, totals)
        before = self.setting
        self._fade(seconds / self._epoch)
        self._ended(_cost(first, totals))
        return self.setting != before

    def _fade(self, epochs: float) -> None:
        """What was learnt by day says less about the night. With too little left, the defaults are in force again."""
        for known in self._known.values():
            known.fade(DISCOUNT ** (epochs / EVERY))
        if self.trusted != DEFAULT and sum(known.tries for known in self._known.values()) < EVIDENCE:
            self._trust(DEFAULT)

    def _ended(self, cost: float) -> None:
        """An epoch is over that cost so much."""
        self._epochs += 1
        if self.setting != self.trusted:
            self._tried = (self.setting, cost)
            self.setting = self.trusted
            return
        if self._tried is not None and self._before is not None:
            tried, its_cost = self._tried
            self._tried = None
            self._learn(tried, its_cost / max((self._before + cost) / 2, 1e-9) - 1.0)
        self._before = cost
        if self._epochs >= EVERY:
            self._epochs = 0
            self.setting = self._to_try()

    def _learn(self, tried: Setting, difference: float) -> None:
        # One mad epoch (a cell that ran away) is not to be believed more than others.
        self._known[tried].add(max(-1.0, min(1.0, difference)))
        better = [
            setting
            for setting, known in self._known.items()
            if setting != self.trusted and known.tries >= EVIDENCE and known.mean + CONFIDENCE * self._error(known) < 0
        ]
        if better:
            self._trust(min(better, key=lambda setting: self._known[setting].mean))

    def _error(self, known: _Known) -> float:
        """The standard error of a setting's mean. Noise is alike for all: it is estimated from all tries together."""
        tries = sum(one.tries for one in self._known.values())
        freedom = tries - sum(one.tries > 0 for one in self._known.values())
        if known.tries <= 0 or freedom < 1:
            return float("inf")
        return sqrt(sum(one.scatter for one in self._known.values()) / freedom / known.tries)

    def _trust(self, setting: Setting) -> None:
        """From now on differences are to this one."""
        old, gain = self.trusted, self._known[setting].mean
        tries = self._known[setting].tries
        self.trusted = self.setting = setting
        self._tried = self._before = None
        for known in self._known.values():
            known.squares += known.tries * gain * gain - 2 * gain * known.total
            known.total -= known.tries * gain
        self._known[old] = _Known(tries, -gain * tries, self._known[setting].scatter + tries * gain * gain)
        self._known[setting] = _Known()

    def _to_try(self) -> Setting:
        """The neighbour that may be best, unless none may be better than what is trusted."""
        open_ones = [setting for setting in self._order if setting in neighbours(self.trusted)]

        def promise(setting: Setting) -> float:
            known = self._known[setting]
            return known.mean - CONFIDENCE * self._error(known) if known.tries >= 1 else float("-inf")

        # Of those of which nothing is known yet, the one that was tried least.
        first = min(open_ones, key=lambda setting: (promise(setting), self._known[setting].tries))
        return first if promise(first) < 0 else self.trusted


class Tuner:
    """Tells a `Tuning` how turns went, and settings what it says."""

    def __init__(self) -> None:
        self._tuning = Tuning()
        self._switching = self._worked = 0.0
        self._turns = 0

    def turn_ended(self, settings: Settings, waited: float, switching: float, worked: float, now: float) -> Settings:
        """`waited`: seconds, of all clients from the beginning; `switching` and `worked`: of the turn. Returns the
        settings to use from now on: the same object if nothing changes."""
        self._turns += 1
        self._switching += switching
        self._worked += worked
        if settings.tuning and self._tuning.observe(Totals(waited, self._switching, self._worked, self._turns), now):
            return self.applied(settings)
        return settings

    def applied(self, settings: Settings) -> Settings:
        if not settings.tuning:
            return settings
        chosen = self._tuning.setting
        return replace(settings, switch_overhead=chosen.overhead, idle_factor=chosen.release)


def _cost(first: Totals, last: Totals) -> float:
    """Seconds lost, to waiting and to switching, for each second of work."""
    lost = last.waited - first.waited + last.switching - first.switching
    return lost / max(last.worked - first.worked, 1e-3)


def _mixed(number: int) -> int:
    """A number that looks random (the finaliser of splitmix64)."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    number = (number ^ number >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return number ^ number >> 31
