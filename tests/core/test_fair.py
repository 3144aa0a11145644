"""Tests of the policy `fair` and its presets: fractions of device time under shares and limits, in virtual time."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.measure.time_limit import TimeLimitBucket
from jupyter_gpushare.core.queueing.policies import POLICIES

from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess

GIB = 1 << 30  # of the device
QUANTUM_SECONDS = 1.0
TEN_QUANTA = 10 * QUANTUM_SECONDS


def make_policy_host(policy: str, **settings: float) -> SimulatedHost:
    return host_of("gpu", **{"policy": policy, "time_quantum": QUANTUM_SECONDS, **settings})


def cells(host: SimulatedHost, process: SimulatedProcess, every: float, length: float) -> None:
    """Begin a cell of `length` seconds of work `every` so many seconds, unless the last cell still runs."""

    def begin() -> None:
        host.call_after(every, begin)
        if process.gate == "closed" and not process.waits:
            host.run_cell(process, length)

    begin()


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.5), (0.6, 0.4), (0.5, 0.3, 0.2), (0.7, 0.2, 0.1), (0.25,) * 4, (0.6, 0.2), (0.1, 0.1), (0.5, 0.0, 0.0)],
)
def test_shares_within_two_percent_over_ten_quanta(shares: tuple[float, ...]) -> None:
    """Time that no share guarantees is divided equally."""
    host = make_policy_host("fair")
    for number, share in enumerate(shares):
        host.start_client(f"c{number}", share=share)
    left = (1 - sum(shares)) / len(shares)
    for _ in range(3):
        got = host.fractions(TEN_QUANTA)
        assert got == pytest.approx({f"c{n}": share + left for n, share in enumerate(shares)}, abs=0.02)


def test_light_client_gets_its_demand_and_the_rest_keep_their_shares() -> None:
    host = make_policy_host("fair", cell_linger=0.0)
    little = host.start_client("little", share=0.5, busy=False)
    host.start_client("half", share=0.3)
    host.start_client("rest", share=0.2)
    cells(host, little, every=3.0, length=0.3)
    host.run(30)
    got = host.fractions(60)
    assert got["little"] == pytest.approx(0.1, abs=0.005)
    assert got["half"] >= 0.3
    assert got["rest"] >= 0.2
    assert 1.2 < got["half"] / got["rest"] < 1.5, "by their shares, with the free time in equal parts"
    assert host.scheduler.clients["little"].wait_seconds_at(host.now) / 30 < QUANTUM_SECONDS / 2


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [("fair", 5.0), ("fair", 600.0), ("best_effort", 600.0), ("burst_share", 600.0), ("weighted", 60.0)],
)
def test_idle_time_is_used_by_others_until_its_owner_returns(policy: str, seconds: float) -> None:
    """A client that has used others' time, and a client that comes back, have their shares from the first turn on."""
    host = make_policy_host(policy)
    host.start_client("borrows", share=0.5)
    assert host.fractions(seconds)["borrows"] == pytest.approx(1)
    host.start_client("owns", share=0.5)
    host.run(0)
    assert host.running() == "owns", "at once"
    for _ in range(3):
        assert host.fractions(TEN_QUANTA) == pytest.approx({"borrows": 0.5, "owns": 0.5}, abs=0.03)


def test_overuse_is_debited() -> None:
    """Each turn of one client drains long after its end, so the other client has longer turns."""
    host = make_policy_host("fair")
    host.start_client("slow", share=0.5, drains_in=0.09)
    host.start_client("quick", share=0.5)
    host.run(TEN_QUANTA)
    assert host.fractions(2 * TEN_QUANTA) == pytest.approx({"slow": 0.5, "quick": 0.5}, abs=0.02)


def test_client_without_a_share_waits_at_most_max_wait_with_full_shares() -> None:
    host = make_policy_host("fair", max_wait=20.0)
    host.start_client("a", share=0.6)
    host.start_client("b", share=0.4)
    host.start_client("poor")
    host.run(QUANTUM_SECONDS)
    for _ in range(4):
        assert 0 < host.fractions(20 + 3 * QUANTUM_SECONDS)["poor"] < 0.05


