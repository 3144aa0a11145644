"""Sockets, connections, identities of peers and rate limits."""
