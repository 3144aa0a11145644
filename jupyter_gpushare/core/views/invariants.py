"""Invariants of the scheduler between two events, for tests."""

from __future__ import annotations

from collections.abc import Iterator

from ..colocation.colocation_rules import admits_others
from ..colocation.memory_fit import fits_in_memory
from ..interface.settings import EXCLUSIVE
from ..residency.residency_plan import is_short_of_room
from ..scheduler import Scheduler
from ..state.model import Client, Device, Grant


class InvariantViolation(AssertionError):
    """An invariant that does not hold, which is a bug of the core. The message has the invariant and the event log."""


def check(scheduler: Scheduler, now: float) -> None:
    """Raise InvariantViolation unless the state is consistent after the last event, which was handled at `now`."""
    problems = list(_problems(scheduler, now))
    if problems:
        raise InvariantViolation("\n".join([*problems, "event log:", *scheduler.event_log()]))


def _problems(scheduler: Scheduler, now: float) -> Iterator[str]:
    for number, process in scheduler.processes.items():
        if process.client.processes.get(number) is not process or scheduler.clients[process.client.id] is None:
            yield f"process {number} is not in the process table of its client"
    for device in scheduler.devices.values():
        yield from _device_problems(scheduler, device, now)
    for client in scheduler.clients.values():
        yield from _client_problems(scheduler, client, now)
    yield from _queue_problems(scheduler, now)
    due = scheduler.next_deadline()
    if due is not None and due <= now:
        yield f"the deadline {due} is not after {now}, so that the edge would loop"


def _device_problems(scheduler: Scheduler, device: Device, now: float) -> Iterator[str]:
    uuid = device.info.uuid
    if len({grant.turn for grant in device.grants}) > 1:
        yield f"device {uuid} is in several turns: {[(grant.client.id, grant.turn) for grant in device.grants]}"
    permits = [client.permit for client in device.clients.values() if client.permit and client.permit.may]
    permitted = {permit.turn for permit in permits if uuid in permit.devices}
    if len(permitted) > 2:
        yield f"device {uuid} has permits for the turns {sorted(permitted)}"
    if device.next_client and (
        device.next_client.pending_permit is None or uuid not in device.next_client.pending_permit.devices
    ):
        yield f"the next client on {uuid}, {device.next_client.id}, has no pending permit for the device"
    for grant in device.grants:
        permit = grant.client.permit
        if (
            permit
            and permit.may
            and permit.relieved
            and device.lock_contended_since is None
            and len(grant.devices) == 1
        ):
            permit_to_follow = device.next_client.permit if device.next_client else None
            if permit_to_follow is None or not permit_to_follow.may:
                yield f"client {grant.client.id} is relieved on {uuid}, and no client has a permit to follow"
    running = [grant.client for grant in device.grants if not grant.is_draining]
    staying = [grant.client for grant in device.grants if admits_others(grant, device.settings, now)]
    if running and len(together := [*staying, *running]) > 1 and not fits_in_memory(device, together):
        yield f"clients {[client.id for client in together]} run on {uuid}, and their memory does not fit"
    if len(running) > 1 and device.settings.sharing == EXCLUSIVE:
        yield f"clients {[client.id for client in running]} run on {uuid} together, although sharing is exclusive"
    for grant in device.grants:
        if scheduler.turns.table.grants.get(grant.client.id) is not grant or uuid not in grant.devices:
            yield f"device {uuid} has a grant of {grant.client.id} that has ended or does not cover the device"
    waiting = {client.id for client in scheduler.turns.table.waiting.values() if uuid in client.turn_devices}
    if waiting != {client.id for client in device.queue.clients}:
        yield f"the queue of {uuid} has other clients than {sorted(waiting)}, which wait for the device"
    clients = [client for client in scheduler.clients.values() if uuid in client.devices]
    if device.allocated != sum(client.memory_on(device).allocated for client in clients):
        yield f"device {uuid} counts {device.allocated} allocated bytes, and its clients have another sum"
    if device.unmovable != sum(client.memory_on(device).unmovable for client in clients):
        yield f"device {uuid} counts {device.unmovable} unmovable bytes, and its clients have another sum"
    if device.unbacked != sum(client.memory_on(device).unbacked for client in clients):
        yield f"device {uuid} counts {device.unbacked} unbacked bytes, and its clients have another sum"
    if device.context != sum(client.memory_on(device).context for client in clients):
        yield f"device {uuid} counts {device.context} bytes of context memory, and its clients have another sum"
    contenders = [client for client in clients if client.grant or client.waiting_since is not None]
    if device.contention.count != len(contenders):
        yield f"device {uuid} counts {device.contention.count} contenders, and has {len(contenders)}"


