"""Handlers of events, the idle policy and the adapter of placement."""
