"""What always holds between two events. For tests and for error reports; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Iterator

from .model import Client, Device, Grant
from .overruns import lets_in
from .scheduler import Scheduler
from .settings import EXCLUSIVE
from .together import fits


class Broken(AssertionError):
    """An invariant does not hold: a bug of the core. The message says which, and the story of how it came to be."""


def check(scheduler: Scheduler, now: float) -> None:
    """Raise Broken unless the state of `scheduler` is consistent after its last event, which was handled at `now`."""
    problems = list(_problems(scheduler, now))
    if problems:
        raise Broken("\n".join([*problems, "story:", *scheduler.story()]))


def _problems(scheduler: Scheduler, now: float) -> Iterator[str]:
    for number, process in scheduler.processes.items():
        if process.client.processes.get(number) is not process or scheduler.clients[process.client.id] is None:
            yield f"process {number} is not one of its client's"
    for device in scheduler.devices.values():
        yield from _device(scheduler, device, now)
    for client in scheduler.clients.values():
        yield from _client(scheduler, client, now)
    yield from _queue(scheduler, now)
    due = scheduler.next_deadline()
    if due is not None and due <= now:
        yield f"the deadline {due} was not met at {now}: an edge would spin"


def _device(scheduler: Scheduler, device: Device, now: float) -> Iterator[str]:
    uuid = device.info.uuid
    if len(device.grants) > 1 and not all(grant.shared for grant in device.grants):
        yield f"device {uuid} is granted to {[grant.client.id for grant in device.grants]}"
    running = [grant.client for grant in device.grants if not grant.draining]
    staying = [grant.client for grant in device.grants if lets_in(grant, scheduler.settings, now)]
    if running and len(together := [*staying, *running]) > 1 and not fits(device, together):
        yield f"clients {[client.id for client in together]} run on {uuid} and do not fit"
    if len(running) > 1 and scheduler.settings.sharing == EXCLUSIVE:
        yield f"clients {[client.id for client in running]} run on {uuid}, which is for one at a time"
    for grant in device.grants:
        if scheduler.turns.grants.get(grant.client.id) is not grant or uuid not in grant.devices:
            yield f"device {uuid} has a grant of {grant.client.id} that is over or not for it"
    waiting = {client.id for client in scheduler.turns.waiting.values() if uuid in client.devices}
    if waiting != {client.id for client in device.line.clients}:
        yield f"those that wait for {uuid} are not {sorted(waiting)}"
    here = [client for client in scheduler.clients.values() if uuid in client.devices]
    if device.allocated != sum(client.part.allocated for client in here):
        yield f"device {uuid} counts {device.allocated} bytes, its clients do not"
    if device.pinned != sum(client.part.pinned for client in here):
        yield f"device {uuid} counts {device.pinned} bytes that can't leave, its clients do not"
    rivals = [client for client in here if client.grant or client.waiting_since is not None]
    if device.rivals.count != len(rivals):
        yield f"device {uuid} counts {device.rivals.count} rivals, there are {len(rivals)}"


def _client(scheduler: Scheduler, client: Client, now: float) -> Iterator[str]:
    queued = scheduler.turns.waiting.get(client.id) is client
    if queued != (client.waiting_since is not None):
        yield f"client {client.id} waits since {client.waiting_since}, but in the queue: {queued}"
    if scheduler.turns.grants.get(client.id) is not client.grant:
        yield f"client {client.id} and the list of grants disagree"
    if client.wants and client.grant is None and not queued and not client.suspended:
        yield f"client {client.id} wants the device and is not queued"
    if queued and not (client.grant.uncovered if client.grant else client.wants):
        yield f"client {client.id} is queued and there is nothing that it waits for"
    if client.suspended and (queued or (client.grant and not client.grant.draining)):
        yield f"client {client.id} is suspended, and {client.phase}"
    if client.suspended_by_policy and (not client.suspended or client.in_use):
        yield f"client {client.id} is suspended for being idle, and {client.phase}, in use: {client.in_use}"
    left_alone = client.suspended_by_person or client.held_for(now) is not None
    if (client.idle_since is None) != (client.in_use or left_alone):
        yield f"client {client.id} is idle since {client.idle_since}, in use: {client.in_use}"
    placed = scheduler.placing.placement.placed[client.id].devices
    if client.processes and set(placed) != set(client.devices):
        yield f"client {client.id} uses {client.devices}, placement has it on {placed}"
    if client.gives_way != (client.id in scheduler.placing.placement.guests_to_go):
        yield f"client {client.id} gives way: {client.gives_way}, against what placement says"
    if client.grant:
        yield from _grant(scheduler, client.grant)
    elif undrained := [process.number for process in client.processes.values() if not process.drained]:
        yield f"client {client.id} has no grant, and processes {undrained} have not drained"


def _grant(scheduler: Scheduler, grant: Grant) -> Iterator[str]:
    client = grant.client
    for uuid in grant.devices:
        if grant not in scheduler.devices[uuid].grants:
            yield f"the grant of {client.id} covers {uuid}, which does not know"
    if grant.epoch > scheduler.turns.epoch:
        yield f"epoch {grant.epoch} of {client.id} is beyond the last one, {scheduler.turns.epoch}"
    holding = [process for process in client.processes.values() if not process.drained]
    if not holding:
        yield f"all processes of {client.id} have drained and its grant is not over"
    for process in holding:
        if not set(process.devices) <= set(grant.devices):
            yield f"process {process.number} of {client.id} runs on {process.devices}, granted are {grant.devices}"
        if grant.has_open(process) and process.wants:
            yield f"process {process.number} of {client.id} waits at an open gate"
    if grant.draining and not grant.gate_open and grant.next_try is None:
        yield f"the closing of {client.id} will never be looked at again"


def _queue(scheduler: Scheduler, now: float) -> Iterator[str]:
    """Nobody waits for devices that it could have."""
    for device in scheduler.devices.values():
        head = device.line.head(now)
        if head and scheduler.turns.can_start(head):
            yield f"client {head.id} waits for {head.devices}, which are free"
        if device.line.ordered(now)[:1] not in ([], [head]) and device.line:
            yield f"the head of {device.info.uuid} is {head}, its order begins with {device.line.ordered(now)[0].id}"
