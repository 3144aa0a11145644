"""Tests of the choice of a node by reports that may be old: bookings, refusals, lost nodes, gangs, labels, tenants."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.errors import NoNode, NoRoom, PlacementFailed, Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.cluster.cluster_placement import ClusterPlacement
from jupyter_gpushare.core.cluster.node_report import NO_COORDINATOR, ReportedClient
from jupyter_gpushare.core.placement import PlacementRequest, Tenant

from .clusters import GIB, MEMORY, choose, make_cluster, report, reported


def test_starts_at_the_same_time_go_to_different_nodes() -> None:
    cluster = make_cluster({"a": 1, "b": 1, "c": 1})
    assert {choose(cluster, f"c{n}").node for n in range(3)} == {"a", "b", "c"}


def test_a_booking_lasts_until_the_node_reports_the_client() -> None:
    cluster = make_cluster({"a": 1})
    choose(cluster, "one", share=0.7, now=1.0)
    cluster.observe("a", report(1), asked_at=2.0)  # the client has not been admitted yet
    with pytest.raises(NoRoom, match=r"A100 of a\) has 0\.3 of its share left"):
        choose(cluster, "two", share=0.7, now=3.0)
    cluster.observe("a", report(1, reported("one", "d0", share=0.2)), asked_at=4.0)
    assert not cluster.bookings
    assert choose(cluster, "two", share=0.7, now=5.0).node == "a", "the report counts, not the booking"


def test_a_booking_ends_when_another_node_has_taken_the_client() -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    cluster.observe("b", report(1, reported("one", "d0")), asked_at=1.0)
    assert choose(cluster, "one", share=1.0, nodes=["a"]).node == "a"
    cluster.observe("b", report(1, reported("one", "d0", share=0.1)), asked_at=2.0)
    assert "one" in cluster.bookings, "the node had the client before the start"
    assert choose(cluster, "two", share=0.5, nodes=["b"]).node == "b"
    cluster.observe("a", report(1, reported("two", "d0", share=0.5)), asked_at=3.0)
    assert "two" not in cluster.bookings


def test_a_booking_ends_after_its_time() -> None:
    cluster = make_cluster({"a": 1})
    choose(cluster, "one", share=1.0, now=0.0)
    with pytest.raises(NoRoom):
        choose(cluster, "two", share=1.0, now=59.9)
    assert choose(cluster, "two", share=1.0, now=60.0).node == "a"


def test_another_try_replaces_the_booking_of_the_client() -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    first = choose(cluster, "one", share=1.0).node
    second = choose(cluster, "one", share=1.0, refused={first}).node
    assert {first, second} == {"a", "b"}
    assert choose(cluster, "two", share=1.0).node == first


def test_a_refusal_is_final_for_this_try() -> None:
    cluster = make_cluster({"a": 8, "b": 1})
    assert choose(cluster, "one", refused={"a"}).node == "b"
    with pytest.raises(Refused):
        choose(cluster, "one", refused={"a", "b"})
    assert not cluster.bookings


def test_only_the_nodes_of_the_request_count() -> None:
    cluster = make_cluster({"a": 8, "b": 1})
    assert choose(cluster, "one", nodes=["b", "unheard-of"]).node == "b"
    with pytest.raises(NoNode):
        choose(cluster, "two", nodes=["unheard-of"])


def test_a_report_that_was_asked_for_earlier_is_ignored() -> None:
    cluster = make_cluster({"a": 1})
    cluster.observe("a", report(1, reported("one", "d0", share=1.0)), asked_at=2.0)
    cluster.observe("a", report(1), asked_at=1.0)
    with pytest.raises(NoRoom):
        choose(cluster, "two", share=1.0)


def test_clients_that_other_servers_have_started_count() -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    cluster.observe("a", report(1, reported("other", "d0", memory=10 * GIB)), asked_at=1.0)
    assert choose(cluster, "one").node == "b"


def test_a_client_may_be_reported_by_two_nodes_while_it_restarts() -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    client = reported("one", "d0", share=1.0)
    cluster.observe("a", report(1, client), asked_at=1.0)
    assert choose(cluster, "one", share=1.0, refused={"a"}).node == "b"
    cluster.observe("b", report(1, client), asked_at=2.0)
    cluster.observe("a", report(1), asked_at=3.0)
    assert choose(cluster, "two", share=1.0).node == "a"


@pytest.mark.parametrize("failed", [True, False])
def test_a_lost_node_and_a_failed_device_get_no_client_until_they_are_back(failed: bool) -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    cluster.observe("b", report(1, reported("other", "d0")), asked_at=1.0)
    if failed:
        cluster.observe("a", report(1, failed=[0]), asked_at=2.0)
    else:
        cluster.lose("a", "no answer for 20 s")
    assert choose(cluster, "one", share=0.1).node == "b"
    cluster.observe("a", report(1), asked_at=3.0)
    assert choose(cluster, "two", share=0.1).node == "a"


def test_a_client_of_a_lost_node_restarts_within_the_ceilings_of_its_tenant() -> None:
    cluster = make_cluster({"a": 1, "b": 1}, ceilings=[Tenant("solo", share=1.0, max_clients=1)])
    old = reported("one", "d0", share=1.0, tenant="solo")
    cluster.observe("a", report(1, old), asked_at=1.0)
    cluster.lose("a", "no answer")
    assert choose(cluster, "one", "solo", quota=Quota(share=1.0), refused={"a"}).node == "b"
    with pytest.raises(NoRoom, match="allowed are 1"):
        choose(cluster, "two", "solo", quota=Quota())
    cluster.release("one")
    with pytest.raises(NoRoom, match="has 1 clients"):
        choose(cluster, "two", "solo", quota=Quota())


def test_clients_of_a_lost_node_do_not_bind_others_by_affinity() -> None:
    cluster = make_cluster({"a": 1, "b": 1})
    assert choose(cluster, "one", affinity="pair", nodes=["a"]).node == "a"
    cluster.observe("a", report(1, reported("one", "d0", affinity="pair")), asked_at=1.0)
    cluster.lose("a", "no answer")
    assert choose(cluster, "two", affinity="pair").node == "b"
    cluster.observe("a", report(1, reported("one", "d0", affinity="pair")), asked_at=2.0)
    assert choose(cluster, "three", affinity="pair").node in ("a", "b")


def test_nodes_that_have_never_answered_get_no_client() -> None:
    cluster = ClusterPlacement()
    cluster.add_node("a")
    with pytest.raises(NoNode):
        choose(cluster, "one")
    cluster.lose("a", "no route to the host")
    with pytest.raises(NoNode):
        choose(cluster, "one")


def test_each_node_without_a_coordinator_gets_one_start_first() -> None:
    """The devices of such a node are unknown, and no client is there."""
    cluster = make_cluster({"known": 1})
    for node in ("a", "b"):
        cluster.observe(node, NO_COORDINATOR, asked_at=0.0)
    assert [choose(cluster, f"c{n}").node for n in range(3)] == ["a", "b", "known"]
    cluster.release("c0")
    assert choose(cluster, "c3").node == "a"
    assert choose(cluster, "c3", refused={"a"}).node == "known"
    assert choose(cluster, "c4").node == "known", "the node has refused a client"


def test_a_coordinator_without_devices_gets_no_start_before_other_nodes() -> None:
    cluster = make_cluster({"good": 1})
    cluster.observe("bare", report(0, ReportedClient("other", (), PlacementRequest())), asked_at=1.0)
    assert {choose(cluster, f"c{n}").node for n in range(3)} == {"good"}
    assert choose(cluster, "one", share=0.5, refused={"good"}).node == "bare"


def test_a_node_that_has_refused_a_client_comes_after_the_others_for_a_time() -> None:
    cluster = make_cluster({"a": 8, "b": 1})
    assert choose(cluster, "one").node == "a"
    assert choose(cluster, "one", refused={"a"}).node == "b"
    assert {choose(cluster, f"c{n}", now=29.0).node for n in range(3)} == {"b"}
    assert choose(cluster, "two", now=29.0, gpus=2).node == "a", "no other node has two devices"
    assert choose(cluster, "three", now=30.0).node == "a"

    assert choose(cluster, "three", refused={"a"}, now=31.0).node == "b"
    cluster.observe("a", report(8, reported("new", "d0")), asked_at=32.0)
    assert choose(cluster, "four", now=33.0).node == "a", "the node takes clients again"


def test_nodes_without_a_coordinator_share_the_starts_that_find_no_other_device() -> None:
    cluster = ClusterPlacement()
    for node in ("a", "b"):
        cluster.observe(node, NO_COORDINATOR, asked_at=0.0)
    assert [choose(cluster, f"c{n}").node for n in range(4)] == ["a", "b", "a", "b"]
    cluster.lose("a", "no answer")
    assert choose(cluster, "c4").node == "b"


def test_ceilings_hold_on_nodes_without_a_coordinator() -> None:
    cluster = make_cluster({}, ceilings=[Tenant("team", share=1.0)])
    cluster.observe("a", NO_COORDINATOR, asked_at=0.0)
    choose(cluster, "one", "team", share=0.6, quota=Quota(share=0.6))
    with pytest.raises(NoRoom, match=r"0\.6 of 1 are taken"):
        choose(cluster, "two", "team", share=0.6, quota=Quota(share=0.6))


def test_a_coordinator_that_has_ended_leaves_its_devices_known() -> None:
    cluster = make_cluster({"a": 1})
    cluster.observe("a", report(1, reported("one", "d0", share=1.0)), asked_at=1.0)
    cluster.observe("a", NO_COORDINATOR, asked_at=100.0)
    assert choose(cluster, "two", share=1.0).devices == ("d0",)


def test_a_coordinator_that_restarts_keeps_its_clients_and_its_failed_devices() -> None:
    cluster = make_cluster({"a": 2}, ceilings=[Tenant("team", max_clients=1)])
    running = report(2, reported("one", "d0", share=1.0, tenant="team"), failed=[1])
    cluster.observe("a", running, asked_at=1.0)
    cluster.lose("a", "no answer")
    cluster.observe("a", NO_COORDINATOR, asked_at=2.0)
    with pytest.raises(NoRoom, match="allowed are 1"):
        choose(cluster, "two", "team", quota=Quota())
    with pytest.raises(NoRoom, match="of its share left"):
        choose(cluster, "two", share=1.0)
    assert choose(cluster, "two", share=0.0).devices == ("d0",)


def test_a_node_may_come_back_with_other_devices() -> None:
    cluster = make_cluster({"a": 2})
    cluster.observe("a", report(2, reported("one", "d0", "d1", share=1.0)), asked_at=1.0)
    cluster.observe("a", report(4, reported("one", "d0", "d1", share=1.0)), asked_at=2.0)
    assert set(choose(cluster, "two", share=1.0, gpus=2).devices) == {"d2", "d3"}
    cluster.observe("a", report(1), asked_at=3.0)
    with pytest.raises(Refused):
        choose(cluster, "three", gpus=2)


def test_a_gang_is_on_one_node() -> None:
    cluster = make_cluster({"a": 2, "b": 2, "c": 4})
    cluster.observe("c", report(4, reported("other", "d0", share=1.0)), asked_at=1.0)
    choice = choose(cluster, "gang", gpus=3, share=1.0)
    assert (choice.node, set(choice.devices)) == ("c", {"d1", "d2", "d3"})
    with pytest.raises(NoRoom):
        choose(cluster, "gang of four", gpus=4, share=1.0)


def test_gradient_descent_keeps_whole_nodes_free() -> None:
    cluster = make_cluster({"a": 4, "b": 4}, "fgd")
    nodes = {choose(cluster, f"c{n}", share=0.5).node for n in range(4)}
    assert len(nodes) == 1
    assert len(choose(cluster, "gang", gpus=4, share=1.0).devices) == 4


def test_labels_and_exclusions_hold_over_nodes() -> None:
    cluster = make_cluster({"a": 1, "b": 1, "c": 1})
    first = choose(cluster, "one", affinity="pair")
    assert choose(cluster, "two", affinity="pair") == first
    alone = choose(cluster, "three", exclusion="alone").node
    assert alone != first.node
    with pytest.raises(NoRoom):
        choose(cluster, "pair elsewhere", affinity="pair", refused={first.node})
    assert {choose(cluster, f"c{n}").node for n in range(4)} == {"a", "b", "c"} - {alone}
    cluster.observe("b", report(1, reported("apart", "d0", anti_affinity="x")), asked_at=1.0)
    assert choose(cluster, "four", anti_affinity="x").node not in ("b", alone)


@pytest.mark.parametrize(("word", "device"), [("1", "d1"), ("d1", "d1"), ("a100", "d0"), ("A100", "d0")])
def test_a_request_names_devices_as_on_their_node(word: str, device: str) -> None:
    cluster = make_cluster({"a": 1, "b": 2})
    choice = choose(cluster, "one", devices=(word,), nodes=["b"])
    assert choice.devices == (device,)


def test_a_device_that_no_node_has_is_refused() -> None:
    with pytest.raises(PlacementFailed, match="device='h200' does not exist on any node"):
        choose(make_cluster({"a": 1}), "one", devices=("h200",))


def test_a_tenant_has_whole_nodes() -> None:
    cluster = make_cluster({"a": 2, "b": 2, "c": 2}, team={"node": 2})
    own = {choose(cluster, f"c{n}", "team", share=1.0).node for n in range(4)}
    assert len(own) == 2
    with pytest.raises(NoRoom):
        choose(cluster, "c4", "team", share=1.0)
    guest = choose(cluster, "guest").node
    assert guest not in own


def test_a_guest_comes_only_to_nodes_that_their_tenant_does_not_use() -> None:
    cluster = make_cluster({"a": 1, "b": 1}, team={"node": 1}, other={"node": 1})
    assert {choose(cluster, f"g{n}").node for n in range(2)} == {"a", "b"}
    own = choose(cluster, "one", "team").node
    assert {choose(cluster, f"late{n}").node for n in range(3)} == {"a", "b"} - {own}


def test_cells_wait_for_nodes_that_have_not_come() -> None:
    cluster = make_cluster({"a": 2}, team={"node": 2}, other={"device": 1})
    assert cluster.missing_cells.total() == 2
    cluster.observe("b", report(2), asked_at=1.0)
    cluster.observe("c", report(2), asked_at=1.0)
    assert not cluster.missing_cells
    nodes = {choose(cluster, f"c{n}", "team", share=1.0).node for n in range(4)}
    assert len(nodes) == 2
    assert choose(cluster, "other", "other").node not in nodes


def test_cells_leave_a_lost_node() -> None:
    cluster = make_cluster({"a": 1, "b": 1}, team={"node": 1})
    first = choose(cluster, "one", "team").node
    cluster.release("one")
    cluster.lose(first, "no answer")
    assert choose(cluster, "one", "team").node != first


def test_a_tenant_with_missing_cells_may_start_on_a_node_without_a_coordinator() -> None:
    cluster = ClusterPlacement(make_cluster({}, team={"node": 1}).settings)
    cluster.observe("a", NO_COORDINATOR, asked_at=0.0)
    assert choose(cluster, "one", "team").node == "a"
    cluster.observe("a", report(1, reported("one", "d0", tenant="team")), asked_at=1.0)
    cluster.observe("b", NO_COORDINATOR, asked_at=1.0)
    assert choose(cluster, "two", "team").node == "a", "the tenant has its cell now"


def test_ceilings_of_a_tenant_hold_over_all_nodes() -> None:
    cluster = make_cluster({"a": 4, "b": 4}, ceilings=[Tenant("team", share=1.5)])
    quota = Quota(share=0.5)
    for number in range(3):
        choose(cluster, f"c{number}", "team", share=0.5, quota=quota)
    with pytest.raises(NoRoom, match=r"1\.5 of 1\.5 are taken"):
        choose(cluster, "c3", "team", share=0.5, quota=quota)
    choose(cluster, "without a tenant", share=0.5, quota=quota)


def test_memory_that_clients_have_asked_for_counts() -> None:
    cluster = make_cluster({"a": 1, "b": 1}, "pack")
    choose(cluster, "one", memory=60 * GIB)
    assert choose(cluster, "two", memory=MEMORY // 2).node == "b"
