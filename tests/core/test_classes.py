"""Service classes: online clients before offline ones, at once; in a class the policy in force decides."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.policies import POLICIES
from jupyter_gpushare.core.quota import Quota

from .world import World, host_of


def host(policy: str, **settings: object) -> World:
    return host_of("gpu", **{"policy": policy, "time_quantum": 1.0, **settings})


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("held", [False, True])
def test_an_offline_turn_ends_with_the_event_that_an_online_client_wants(policy: str, held: bool) -> None:
    world = host(policy, time_quantum=30.0)
    offline, online = world.start("offline", service="offline"), world.start("online", busy=False)
    if held:
        world.feed(ev.TurnHeld("offline", 100.0))
    world.run(0.01)
    before = len(world.commands)
    world.want(online)
    decided = world.commands[before:]
    assert any(
        isinstance(command, cmd.Permit) and command.client == "offline" and not command.may for command in decided
    )
    assert world.run_until(lambda: world.running() == "online") == 0
    assert offline.waits


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_offline_clients_run_only_while_no_online_one_wants(policy: str) -> None:
    """They have no bound of their own: `max_wait` counts within a class."""
    world = host(policy, max_wait=5.0)
    world.start("offline", service="offline")
    online = world.start("online")
    other = world.start("other")
    assert world.fractions(200) == pytest.approx({"offline": 0.0, "online": 0.5, "other": 0.5}, abs=0.02)
    for process in (online, other):
        process.busy = False
        world.feed(ev.TurnReleased(process.client))
        world.unwant(process)
    assert world.fractions(10)["offline"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("policy", "parts"),
    [("fair", (0.7, 0.3)), ("weighted", (0.7, 0.3)), ("best_effort", (0.5, 0.5)), ("interactive", (0.5, 0.5))],
)
@pytest.mark.parametrize("service", ["online", "offline"])
def test_within_a_class_the_policy_decides(policy: str, parts: tuple[float, float], service: str) -> None:
    world = host(policy)
    world.start("a", service=service, share=0.7)
    world.start("b", service=service, share=0.3)
    if service == "online":
        world.start("other", service="offline")
    world.run(1)
    got = world.fractions(20)
    assert (got["a"], got["b"]) == pytest.approx(parts, abs=0.03)


@pytest.mark.parametrize(("before", "client", "after"), [("online", "a", "offline"), ("offline", "b", "online")])
def test_a_client_that_changes_its_class_gives_way_or_takes_the_turn_at_once(
    before: str, client: str, after: str
) -> None:
    world = host("interactive", time_quantum=30.0)
    for name in "ab":
        world.start(name, service=before)
    world.run(1)
    world.feed(ev.QuotaChanged(client, Quota(service=after)))
    assert world.run_until(lambda: world.running() == "b") == 0
    world.run(100)
    assert world.running() == "b"
