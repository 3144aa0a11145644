"""Scheduler that takes events and returns commands, without input, output or a clock.

`Scheduler.handle(event, now) -> [command]` takes the events.
"""

from .scheduler import Scheduler

__all__ = ["Scheduler"]
