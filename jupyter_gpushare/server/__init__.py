"""Jupyter server extension with REST routes, a WebSocket for snapshots, and the supervisor of the coordinator."""
