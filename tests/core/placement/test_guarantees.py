"""Tests of tenants' guarantees (HiveD): refusals, guests on idle cells, changes, and failed devices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.placement import LEVELS, Placement, PlacementRequest, PlacementSettings, Tenant
from jupyter_gpushare.core.placement.guarantees import Guarantees
from jupyter_gpushare.core.placement.topology_cells import TopologyTree

from ...support import tier
from .placements import TWO_SOCKETS, make_tenant_placement, place_client
from .test_topology_cells import trees


def test_a_gang_larger_than_the_guarantee_is_refused_with_the_reason() -> None:
    placement = make_tenant_placement(8, TWO_SOCKETS, students={"switch": 1})
    assert len(place_client(placement, "a", "students", gpus=2)) == 2
    with pytest.raises(Refused, match="is not among the cells of tenant 'students'"):
        place_client(placement, "b", "students", gpus=3)


def test_guests_get_idle_cells_and_give_way_at_once() -> None:
    placement = make_tenant_placement(2, None, a={"device": 1}, b={"device": 1})
    guest = place_client(placement, "guest")
    assert placement.guests_to_preempt == set()
    place_client(placement, "of-a", "a")
    assert placement.guests_to_preempt == set(), "another cell was free without a guest that must give way"
    place_client(placement, "of-b", "b")
    assert placement.placed["of-b"].devices == guest
    assert placement.guests_to_preempt == {"guest"}
    with pytest.raises(Refused, match="is in use by tenant 'a', which is guaranteed it"):
        place_client(placement, "late")
    placement.remove("of-b")
    assert placement.guests_to_preempt == set(), "the owner is idle again, so the guest may run"


def test_the_share_of_a_guest_stays_reserved() -> None:
    placement = make_tenant_placement(1, None, a={"device": 1})
    place_client(placement, "guest", share=0.75)
    with pytest.raises(Refused, match=r"has 0\.25 of its share left"):
        place_client(placement, "late", "a", share=0.5)
    place_client(placement, "of-a", "a", share=0.25)
    assert placement.guests_to_preempt == {"guest"}


def test_offline_clients_use_whatever_is_least_used() -> None:
    placement = make_tenant_placement(3, None, a={"device": 2})
    place_client(placement, "online", "a")
    assert {place_client(placement, f"off{n}", "a", service="offline")[0] for n in range(2)} == {
        "d0",
        "d1",
        "d2",
    } - set(placement.placed["online"].devices)


def test_cells_that_cannot_all_have_a_place_are_refused_with_the_figures() -> None:
    with pytest.raises(Refused, match="more cells than exist: 3 socket; there are 8 device, 4 switch"):
        make_tenant_placement(8, TWO_SOCKETS, a={"socket": 2}, b={"socket": 1})


def test_guarantees_apply_once_enough_devices_exist() -> None:
    placement = Placement(PlacementSettings(tenants=(Tenant("a", cells={"device": 2}),)))
    placement.add_device("d0", "", 0)
    assert "2 device" in placement.unmet_guarantees
    placement.add_device("d1", "", 0)
    assert (placement.unmet_guarantees, placement.owner("d0"), placement.owner("d1")) == ("", "a", "a")


def test_tenants_change_live_and_clients_stay() -> None:
    placement = make_tenant_placement(2)
    place_client(placement, "x")
    placement.configure(PlacementSettings(tenants=(Tenant("a", cells={"device": 2}),)))
    assert place_client(placement, "y", "a") == ("d1",)
    place_client(placement, "z", "a")
    assert placement.guests_to_preempt == {"x"}
    with pytest.raises(Refused, match="3 device"):
        placement.configure(PlacementSettings(tenants=(Tenant("a", cells={"device": 3}),)))
    assert placement.owner("d0") == "a", "a refusal changes nothing"


@st.composite
def guaranteed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """Draw a topology, and disjoint cells of it for three tenants."""
    nodes = draw(trees())
    tree = TopologyTree(nodes)
    taken: list[Any] = []
    cells: dict[str, dict[str, int]] = {}
    for tenant in ("a", "b", "c"):
        for _ in range(draw(st.integers(0, 3))):
            level = draw(st.integers(0, 3))
            free = [cell for cell in tree.levels[level] if not any(cell.overlaps(other) for other in taken)]
            if free:
                taken.append(free[draw(st.integers(0, len(free) - 1))])
                counts = cells.setdefault(tenant, {})
                counts[LEVELS[level]] = counts.get(LEVELS[level], 0) + 1
    assume(cells)
    return nodes, cells


class Hive(RuleBasedStateMachine):
    """Clients of tenants, guests and failures in any order, on any host."""

    @initialize(made=guaranteed())
    def begin(self, made: tuple[dict[str, Any], dict[str, dict[str, int]]]) -> None:
        nodes, cells = made
        self.placement = make_tenant_placement(len(TopologyTree(nodes).leaves), nodes, **cells)
        self.names = sorted(cells)
        self.sizes = {t: sum(len(s.cell.devices) for s in self.slots(t)) for t in self.names}
        self.number = 0

    @property
    def guarantees(self) -> Guarantees:
        assert self.placement.guarantees
        return self.placement.guarantees

    def slots(self, tenant: str) -> list[Any]:
        return self.guarantees.slots_of(tenant)

    @rule(data=st.data(), service=st.sampled_from(["online", "online", "offline"]))
    def ask_within_the_guarantee(self, data: st.DataObject, service: str) -> None:
        tenant = data.draw(st.sampled_from(self.names))
        failed = {uuid for uuid, device in self.placement.allocations.items() if device.failure}
        # Within a cell any number of working devices is available. A gang across cells may find them in two nodes.
        most = max((len(set(slot.cell.devices) - failed) for slot in self.slots(tenant)), default=0)
        if not most:
            return
        self.number += 1
        gpus = data.draw(st.integers(1, most))
        devices = self.placement.place(f"c{self.number}", PlacementRequest(gpus=gpus, service=service), tenant)
        assert len(devices) == gpus
        assert not failed & set(devices)
        if service == "online":
            assert all(self.placement.owner(uuid) == tenant for uuid in devices)
            assert f"c{self.number}" not in self.placement.guests_to_preempt

    @rule()
    def a_client_without_a_tenant_asks(self) -> None:
        self.number += 1
        try:
            (uuid,) = self.placement.place(f"c{self.number}", PlacementRequest())
        except Refused:
            assert all(
                device.failure
                or (self.placement.owner(uuid) and device.clients)
                or self.guarantees.owners[uuid].is_bound
                for uuid, device in self.placement.allocations.items()
            )
            return
        assert f"c{self.number}" not in self.placement.guests_to_preempt
        assert not self.placement.allocations[uuid].failure

    @precondition(lambda self: self.placement.placed)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.placement.remove(data.draw(st.sampled_from(sorted(self.placement.placed))))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.placement.allocations)))
        on = self.placement.fail(uuid, "test")
        assert set(on) == {c for c, placed in self.placement.placed.items() if uuid in placed.devices}

    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        self.placement.recover(data.draw(st.sampled_from(sorted(self.placement.allocations))))

    @invariant()
    def every_tenant_has_its_own_cells_only(self) -> None:
        guarantees = self.guarantees
        cells = [slot.cell for slot in guarantees.slots]
        assert not any(a is not b and a.overlaps(b) for a in cells for b in cells)
        for tenant in self.names:
            counts: dict[str, int] = {}
            for slot in self.slots(tenant):
                counts[LEVELS[slot.level]] = counts.get(LEVELS[slot.level], 0) + 1
                assert slot.cell.level == slot.level
                assert all(guarantees.owners[uuid] is slot for uuid in slot.cell.devices)
            assert counts == dict(self.placement.tenants.tenants[tenant].cells)

    @invariant()
    def guests_on_claimed_devices_must_give_way(self) -> None:
        guarantees = self.guarantees
        for client, placed in self.placement.placed.items():
            claimed = [
                uuid
                for uuid in placed.devices
                if uuid in guarantees.owners
                and guarantees.owners[uuid].is_bound
                and guarantees.owners[uuid].tenant != placed.tenant
            ]
            assert (client in self.placement.guests_to_preempt) == bool(claimed)

    @invariant()
    def slots_are_bound_exactly_while_their_tenant_is_there(self) -> None:
        for tenant in self.names:
            for slot in self.slots(tenant):
                clients = {
                    client
                    for client, placed in self.placement.placed.items()
                    if placed.tenant == tenant and set(placed.devices) & set(slot.cell.devices)
                }
                assert slot.clients == clients

    @invariant()
    def no_idle_cell_has_a_failed_device_if_a_working_cell_is_free(self) -> None:
        guarantees = self.guarantees
        failed = {uuid for uuid, device in self.placement.allocations.items() if device.failure}
        taken = {uuid for slot in guarantees.slots for uuid in slot.cell.devices}
        for slot in guarantees.slots:
            if not slot.is_bound and failed & set(slot.cell.devices):
                least = len(set(slot.cell.devices) - failed)
                cells = guarantees.tree.levels[slot.level]
                working = [c for c in cells if len(c.devices) >= least and not (failed | taken) & set(c.devices)]
                assert not working, f"{slot.cell.path} has a failed device, and {working[0].path} is free"


TestHive = Hive.TestCase
TestHive.settings = settings(max_examples=tier.strength(30, 600), stateful_step_count=30, deadline=None)


@given(made=guaranteed(), data=st.data())
@settings(deadline=None)
def test_guaranteed_cells_avoid_failed_devices_without_clients(
    made: tuple[dict[str, Any], dict[str, dict[str, int]]], data: st.DataObject
) -> None:
    from jupyter_gpushare.core.placement.cell_packing import pack_cells

    nodes, cells = made
    tree = TopologyTree(nodes)
    placement = make_tenant_placement(len(tree.leaves), nodes, **cells)
    failed = data.draw(st.sets(st.sampled_from(sorted(tree.leaves))))
    for uuid in failed:
        placement.fail(uuid, "test")
        tree.set_failed(uuid, True)
    wanted = [sum(levels.get(name, 0) for levels in cells.values()) for name in LEVELS]
    assert placement.guarantees
    # On asymmetric hosts, a tenant with a large cell keeps it for its working devices, and gets no smaller cell.
    on_bad = [slot for slot in placement.guarantees.slots if failed & set(slot.cell.devices)]
    alike = all(len({len(cell.devices) for cell in cells}) == 1 for cells in tree.levels)
    if alike and pack_cells(tree.roots, wanted) is not None:
        assert not on_bad
