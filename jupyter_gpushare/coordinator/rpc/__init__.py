"""Acceptance of connections and dispatch of their messages."""
