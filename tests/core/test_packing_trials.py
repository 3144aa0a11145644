"""Tests of packing by trial (Gandiva), on a device that clients share in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.colocation.packing_trials import FAILURE_VALID_SECONDS, PackingTrials, Sample

from ..support import tier

MS = 0.001
GIB = 1 << 30


@dataclass
class Program:
    """A program with `on` ms of device time, then a pause of `off` ms, repeatedly; `speed`: blocks per ms of work.

    `step`: ms of work of each training step that it marks; 0: it marks none.
    """

    name: str
    on: float = 50.0
    off: float = 0.0
    speed: float = 100.0
    memory: int = GIB
    step: float = 0.0
    done: float = 0.0  # ms of work done
    steps: float = 0.0
    left: float = 0.0  # ms of device time until its pause, or ms of its pause
    pausing: bool = False
    blocks: float = 0.0
    worked: float = 0.0
    granted_seconds: float = 0.0
    shared: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.on

    @property
    def busy(self) -> bool:
        return not self.pausing

    def advance(self, part: float) -> None:
        """Advance by one ms, with `part` of a device's speed."""
        self.left -= 1.0 if self.pausing else part
        if not self.pausing:
            self.blocks += self.speed * part
            self.done += part
            self.steps += part / self.step if self.step else 0.0
            self.worked += MS
        if self.left <= 0:
            self.pausing = not self.pausing and self.off > 0
            self.left += self.off if self.pausing else self.on


@dataclass
class Card:
    """A device. `efficiency`: the part of its work that it does when several programs work on it at once."""

    programs: list[Program]
    efficiency: float = 1.0
    packing: PackingTrials = field(default_factory=PackingTrials)
    now: float = 0.0
    packed: list[str] = field(default_factory=list)
    separated: list[tuple[float, str]] = field(default_factory=list)

    def run_exclusively(self, program: Program, seconds: float) -> None:
        self.packing.set_members([program.name], self.now)
        self._run([program], seconds)

    def run_each_exclusively(self, seconds: float = 4.0) -> None:
        self.sample()
        for program in self.programs:
            self.run_exclusively(program, seconds)

    def together(self, seconds: float) -> None:
        """Pack clients that may join, and separate clients by the verdict, until the time is over."""
        end = self.now + seconds
        while self.now < end - MS / 2:
            self.join()
            self._run([program for program in self.programs if program.name in self.packed], 1.0)
            client = self.packing.client_to_separate(self.now)
            if client is not None:
                self.packed.remove(client)
                self.separated.append((self.now, client))
                self.packing.set_members(self.packed, self.now)

    def join(self) -> None:
        for program in self.programs:
            if program.name in self.packed:
                continue
            if not self.packed or self.packing.may_join(program.name, self.packed, self.now):
                self.packed.append(program.name)
                self.packing.set_members(self.packed, self.now)

    def _run(self, programs: list[Program], seconds: float) -> None:
        for step in range(1, round(seconds / MS) + 1):
            busy = sum(program.busy for program in programs)
            for program in programs:
                program.granted_seconds += MS
                program.shared += MS if len(programs) > 1 else 0.0
                program.advance((1.0 if busy < 2 else self.efficiency) / max(busy, 1))
            self.now += MS
            if step % 1000 == 0:
                self.sample()

    def sample(self) -> None:
        self.packing.add_samples(
            [
                Sample(
                    p.name,
                    int(p.done * 10),
                    int(p.blocks),
                    p.worked,
                    p.granted_seconds,
                    p.shared,
                    p.memory,
                    self.now,
                    int(p.steps),
                )
                for p in self.programs
            ],
            self.now,
        )


def test_unknown_clients_with_room_for_each_other_stay_together_from_the_start() -> None:
    card = Card([Program("a", on=50, off=60), Program("b", on=50, off=50)])
    card.sample()
    card.together(20)
    assert card.separated == []
    assert card.packed == ["a", "b"]


@pytest.mark.parametrize(("efficiency", "packs"), [(1.0, True), (0.7, False)])
def test_unknown_clients_that_keep_the_device_busy_run_exclusively_first(efficiency: float, packs: bool) -> None:
    card = Card([Program("a"), Program("b")], efficiency)
    card.sample()
    card.together(4)
    assert [name for _, name in card.separated] == ["b"]
    assert not card.packing.may_join("b", ["a"], card.now)
    card.run_exclusively(card.programs[0], 3)
    assert not card.packing.may_join("b", ["a"], card.now), "the rate of one client is still unknown"
    card.run_each_exclusively(3)
    card.packing.set_members(card.packed, card.now)
    card.together(20)
    assert card.packed == (["a", "b"] if packs else ["a"])