def _client_problems(scheduler: Scheduler, client: Client, now: float) -> Iterator[str]:
    is_queued = scheduler.turns.table.waiting.get(client.id) is client
    if is_queued != (client.waiting_since is not None):
        yield f"client {client.id} waits since {client.waiting_since}, but in the queue: {is_queued}"
    if scheduler.turns.table.grants.get(client.id) is not client.grant:
        yield f"client {client.id} has another grant than the grant table has"
    if client.is_waiting_at_gate and client.grant is None and not is_queued and not client.suspended:
        yield f"client {client.id} waits at the gate, and is not in the queue"
    if is_queued and not (client.needs_more_devices if client.grant else client.is_waiting_at_gate):
        yield f"client {client.id} is in the queue, and waits for nothing"
    if client.suspended and (is_queued or (client.grant and not client.grant.is_draining)):
        yield f"client {client.id} is suspended, and {client.phase}"
    if client.suspended_by_policy and (not client.suspended or client.is_in_use):
        yield f"client {client.id} is suspended for being idle, and {client.phase}, in use: {client.is_in_use}"
    is_exempt = client.suspended_by_user or client.hold_seconds_left(now) is not None
    if (client.idle_since is None) != (client.is_in_use or is_exempt):
        yield f"client {client.id} is idle since {client.idle_since}, in use: {client.is_in_use}"
    placed_devices = scheduler.placement_adapter.placement.placed[client.id].devices
    used = {uuid for process in client.processes.values() for uuid in process.devices}
    if client.processes and set(placed_devices) != used:
        yield f"client {client.id} uses {client.devices}, and placement has it on {placed_devices}"
    if client.is_preemptible_guest != (client.id in scheduler.placement_adapter.placement.guests_to_preempt):
        yield f"client {client.id} is a preemptible guest: {client.is_preemptible_guest}; placement has the opposite"
    if client.grant:
        yield from _grant_problems(scheduler, client.grant)
    if client.pending_permit and (
        client.waiting_since is None or any(uuid not in client.turn_devices for uuid in client.pending_permit.devices)
    ):
        yield f"client {client.id} is next on {client.pending_permit.devices}, and does not wait for these devices"
    permit = client.permit
    if permit and permit.may != (
        client.pending_permit is not None or (client.grant is not None and not client.grant.is_draining)
    ):
        yield f"client {client.id} has the permit {permit}, and is {client.phase}"


def _grant_problems(scheduler: Scheduler, grant: Grant) -> Iterator[str]:
    client = grant.client
    for uuid in grant.devices:
        if grant not in scheduler.devices[uuid].grants:
            yield f"the grant of {client.id} covers {uuid}, and the device does not have the grant"
    if not grant.processes:
        yield f"all processes of {client.id} have left the turn, and its grant has not ended"


def _queue_problems(scheduler: Scheduler, now: float) -> Iterator[str]:
    """Check that each client that could have its devices has a permit for them."""
    for device in scheduler.devices.values():
        head = device.queue.head(now)
        if head and head.pending_permit is None and scheduler.turns.may_be_next(head):
            yield f"client {head.id} waits for {head.devices}, and has no permit"
        for client in device.queue.clients:
            is_short = client.grant is None and any(is_short_of_room(one, client) for one in client.device_bindings)
            if client.is_short_of_room != is_short or (is_short and client.pending_permit):
                yield f"client {client.id} is short of room: {is_short}, and has the permit {client.pending_permit}"
        if device.queue.in_order(now)[:1] not in ([], [head]) and device.queue:
            yield f"the head of {device.info.uuid} is {head}, its order begins with {device.queue.in_order(now)[0].id}"
