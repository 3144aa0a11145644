"""Cluster daemon: the process that chooses nodes for the Jupyter servers of a host."""
