"""The scheduler: decisions only, no input or output. `Scheduler.handle(event, now) -> [command]` is its one door."""

from .scheduler import Scheduler

__all__ = ["Scheduler"]