class TestPresets:
    @pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
    def test_fixed_share_is_a_cap_on_an_idle_device(self, share: float) -> None:
        host = make_policy_host("fixed_share")
        host.start_client("a", share=share)
        assert host.fractions(60)["a"] == pytest.approx(share, rel=0.02)

    @pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.3, 0.2), (0.6, 0.2), (0.25, 0.25, 0.25)])
    def test_fixed_share_gives_the_share(self, shares: tuple[float, ...]) -> None:
        host = make_policy_host("fixed_share")
        for number, share in enumerate(shares):
            host.start_client(f"c{number}", share=share)
        for _ in range(3):
            got = host.fractions(TEN_QUANTA)
            assert got == pytest.approx({f"c{n}": share for n, share in enumerate(shares)}, abs=0.02)

    def test_best_effort_ignores_shares_and_limits(self) -> None:
        host = make_policy_host("best_effort")
        host.start_client("a", share=0.8)
        host.start_client("b", limit=0.1)
        host.start_client("c")
        assert host.fractions(TEN_QUANTA) == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=0.02)

    def test_weighted_counts_only_proportions(self) -> None:
        host = make_policy_host("weighted")
        for name, share in {"a": 0.4, "b": 0.2, "c": 0.1, "no share": 0.0}.items():
            host.start_client(name, share=share)
        expected = {"a": 0.5, "b": 0.25, "c": 0.125, "no share": 0.125}
        assert host.fractions(TEN_QUANTA) == pytest.approx(expected, abs=0.02)


class TestLimit:
    @pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("best_effort", "burst_share")])
    @pytest.mark.parametrize(("limit", "quantum"), [(0.05, 30.0), (0.3, 1.0), (0.3, 30.0), (0.8, 30.0)])
    def test_exact_over_a_minute_without_other_clients(self, policy: str, limit: float, quantum: float) -> None:
        host = make_policy_host(policy, time_quantum=quantum)
        host.start_client("a", limit=limit)
        for _ in range(2):
            assert host.fractions(60)["a"] == pytest.approx(limit, rel=0.02)

    def test_limit_is_a_cap_under_contention(self) -> None:
        host = make_policy_host("interactive")
        host.start_client("limited", limit=0.2)
        host.start_client("free")
        got = host.fractions(60)
        assert 0.15 <= got["limited"] <= 0.2 * 1.02
        assert got["free"] == pytest.approx(1 - got["limited"], abs=0.001)

    def test_time_without_work_is_not_saved_up(self) -> None:
        host = make_policy_host("fcfs")
        late = host.start_client("late", limit=0.25, busy=False)
        host.run(600)
        late.busy = True
        host.wait_at_gate(late)
        assert host.fractions(60)["late"] == pytest.approx(0.25, rel=0.03)

    def test_quota_changes_gain_nothing(self) -> None:
        host = make_policy_host("fcfs")
        host.start_client("a", limit=0.25)
        for _ in range(300):
            for limit in (0.26, 0.25):
                host.run(0.1)
                host.handle_event(ev.QuotaChanged("a", Quota(limit=limit)))
        assert host.granted_seconds("gpu")["a"] == pytest.approx(0.255 * 60, rel=0.03)

    def test_lower_limit_applies_at_once_to_a_paused_client(self) -> None:
        host = make_policy_host("fcfs")
        host.start_client("a", limit=0.5)
        host.run_until(lambda: host.running() is None)
        host.handle_event(ev.QuotaChanged("a", Quota(limit=0.05)))
        assert host.fractions(60)["a"] == pytest.approx(0.05, rel=0.1)

    def test_turns_in_a_row_pay_for_the_switch_before_them(self) -> None:
        """The memory of another client has left for that of the limited one, which then has the device alone."""
        limit, restore = 0.3, 0.3
        host = host_of("gpu", time_quantum="auto", policy="interactive")
        other = host.start_client("other")
        host.report_memory("other", 5 * GIB // 8)
        limited = host.start_client("limited", limit=limit)
        host.report_memory("limited", 5 * GIB // 8, GIB // 4)
        host.run_until(lambda: host.running() == "limited")
        other.busy = False
        host.stop_waiting(other)
        host.report_memory("other", 5 * GIB // 8, 3 * GIB // 8)
        host.run(restore)
        assert host.running() == "limited"
        host.report_memory("limited", 5 * GIB // 8)
        host.handle_event(ev.RestoreFinished(limited.number))
        lengths = []
        for _ in range(20):
            begin = host.now
            host.run_until(lambda: host.running() is None)
            lengths.append(host.now - begin)
            host.run_until(lambda: host.running() == "limited")
        assert lengths[0] == pytest.approx(restore, rel=0.01), "the first turn, from the end of its restore on"
        assert min(lengths[1:]) >= 1.99 * restore * (1 - limit)
        assert host.fractions(300)["limited"] == pytest.approx(limit, rel=0.02)

    @pytest.mark.parametrize("limit", [0.02, 0.2, 0.9])
    def test_turns_pay_for_their_switch_with_a_small_limit(self, limit: float) -> None:
        allowance = TimeLimitBucket(limit, quantum=0.1, cost=2.0, now=0.0)
        end = allowance.ends_at(0.0)
        assert end >= 2 * 2.0
        allowance.charge(end, end)
        assert end / allowance.ready_at() == pytest.approx(limit)
