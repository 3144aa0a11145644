"""The loop around the scheduler: events in, commands out, periodic tasks."""
