"""Handlers of events: each changes the state of the core."""
