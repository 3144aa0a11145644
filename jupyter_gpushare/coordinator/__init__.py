"""The daemon that schedules: one file per edge around `core`."""