def test_a_pause_counts_in_the_exclusive_rate() -> None:
    card = Card([Program("a", on=30, off=70)])
    card.run_each_exclusively()
    work = card.packing.exclusive_work("a")
    assert work and work.blocks / work.seconds == pytest.approx(0.3 * 100_000, rel=0.02)


@pytest.mark.parametrize("efficiency", [0.5, 0.7, 0.8])
def test_clients_that_slow_each_other_down_are_separated_within_two_trials(efficiency: float) -> None:
    card = Card([Program("a"), Program("b", speed=3.0)], efficiency)
    card.run_each_exclusively()
    began = card.now
    card.together(60)
    assert [client for _, client in card.separated] == ["b"], "the last that joined, and once"
    assert card.separated[0][0] - began <= 2 * 2.0 + 1.0


@pytest.mark.parametrize("efficiency", [1.0, 1.05, 1.1])
@pytest.mark.parametrize("count", [2, 3])
def test_packings_without_loss_are_kept(efficiency: float, count: int) -> None:
    card = Card([Program(f"p{number}") for number in range(count)], efficiency)
    card.run_each_exclusively()
    card.together(60)
    assert card.separated == []
    assert len(card.packed) == count


@given(
    st.lists(st.tuples(st.integers(5, 200), st.integers(1, 200)), min_size=2, max_size=3),
    st.sampled_from([0.97, 1.0, 1.1]),
    st.integers(0, 200),
)
@settings(max_examples=tier.strength(15, 250), deadline=None)
def test_bursty_clients_are_never_separated(cycles: list[tuple[int, int]], efficiency: float, shift: int) -> None:
    card = Card([Program(f"p{number}", on, off) for number, (on, off) in enumerate(cycles)], efficiency)
    card.run_each_exclusively(3 + shift / 1000)
    card.together(20)
    assert card.separated == []
    assert len(card.packed) == len(cycles)


def test_simultaneous_pauses_count_as_no_loss() -> None:
    """Both clients worked all the time in exclusive runs; packed, both work half of the time, at the same moments."""
    card = Card([Program("a"), Program("b")])
    card.run_each_exclusively()
    for program in card.programs:
        program.on = program.left = 500
        program.off = 1000
    card.together(60)
    assert card.separated == []


def test_turns_that_cost_much_make_a_lossy_packing_worth_it() -> None:
    card = Card([Program("a"), Program("b")], efficiency=0.8)
    card.run_each_exclusively()
    card.join()
    card._run(card.programs, 4.0)
    assert card.packing.client_to_separate(card.now, overhead=0.3) is None
    card._run(card.programs, 4.0)
    assert card.packing.client_to_separate(card.now, overhead=0.0) == "b"


class TestFailedPackings:
    @pytest.fixture
    def card(self) -> Card:
        """Return a device on which the clients a and b have been separated, and c has ended."""
        third = Program("c")
        card = Card([Program("a"), Program("b"), third], 0.6)
        card.run_each_exclusively()
        card.programs.remove(third)
        card.together(10)
        assert [name for _, name in card.separated] == ["b"]
        return card

    def may_join(self, card: Card, *members: str) -> bool:
        return card.packing.may_join(members[0], members[1:], card.now)

    def test_verdict_expires(self, card: Card) -> None:
        assert not self.may_join(card, "b", "a")
        card.now += FAILURE_VALID_SECONDS - 15
        assert not self.may_join(card, "b", "a")
        card.now += 15
        assert self.may_join(card, "b", "a")

    def test_verdict_covers_larger_packings_only(self, card: Card) -> None:
        assert not self.may_join(card, "b", "a", "c")
        assert self.may_join(card, "b", "c")

    def test_the_failure_has_its_members_and_their_progress(self, card: Card) -> None:
        """Two clients that keep the device busy get 60 % of the work done that they get done in turns."""
        members, progress = card.packing.failure("b", ["a"], card.now) or (frozenset(), 0.0)
        assert members == {"a", "b"}
        assert progress == pytest.approx(0.6, abs=0.05)
        assert card.packing.failure("c", ["a", "b"], card.now) is None, "which fails without c as well"
        assert card.packing.failure("b", ["c"], card.now) is None
        assert card.packing.failure("b", ["a"], card.now + FAILURE_VALID_SECONDS) is None

    def test_other_memory_makes_another_program(self, card: Card) -> None:
        card.programs[1].memory *= 2
        card.sample()
        card.now += 1
        card.sample()
        assert self.may_join(card, "b", "a")

    def test_another_rate_makes_another_program(self, card: Card) -> None:
        card.programs[1].speed *= 2
        card.run_exclusively(card.programs[1], 20)
        card.run_exclusively(card.programs[1], 20)
        assert self.may_join(card, "b", "a")

    def test_ended_client_is_removed_from_packings(self, card: Card) -> None:
        card.packing.remove("b")
        card.sample()
        card.run_exclusively(card.programs[1], 4)
        assert self.may_join(card, "b", "a")


