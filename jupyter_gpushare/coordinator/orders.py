"""What the scheduler decides, carried out: on the pages of processes, and on the locks of devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ..core import Scheduler
from ..core import commands as cmd
from ..core import events as ev
from .audit import Audit
from .locks import Mode
from .members import Member
from .ports import ProcessPort
from .sizes import worded

FREE_RETRY = 0.02  # how soon to look again at a process out of reach that has its device; then with every heartbeat

log = logging.getLogger(__name__)


class Orders:
    """Carries commands out. What that brings about at once goes to `follows`, as events."""

    def __init__(
        self,
        scheduler: Scheduler,
        members: Mapping[str, Member],
        ports: Mapping[int, ProcessPort],
        follows: Callable[[ev.Event], None],
        write_limits: Callable[[Member], None],
        bring_back: Callable[[Member], None],
        audit: Audit,
    ) -> None:
        self._scheduler = scheduler
        self._members = members
        self._ports = ports
        self._follows = follows
        self._write_limits = write_limits
        self._bring_back = bring_back
        self._audit = audit
        self.overruns = 0  # turns that did not end in time
        self._kept_locked: dict[str, tuple[str, ...]] = {}
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._kept_locked.clear()

    def carry_out(self, command: cmd.Command) -> None:
        member = self._members.get(command.client)
        if member is None:
            return
        match command:
            case cmd.Grant():
                if not member.stopped and self._lock(member, command):
                    self._open(command)
                else:
                    self._refuse(member, command)
            case cmd.Open():
                if self._holds_locks(member):
                    self._open(command)
                else:
                    self._stay_closed(command)
            case cmd.NameNext():
                named, giver = self._ports.get(command.process), self._ports.get(command.giver)
                if named and giver and not member.stopped:
                    named.name_next(command.epoch)
                    giver.page.orders.hand_on = 1
            case cmd.Unname():
                if giver := self._ports.get(command.giver):
                    giver.page.orders.hand_on = 0
                if named := self._ports.get(command.process):
                    named.unname()
            case cmd.Close():
                for number in command.processes:
                    if port := self._ports.get(number):
                        port.close(command.epoch)
            case cmd.Free():
                member.last_turn = self._loop.time()
                self._free(member, command.devices)
            case cmd.Orders():
                for port in member.processes.values():
                    port.orders(command.contended, command.deadline)
            case cmd.Limits():
                self._write_limits(member)
            case cmd.SetResident():
                member.set_resident(command.bytes)
            case cmd.RestoreAhead():
                member.comes_ahead = command.wanted
                self._bring_back(member)
            case cmd.SetRate():
                member.set_rate(command.launch_rate, command.spacing_ppm)
            case cmd.Notice():
                log.warning("client %s: %s", member.client, worded(command.message))
            case cmd.Overrun():
                self.overruns += 1
                log.warning(
                    "client %s has not drained for %.1f s: its turn is not over and others wait",
                    member.client,
                    command.seconds,
                )
            case cmd.Interrupt():
                # Its Jupyter server sees in the snapshot that it is asked to: it may signal it, and knows how.
                log.warning("client %s: its kernel is asked to interrupt its cell", member.client)
                self._audit.note(None, "interrupt", member.client, None, {"overrun_seconds": round(command.seconds, 1)})

    def _lock(self, member: Member, command: cmd.Grant) -> bool:
        if member.runs_unseen(command.devices):
            return False  # to ask for more than its shared lock would give that up
        mode = Mode.SHARED if command.shared else Mode.EXCLUSIVE
        return member.locks.acquire(command.devices, mode, [uuid for uuid in command.devices if self._shared(uuid)])

    def _shared(self, uuid: str) -> bool:
        """Whether somebody holds the device's lock already. Who was granted it at the same time may not have it yet."""
        grants = self._scheduler.devices[uuid].grants
        members = [self._members.get(grant.client.id) for grant in grants if grant.shared]
        return any(member is not None and member.locks.holds(uuid) for member in members)

    def _open(self, command: cmd.Grant | cmd.Open) -> None:
        grant = self._scheduler.clients[command.client].grant
        contended = grant is not None and self._scheduler.turns.contended(grant)
        for number in command.processes:
            if port := self._ports.get(number):
                port.open(command.epoch, contended, isinstance(command, cmd.Open) and command.step)

    def _refuse(self, member: Member, command: cmd.Grant) -> None:
        """The turn does not begin."""
        for number in command.processes:
            if port := self._ports.get(number):
                port.unname()  # it would take the lock whenever that is free, and keep it from everybody
        self._follows(ev.LockRefused(member.client, command.epoch))
        if member.stopped:
            self._pass_over(member)
        else:
            self._close_strays(command)

    def _pass_over(self, member: Member) -> None:
        """A process that is stopped (Ctrl-Z, a debugger) would hold its turn and never end it: it counts as waiting no
        more until it goes on, which the next heartbeat after that sees."""
        log.info("client %s is stopped: it is passed over until it goes on", member.client)
        for number in member.processes:
            self._follows(ev.Unwanted(number))

    def _stay_closed(self, command: cmd.Open) -> None:
        """Its devices are somebody else's by now: it had drained and handed them on before it could be reopened."""
        for number in command.processes:
            port = self._ports.get(number)
            if port and not port.page.gate_open and port.page.report.drained_epoch == port.page.epoch:
                self._follows(ev.Drained(number, command.epoch))

    def _close_strays(self, command: cmd.Grant) -> None:
        """The devices are locked elsewhere. If that is by a process of ours that took over too late, end its turn."""
        for member in self._members.values():
            if self._scheduler.clients[member.client].grant is None and member.client not in self._kept_locked:
                for port in member.processes.values():
                    if port.page.gate_open and set(port.devices) & set(command.devices):
                        port.close(port.page.epoch)

    def unlock_unless_granted(self, member: Member, uuids: tuple[str, ...]) -> None:
        """The client holds these devices' locks without a grant: they came too late, or for nothing. If it has taken
        over meanwhile, or is about to, then they are for that."""
        if uuids and self._scheduler.clients[member.client].grant is None and member.at_rest:
            self._free(member, uuids)

    def strays(self) -> list[Member]:
        """Clients by whose locks devices are refused to everybody, and who have said nothing of them, or in vain."""
        refused = [uuid for uuid, device in self._scheduler.devices.items() if device.refused_until is not None]
        return [
            member
            for member in self._members.values()
            if self._scheduler.clients[member.client].grant is None
            and member.client not in self._kept_locked
            and member.at_rest
            and any(member.locks.found(uuid) for uuid in refused)
        ]

    def _holds_locks(self, member: Member) -> bool:
        """Whether the grant is still backed. If we had hung, its processes may have left us and somebody else runs."""
        grant = self._scheduler.clients[member.client].grant
        held = grant is None or member.locks.acquire(grant.devices, Mode.KEEP)
        if not held:
            log.warning("client %s: somebody else has its devices; its gate stays closed", member.client)
        return held

    def _free(self, member: Member, uuids: tuple[str, ...]) -> None:
        """Unlock, unless a process of the client that we do not reach took a turn by itself meanwhile: then later."""
        if not member.unlock(uuids):
            log.warning("client %s: a process out of reach still runs; its device stays locked", member.client)
            self._kept_locked[member.client] = uuids
            self._loop.call_later(FREE_RETRY, self.free_late)  # it may have been about to end

    def free_late(self) -> None:
        """Look again at the devices that stayed locked."""
        for client, uuids in list(self._kept_locked.items()):
            member = self._members.get(client)
            if member and self._scheduler.clients[client].grant is None and not member.unlock(uuids):
                continue
            del self._kept_locked[client]
