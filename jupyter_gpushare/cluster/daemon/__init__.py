"""Requests of a Jupyter server to the cluster daemon."""