class TestTrainingSteps:
    """A member that marks training steps is measured by them, and any other by its blocks."""

    @pytest.mark.parametrize("step", [2.0, 10.0, 45.0])
    @pytest.mark.parametrize("speed", [100.0, 0.0], ids=["blocks", "graphs"])
    def test_a_loss_of_steps_separates(self, step: float, speed: float) -> None:
        """While they are packed, both launch as many blocks as before, such as those that wait for the device."""
        card = Card([Program("a", step=step, speed=speed), Program("b", step=step, speed=speed)], efficiency=0.6)
        card.run_each_exclusively()
        for program in card.programs:
            program.speed /= 0.6
        began = card.now
        card.together(60)
        assert [client for _, client in card.separated] == ["b"]
        assert card.separated[0][0] - began <= 2 * 4.0 + 1.0

    def test_other_launches_with_the_same_steps_are_no_loss(self) -> None:
        card = Card([Program("a", step=10), Program("b", step=10)])
        card.run_each_exclusively()
        for program in card.programs:
            program.speed /= 3
        card.together(60)
        assert card.separated == []

    def test_a_client_without_steps_is_measured_by_its_blocks(self) -> None:
        card = Card([Program("a"), Program("b", step=10)])
        card.run_each_exclusively()
        card.programs[0].speed /= 3
        card.together(20)
        assert card.separated

    @pytest.mark.parametrize("step", [150.0, 700.0, 5000.0])
    @pytest.mark.parametrize(("efficiency", "separates"), [(0.6, True), (1.0, False)])
    def test_long_steps_delay_a_verdict_for_ten_seconds_at_most(
        self, step: float, efficiency: float, separates: bool
    ) -> None:
        card = Card([Program("a", step=step), Program("b", step=step)], efficiency)
        card.run_each_exclusively(10)
        began = card.now
        card.together(60)
        assert [client for _, client in card.separated] == (["b"] if separates else [])
        assert all(at - began <= 10.0 + 1.0 for at, _ in card.separated)

    @pytest.mark.parametrize("marked_exclusively", [True, False])
    def test_a_program_that_begins_or_ceases_to_mark_is_measured_by_blocks(self, marked_exclusively: bool) -> None:
        card = Card([Program("a"), Program("b")])
        for program in card.programs:
            program.step = 10.0 if marked_exclusively else 0.0
        card.run_each_exclusively()
        for program in card.programs:
            program.step = 0.0 if marked_exclusively else 10.0
        card.together(60)
        assert card.separated == []

    def test_graphs_that_were_not_marked_in_their_exclusive_run_run_exclusively_again(self) -> None:
        card = Card([Program("a"), Program("b", step=10)])
        card.run_each_exclusively()
        card.programs[0].speed, card.programs[0].step = 0.0, 10.0
        card.together(20)
        assert [client for _, client in card.separated] == ["b"]
        card.run_each_exclusively()
        card.packing.set_members(card.packed, card.now)
        card.together(40)
        assert card.packed == ["a", "b"]

    @given(
        st.lists(st.tuples(st.integers(5, 200), st.integers(1, 200), st.integers(1, 300)), min_size=2, max_size=3),
        st.sampled_from([0.97, 1.0, 1.1]),
    )
    @settings(max_examples=tier.strength(10, 250), deadline=None)
    def test_bursty_clients_with_steps_are_never_separated(
        self, cycles: list[tuple[int, int, int]], efficiency: float
    ) -> None:
        programs = [Program(f"p{number}", on, off, step=step) for number, (on, off, step) in enumerate(cycles)]
        card = Card(programs, efficiency)
        card.run_each_exclusively(4)
        card.together(30)
        assert card.separated == []


def test_too_few_samples_give_no_verdict() -> None:
    card = Card([Program("a"), Program("b")], efficiency=0.3)
    card.run_each_exclusively()
    card.join()
    card._run(card.programs, 1.0)
    assert card.packing.client_to_separate(card.now) is None


def test_while_members_change_nothing_is_measured() -> None:
    card = Card([Program("a"), Program("b")], efficiency=0.3)
    card.run_each_exclusively()
    for _ in range(20):
        card.packed = ["a", "b"]
        card.packing.set_members(card.packed, card.now)
        card._run(card.programs, 0.6)
        card.packing.set_members(["a"], card.now)
        card._run(card.programs[:1], 0.5)
        card.sample()
        assert card.packing.client_to_separate(card.now) is None
