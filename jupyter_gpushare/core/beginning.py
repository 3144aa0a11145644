"""Beginning a turn: permits for who is next, the turns that processes report, and those that they bring with them."""

from __future__ import annotations

from collections.abc import Iterable

from .closing import Closing
from .commands import Probe
from .grants import NEXT
from .model import Client, Device, Grant, Next, Process, Turn
from .overruns import lets_in
from .settings import LONGEST_QUANTUM
from .switching import SLOW_LINK

_PATIENCE = 0.05  # seconds until the edge is asked why a permit is not used; doubled with each time
_LONGEST_PATIENCE = 1.0


class Beginning(Closing):
    """Begins grants, over their books."""

    def permit(self, client: Client, turn: int, now: float, joins: bool = False) -> None:
        """Let the client enter the turn `turn` on its devices as soon as their locks admit it.

        `joins`: it is the turn of others, beside whom the client is to run.
        """
        if client.next and (client.next.turn, client.next.devices) == (turn, client.devices):
            return
        self.retract(client)
        client.next = Next(turn, client.devices, now, joins)
        for device in self._wanted_by(client):
            if device.next:
                self.retract(device.next)
            device.next = client
            if device.line.head(now) is client:  # not a client that borrows it: whether it is taken shows anew
                device.taken_since = None
            self.touch_device(device)
        if client.grant:  # its closing may wait for a thread that these devices let run
            client.grant.forget_closing()
        self.touch(client)

    def _wanted_by(self, client: Client) -> list[Device]:
        """The devices that its permit is for, and its turn does not cover."""
        covered = client.grant.devices if client.grant else ()
        return [device for device in client.books if device.info.uuid not in covered]

    def probe(self, client: Client) -> None:
        """Its permit has not been used for a while."""
        if client.next:
            client.next.probes += 1
            self._out.append(Probe(client.id))
            self.arm_probe(client)

    def arm_probe(self, client: Client) -> None:
        """Set when to find out why its permit is not used: once all devices have been free for some time."""
        due = None
        if client.next:
            wanted = [self.devices[uuid] for uuid in client.next.devices]
            if all(grant.turn == client.next.turn for device in wanted for grant in device.grants):
                since = max([client.next.since, *(device.free_since for device in wanted)])
                patience = min(_PATIENCE * 2**client.next.probes, _LONGEST_PATIENCE)
                due = max(since, self.now if client.next.probes else since) + patience
        self.agenda.set((NEXT, client.id), due)

    def not_taken(self, client: Client, stopped: bool, now: float) -> None:
        """The edge has found out why."""
        if client.next is None:
            return
        if stopped:  # it counts as waiting no more until it goes on
            for process in client.processes.values():
                process.wants = False
            self.leave_queue_if_content(client, now)
            self.retract(client)
            return
        for uuid in client.next.devices:
            device = self.devices[uuid]
            if not device.grants and device.taken_since is None:
                device.taken_since = now
                self.touch_device(device)

    # --- reports

    def began(self, process: Process, turn: int, at: float, now: float) -> None:
        """The process is in that turn, by the locks of its devices: whatever was known of others there is outdated."""
        client = process.client
        process.turn, process.wants, process.evicting, process.idle = turn, False, False, False
        self.touch(client)
        if client.grant:
            devices = (*process.devices, *(client.next.devices if client.next else ()))
            if client.grant.turn == turn and not set(devices) <= set(client.grant.devices):
                self.leave_queue(client, now)
                self._take(client.grant, devices, now)
            self.leave_queue_if_content(client, now)
            return
        permitted = client.next is not None and client.next.turn == turn
        devices = client.next.devices if client.next and permitted else process.devices
        others = self._other_turns(devices, turn)
        if others and not permitted:
            self.leave_queue_if_content(client, now)
            return  # it ends by what its page says; `adopt_unpermitted` takes it into the books if it doesn't
        for grant in others:
            self._strike(grant, now)
        self._start(client, turn, devices, max(min(at, now), self._free_since(devices)))

    def ended(self, process: Process, turn: int, closed: float | None, now: float) -> None:
        """The process has left the turn."""
        client = process.client
        process.turn, process.evicting, process.idle = 0, False, False
        process.left = client.permit.epoch if client.permit else 0
        self.touch(client)
        grant = client.grant
        if grant and grant.turn == turn and not grant.processes:
            if closed is not None:
                self.begin_closing(grant, now, closed)
            self.finish(grant, now)

    def adopt(self, process: Process, turn: Turn, now: float) -> None:
        """Take a turn that a process brings with it into the books, if no other is on its devices."""
        client = process.client
        process.turn = turn.number
        self.touch(client)
        grant = client.grant
        if grant is None and not self._other_turns(process.devices, turn.number):
            grant = self._start(client, turn.number, process.devices, now)
        if grant and grant.turn == turn.number:
            self.cover(grant, process.devices, now)
            self.leave_queue_if_content(client, now)
            if not turn.open:
                self.begin_closing(grant, now)

    def adopt_unpermitted(self, device: Device, now: float) -> None:
        """A process that has entered without a permit is in the way of who is next, until it has drained."""
        if device.grants:
            return
        for client in device.clients.values():
            brought = next((process for process in client.processes.values() if process.turn), None)
            if brought and client.grant is None and not self._other_turns(brought.devices, brought.turn):
                self.begin_closing(self._start(client, brought.turn, brought.devices, now), now)
                return

    def _start(self, client: Client, turn: int, devices: tuple[str, ...], began: float) -> Grant:
        self.leave_queue(client, self.now)
        joined = [grant for uuid in devices for grant in self.devices[uuid].grants]
        grant = self.new_grant(client, turn, devices, began)
        # Or a short quantum would be over before the memory is back, turn after turn.
        missing = client.part.allocated - client.part.resident if client.restores else 0
        grant.lead = grant.expected_lead = min(
            max(client.switching.restore, missing / SLOW_LINK) if missing else 0.0, LONGEST_QUANTUM
        )
        for other in joined:  # an overrun has had its turn: it does not go on with this one, but waits for the next
            other.parting = other.parting or lets_in(other, self.settings, self.now)
        self._found_free(devices)
        if client.uncovered:
            self.enter_queue(client, self.now)
        if client.suspended:
            self.begin_closing(grant, self.now)
        return grant

    def _take(self, grant: Grant, devices: tuple[str, ...], now: float) -> None:
        """Its turn covers further devices now."""
        self.account(grant, now)
        self.set_evicted(grant.client, False)
        for other in self._other_turns(devices, grant.turn):
            self._strike(other, now)
        self.cover(grant, devices, now)
        self._found_free(devices)

    def _found_free(self, devices: Iterable[str]) -> None:
        for uuid in devices:
            self.devices[uuid].taken_since = self.devices[uuid].left_until = None

    def _other_turns(self, devices: Iterable[str], turn: int) -> list[Grant]:
        found = [grant for uuid in devices for grant in self.devices[uuid].grants if grant.turn != turn]
        return list(dict.fromkeys(found))

    def _free_since(self, devices: Iterable[str]) -> float:
        return max(self.devices[uuid].free_since for uuid in devices)

    def _strike(self, grant: Grant, now: float) -> None:
        """Another client has the device by its lock, so this turn is over, whatever its processes say."""
        for process in grant.processes:
            process.turn = 0
        self.finish(grant, now)
