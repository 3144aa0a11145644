"""Tests of the classes of service: online clients preempt offline clients, and within a class the policy decides."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.queueing.policies import POLICIES

from .simulated_host import SimulatedHost, host_of


def make_policy_host(policy: str, **settings: object) -> SimulatedHost:
    return host_of("gpu", **{"policy": policy, "time_quantum": 1.0, **settings})


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("is_held", [False, True])
def test_an_offline_turn_ends_with_the_event_of_a_waiting_online_client(policy: str, is_held: bool) -> None:
    host = make_policy_host(policy, time_quantum=30.0)
    offline, online = host.start_client("offline", service="offline"), host.start_client("online", busy=False)
    if is_held:
        host.handle_event(ev.HoldRequested("offline", 100.0))
    host.run(0.01)
    before = len(host.commands)
    host.wait_at_gate(online)
    decided = host.commands[before:]
    assert any(
        isinstance(command, cmd.Permit) and command.client == "offline" and not command.may for command in decided
    )
    assert host.run_until(lambda: host.running() == "online") == 0
    assert offline.waits


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_offline_clients_run_only_while_no_online_client_waits(policy: str) -> None:
    """Offline clients have no bound of their own, because `max_wait` counts within a class."""
    host = make_policy_host(policy, max_wait=5.0)
    host.start_client("offline", service="offline")
    online = host.start_client("online")
    other = host.start_client("other")
    assert host.fractions(200) == pytest.approx({"offline": 0.0, "online": 0.5, "other": 0.5}, abs=0.1)
    for process in (online, other):
        process.busy = False
        host.handle_event(ev.ReleaseRequested(process.client))
        host.stop_waiting(process)
    assert host.fractions(10)["offline"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("policy", "parts"),
    [("fair", (0.7, 0.3)), ("weighted", (0.7, 0.3)), ("best_effort", (0.5, 0.5)), ("interactive", (0.7, 0.3))],
)
@pytest.mark.parametrize("service", ["online", "offline"])
def test_within_a_class_the_policy_decides(policy: str, parts: tuple[float, float], service: str) -> None:
    host = make_policy_host(policy)
    host.start_client("a", service=service, share=0.7)
    host.start_client("b", service=service, share=0.3)
    if service == "online":
        host.start_client("other", service="offline")
    host.run(1)
    got = host.fractions(20)
    assert (got["a"], got["b"]) == pytest.approx(parts, abs=0.03)


@pytest.mark.parametrize(("before", "client", "after"), [("online", "a", "offline"), ("offline", "b", "online")])
def test_a_client_that_changes_its_class_gives_way_or_takes_the_turn_at_once(
    before: str, client: str, after: str
) -> None:
    host = make_policy_host("interactive", time_quantum=30.0)
    for name in "ab":
        host.start_client(name, service=before)
    host.run(1)
    host.handle_event(ev.QuotaChanged(client, Quota(service=after)))
    assert host.run_until(lambda: host.running() == "b") == 0
    host.run(100)
    assert host.running() == "b"
