"""Placement of clients on the nodes of a cluster."""
