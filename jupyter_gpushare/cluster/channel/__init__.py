"""Encrypted channel between a Jupyter server and a node agent, and its messages."""
