"""Acceptance of connections, and dispatch of their messages to sessions and handlers."""
