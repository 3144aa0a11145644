"""Coordinator: the daemon that schedules, with the input and output around `core`."""
