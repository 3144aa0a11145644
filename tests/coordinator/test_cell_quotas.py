"""Tests of cell quotas on top of a client's own quota: nesting, ends, restarts of the coordinator, and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from jupyter_gpushare.coordinator.clients.cell_quotas import MAX_CHANGES, CellQuotas
from jupyter_gpushare.coordinator.transport.connection import Connection
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until

KERNEL = cast(Connection, object())


class QuotaWithCells:
    """Quota of a client with the changes by its cells."""

    def __init__(self, **own: Any) -> None:
        self.quota = Quota(**own)
        self.cells = CellQuotas()

    def begin(self, number: int, replaced: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
        allowed = self.cells.allowed_values(values, self.quota, replaced or {})
        own = {**vars(self.quota), **(replaced or {})}
        self.quota = replace(self.quota, **allowed)
        return self.cells.add(KERNEL, number, f"request-{number}", allowed, own)

    def end(self, **selection: Any) -> Quota:
        self.quota = replace(self.quota, **self.cells.remove(KERNEL, self.quota, **selection))
        return self.quota


def test_cell_quotas_nest_and_end_in_any_order() -> None:
    quotas = QuotaWithCells(share=0.1)
    quotas.begin(1, share=0.3)
    quotas.begin(2, share=0.2, limit=0.5)
    assert quotas.cells.own_quota(quotas.quota) == Quota(share=0.1)
    assert quotas.end(number=1) == Quota(share=0.2, limit=0.5)
    assert quotas.end(request="request-2") == Quota(share=0.1)


def test_disconnect_reverts_all_cell_quotas() -> None:
    quotas = QuotaWithCells(service="offline")
    quotas.begin(1, share=0.3)
    quotas.begin(2, service="online")
    assert quotas.end() == Quota(service="offline")


def test_a_value_that_was_set_meanwhile_stays() -> None:
    quotas = QuotaWithCells()
    quotas.begin(1, share=0.3, limit=0.5)
    quotas.quota = replace(quotas.quota, share=0.4)
    assert quotas.cells.own_quota(quotas.quota) == Quota(share=0.4)
    assert quotas.end() == Quota(share=0.4)


@pytest.mark.parametrize("found", [0.0, 0.2])
def test_another_coordinator_finds_the_clients_own_quota_or_that_of_the_cell(found: float) -> None:
    earlier, later = QuotaWithCells(), QuotaWithCells(share=found)
    for number, share in ((1, 0.3), (2, 0.2)):
        replaced = earlier.begin(number, share=share)
        later.begin(number, replaced, share=share)
    assert later.quota.share == 0.2
    assert later.end() == Quota()


def test_later_coordinator_keeps_a_value_that_was_set_meanwhile() -> None:
    later = QuotaWithCells(share=0.4)
    later.begin(1, {"share": 0.0}, share=0.3)
    assert later.quota.share == 0.4 and later.end() == Quota(share=0.4)


def test_cell_quotas_of_a_client_are_limited() -> None:
    quotas = QuotaWithCells()
    for number in range(MAX_CHANGES):
        quotas.begin(number, share=0.3)
    with pytest.raises(Refused, match="cell quotas already"):
        quotas.begin(MAX_CHANGES, share=0.2)


def test_cell_end_reverts_a_quota_that_the_kernel_left(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    change = {"type": "cell_quota", "client": "a", "request": "1"}
    kernel = processes.kernel("a")

    def answer_to(message: dict[str, Any]) -> dict[str, Any]:
        kernel.send(message)
        return kernel.receive() or {}

    kernel.cell("start", "1")
    for wrong in ({"colour": "red"}, {"share": 2}):
        assert answer_to({**change, "id": 1, "number": 1, "changes": wrong})["reason"] == "invalid"
    result = answer_to({**change, "id": 2, "number": 2, "changes": {"share": "30%"}})["result"]
    assert (result["share"], result["replaced"]) == (0.3, {"share": 0.0})
    kernel.cell("end", "1")
    wait_until(lambda: (coordinator.client("a") or {})["quota"]["share"] == 0)
