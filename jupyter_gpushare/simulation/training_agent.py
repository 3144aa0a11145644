"""Training steps that programs mark, at the end of which turns end ahead of their deadlines, as in the shim."""

from __future__ import annotations

from ..wire.page import IN
from .entities import NO_TIME_NS, STEP, SimClient
from .simulated_agent import SimulatedAgent

_ROUNDING_SECONDS = 1e-5  # by which a timer may miss the end of a training step
_MIN_LEFT_SECONDS = 1e-6  # of a training step: less is lost in the sum with the present time


class TrainingAgent(SimulatedAgent):
    """Scheduler with processes whose programs may mark training steps."""

    def begin_work(self, client: SimClient) -> None:
        super().begin_work(client)
        self._await_step(client)

    def step(self, client: SimClient, drained: bool = False) -> None:
        if client.spec.step:
            client.agent.inputs.training_steps = self.training_steps(client)
        super().step(client, drained)
        self._await_step(client)

    def on_step_timer(self, client: SimClient) -> None:
        """Step the rule at the end of a training step, or at the time from which on the rule awaits one."""
        if self.done_of_training_step(client) < _ROUNDING_SECONDS:
            client.agent.inputs.boundary_ns = round(1e9 * self.now)
        self.step(client)

    def _await_step(self, client: SimClient) -> None:
        """Set the timer, if the turn may end with a training step."""
        client.timers[STEP] = -1
        is_working = client.accounted_until >= 0 and client.rate > 0
        if not client.spec.step or client.phase != IN or client.boundary_from_ns == NO_TIME_NS or not is_working:
            return
        due = (client.boundary_from_ns + 1) / 1e9
        if due <= self.now:
            left = client.spec.step - self.done_of_training_step(client)
            due = self.now + max(left, _MIN_LEFT_SECONDS) / client.rate
        self.schedule(due, STEP, client)
