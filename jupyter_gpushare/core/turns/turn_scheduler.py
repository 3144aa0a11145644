"""Scheduler of turns, which after each event chooses next clients and backfills, ends turns and publishes permits."""

from __future__ import annotations

from collections.abc import Iterable

from ..base.device_info import DeviceInfo
from ..colocation.colocation_control import ColocationController
from ..colocation.colocation_rules import ColocationRules, should_interrupt
from ..interface.commands import Command, InterruptKernel, Permit
from ..interface.settings import Settings
from ..queueing.device_policies import Overrides
from ..queueing.eviction_order import EvictionOrder
from ..residency.residency_plan import has_no_room_in_turn, is_short_of_room
from ..state.model import Client, Device, Grant
from .grant_table import FIRST_TURN, GRANT_DEADLINE, NEXT_READY, PERMIT_CHECK, YIELD_END, GrantTable
from .offline_turns import OfflineTurns
from .turn_close import TurnCloser
from .turn_deadlines import TurnDeadlines
from .turn_start import TurnStarter


class TurnScheduler:
    """Scheduler of the grants in a table, which reviews the touched devices one by one after each event."""

    def __init__(
        self, settings: Settings, devices: dict[str, Device], commands: list[Command], first_turn: int = FIRST_TURN
    ) -> None:
        self.table = table = GrantTable(settings, devices, commands, first_turn)
        self.closer = TurnCloser(table)
        self.starter = TurnStarter(table, self.closer)
        self.colocation = ColocationController(
            lambda client: table.policies.policy_of(client).share(client),
            lambda client: table.policies.policy_of(client).quantum(client),
        )
        self._colocation_rules = ColocationRules(table, self.colocation)
        self._deadlines = TurnDeadlines(table, self.closer)
        self._offline_turns = OfflineTurns(table, self.closer)
        self._heads: dict[str, Client] = {}  # by device: the head of its queue at the last review

    def configure(self, settings: Settings, overrides: Overrides, now: float) -> None:
        """Apply other settings, and the devices' own. Raises Refused, and then changes nothing."""
        table = self.table
        table.policies.configure(settings, overrides)
        clients = {client.id: client for device in table.devices.values() for client in device.clients.values()}
        for client in clients.values():
            table.apply_quota(client, now)

    def add_device(self, info: DeviceInfo) -> None:
        device = self.table.devices[info.uuid] = Device(info)
        self.table.policies.add(device)
        device.eviction_candidates = EvictionOrder(device)

    # --- time

    def next_deadline(self) -> float | None:
        first = self.table.deadlines.earliest()
        return first[0] if first else None

    def is_turn_deadline(self, due: float) -> bool:
        """Return whether `due`, the next deadline, is that of a turn which its processes end by themselves."""
        first = self.table.deadlines.earliest()
        if first is None or first[1][0] != GRANT_DEADLINE:
            return False
        grant = self.table.grants[first[1][1]]
        permit = grant.client.permit
        return (
            permit is not None and permit.may and permit.relieved and permit.deadline == due and not grant.is_draining
        )

    def advance(self, now: float) -> Iterable[str]:
        """Do what is due at `now` and what has become possible on touched devices, and return these devices."""
        table = self.table
        for kind, name in table.deadlines.pop_due(now):
            if kind == GRANT_DEADLINE:
                self._process_deadline(table.grants[name], now)
            elif kind == PERMIT_CHECK:
                self.starter.check_permit(table.waiting[name])
            else:
                table.dirty_devices[name] = None
        seen: dict[str, None] = {}
        while table.dirty_devices or self._mark_changed_heads(now):
            seen.update(self._review_devices(now))
        reviewed: set[Grant] = set()
        for uuid in seen:
            device = table.devices[uuid]
            table.commands += self.colocation.publish(device, now)
            for grant in device.grants:
                if grant not in reviewed:
                    reviewed.add(grant)
                    self._end_overdue_turn(grant, now)
            if device.next_client:
                self.starter.schedule_permit_check(device.next_client)
            table.deadlines.set((YIELD_END, uuid), device.yielded_until)
            table.deadlines.set((NEXT_READY, uuid), device.queue.next_ready_at())
        seen.update(table.dirty_devices)  # the end of one turn may have begun the closing of another
        table.dirty_devices.clear()
        for grant in dict.fromkeys(grant for uuid in seen for grant in table.devices[uuid].grants):
            table.deadlines.set((GRANT_DEADLINE, grant.client.id), self._deadlines.next_check(grant))
        table.commands += table.permits.publish(self._permit_for)
        return seen

    def _mark_changed_heads(self, now: float) -> bool:
        """Touch each device with another head than before, because a client has waited longer than `max_wait`."""
        for uuid, head in self._heads.items():
            if self.table.devices[uuid].queue.head(now) is not head:
                self.table.dirty_devices[uuid] = None
        return bool(self.table.dirty_devices)

    def _review_devices(self, now: float) -> dict[str, None]:
        """Do on the touched devices what is possible, and return these devices.

        All devices of a client come before its turn is decided, so that a decision about a gang is one decision.
        """
        table, seen = self.table, dict[str, None]()
        while table.dirty_devices:
            uuid = next(iter(table.dirty_devices))
            del table.dirty_devices[uuid]
            seen[uuid] = None
            self._end_turns(table.devices[uuid], now)
        turns: dict[Client, tuple[int, bool] | None] = {}  # by head of a queue: the turn that the client may enter
        for uuid in seen:
            device = table.devices[uuid]
            head = device.queue.head(now)
            if head and head not in turns:
                turns[head] = self._turn_to_enter(head)
            self._choose_next_client(device, head, turns[head] if head else None, now)
        return seen

    def _end_turns(self, device: Device, now: float) -> None:
        """End turns on the device that may not go on, and update the clients that wait for the device."""
        if device.yielded_until is not None and device.yielded_until <= now:
            device.yielded_until = None
        device.queue.update_eligibility(now)
        self._update_clients_short_of_room(device, now)
        self._offline_turns.update(device, now)
        for grant in list(device.grants):
            if self.closer.is_close_unneeded(grant, now):
                self.closer.cancel_closing(grant)
            self.closer.update_overrun(grant, now)
        for grant in self._colocation_rules.grants_to_separate(device, now):
            self._separate(grant, now)
        self.starter.adopt_unpermitted_turn(device, now)

    def _choose_next_client(
        self, device: Device, head: Client | None, turn: tuple[int, bool] | None, now: float
    ) -> None:
        """Let the head of the queue enter `turn`, as `_turn_to_enter` returns it, or backfill the device."""
        if head and turn:
            self.starter.issue_permit(head, turn[0], now, joins_turn=turn[1])
        elif self._joiner(device) is None:
            if backfill := self._backfill_candidate(device, head, now):
                self.starter.issue_permit(backfill[0], backfill[1], now, joins_turn=backfill[2])
            elif device.next_client:
                self.table.withdraw_permit(device.next_client)
        # A client that cannot start yet reserves its devices, so that gangs never starve.
        if head:
            self._heads[device.info.uuid] = head
        else:
            self._heads.pop(device.info.uuid, None)

    def _update_clients_short_of_room(self, device: Device, now: float) -> None:
        """Keep clients from having a turn for which memory that cannot leave has no room, so that other clients run."""
        if device.unmovable == device.context and not device.has_clients_short_of_room:
            return
        for grant in device.grants:
            if has_no_room_in_turn(device, grant.client):
                self.closer.start_closing(grant, now)
        for client in list(device.queue.clients):
            is_short = client.grant is None and any(is_short_of_room(one, client) for one in client.device_bindings)
            if is_short != client.is_short_of_room:
                client.is_short_of_room = is_short
                self.table.requeue(client, now)
                self.table.mark_dirty(client)
        device.has_clients_short_of_room = any(client.is_short_of_room for client in device.queue.clients)

    # --- the next client

    def may_be_next(self, client: Client) -> bool:
        """Return whether the client comes next on each of its devices, so that it must have a permit."""
        devices = [
            device for device in client.turn_bindings if client.grant is None or client.grant not in device.grants
        ]
        return bool(devices) and all(self._is_next_on(device, client) for device in devices)

    def _turn_to_enter(self, client: Client) -> tuple[int, bool] | None:
        """Return the turn that the client may enter next, and whether other clients are in it; None: it has to wait."""
        if not self.may_be_next(client):
            return None
        if client.grant:
            return client.grant.turn, False
        devices = client.turn_bindings
        running = {grant.turn for device in devices for grant in device.grants}
        if len(running) == 1 and all(self._may_colocate(device, client) for device in devices if device.grants):
            return running.pop(), True
        return self._own_turn(client), False

    def _own_turn(self, client: Client) -> int:
        pending = client.pending_permit
        own = pending is not None and not pending.joins_turn and pending.devices == client.turn_devices
        return pending.turn if pending and own else self.table.new_turn_number()

    def _is_next_on(self, device: Device, client: Client) -> bool:
        if device.yielded_until is not None or device.queue.head(self.table.now) is not client:
            return False
        if self._joiner(device) not in (None, client) or self._backfill_candidate(device, client, self.table.now):
            return False
        # No client follows while clients of other coordinators wait, except for an overrun, which does not end anyway.
        return device.lock_contended_since is None or all(grant.is_overrun for grant in device.grants)

    def _joiner(self, device: Device) -> Client | None:
        """Return the client that may join the turn on the device and has not entered so far.

        The client keeps its permit, because a process that has just read the permit enters in spite of a withdrawal.
        The lock of the device parts clients of different turns only.
        """
        client = device.next_client
        if client is None or client.pending_permit is None or not client.pending_permit.joins_turn:
            return None
        if client.is_short_of_room or client.ready_at > self.table.now:
            return None
        is_running = any(grant.turn == client.pending_permit.turn for grant in device.grants)
        return client if is_running and self._may_colocate(device, client) else None

    def _may_colocate(self, device: Device, client: Client) -> bool:
        # A colocation would never end while clients of other coordinators wait.
        free = device.lock_contended_since is None or any(grant.is_overrun for grant in device.grants)
        return free and self._colocation_rules.can_colocate(device, client)

    def _backfill_candidate(self, device: Device, head: Client | None, now: float) -> tuple[Client, int, bool] | None:
        """Return a client to backfill the device while the head of its queue cannot start soon.

        The client needs only this device, and its turn is as long as any. The result has the number of that turn and
        whether other clients are in that turn.
        """
        if head is None or device.yielded_until is not None or not self._colocation_rules.is_free(device):
            return None
        if not self._is_start_unbounded(device, head):
            return None
        for client in device.queue.in_order(now):
            if client is head or client.device_bindings != (device,) or client.grant or client.ready_at > now:
                continue
            if client.is_short_of_room:
                continue
            if not device.grants:
                return client, self._own_turn(client), False
            if (
                client.service_rank == head.service_rank
                and device.lock_contended_since is None
                and self._colocation_rules.can_colocate(device, client)
            ):
                return client, device.grants[0].turn, True
        return None

    def _is_start_unbounded(self, device: Device, head: Client) -> bool:
        """Return whether a device of the head is taken for a time without bound.

        On this device, only an overrun that admits others and a client of a better class count.
        """
        return any(
            (other is not device and _is_unavailable(other))
            or self._colocation_rules.is_blocked_by_overrun(other, head)
            or any(grant.client.service_rank < head.service_rank for grant in other.grants)
            or ((first := other.queue.head(self.table.now)) is not None and first.service_rank < head.service_rank)
            for other in head.device_bindings
        )

    # --- the end of turns

    def _process_deadline(self, grant: Grant, now: float) -> None:
        self.table.mark_dirty(grant.client)
        due = self._deadlines.next_check(grant)
        if due is not None and due <= now and not grant.is_draining:
            self.closer.start_closing(grant, now)

    def _end_overdue_turn(self, grant: Grant, now: float) -> None:
        """End a turn whose time is over, or interrupt a turn that should have ended."""
        if not grant.is_draining:
            due = self._deadlines.close_at(grant, self._deadlines.deadline(grant))
            if due is not None and due <= now:  # a client began to wait after the quantum was over
                self.closer.start_closing(grant, now)
            return
        interrupts = any(should_interrupt(grant, self.table.devices[uuid].settings, now) for uuid in grant.devices)
        if interrupts and self.table.has_contenders(grant):
            grant.is_interrupted = True
            self.table.commands.append(InterruptKernel(grant.client.id, grant.turn, grant.closing_seconds(now)))

    def _separate(self, grant: Grant, now: float) -> None:
        grant.is_separating = True
        self.closer.start_closing(grant, now)

    # --- permits

    def _permit_for(self, client: Client) -> Permit:
        """Return the client's permit for the present state, without an epoch."""
        grant, pending, before = client.grant, client.pending_permit, client.permit
        if grant and not grant.is_draining:
            devices = pending.devices if pending else grant.devices
            relieved = any(self._is_relieved(self.table.devices[uuid], grant) for uuid in grant.devices)
            deadline = self._deadlines.deadline(grant)
            return Permit(client.id, grant.turn, 0, devices, True, relieved, self.table.ends_when_idle(grant), deadline)
        if pending and not grant:
            others = any(
                device.grants or device.lock_contended_since is not None or device.queue.has_others(client)
                for device in client.turn_bindings
            )
            return Permit(client.id, pending.turn, 0, pending.devices, True, contended=others)
        # The page of a process that has moved does not know the device of its last permit.
        turn, earlier = (before.turn, before.devices) if before else (0, ())
        return Permit(client.id, turn, 0, tuple(uuid for uuid in earlier if uuid in client.devices), False)

    def _is_relieved(self, device: Device, grant: Grant) -> bool:
        """Return whether a client can follow without a command of the coordinator."""
        pending = (
            device.next_client.pending_permit if device.next_client and device.next_client is not grant.client else None
        )
        return device.lock_contended_since is not None or (pending is not None and pending.turn != grant.turn)


def _is_unavailable(device: Device) -> bool:
    """Return whether a coordinator beside this one has the device, or whether a turn there has not ended in time."""
    is_others = device.taken_by_other_since is not None or device.yielded_until is not None
    return is_others or any(grant.is_overrun for grant in device.grants)
