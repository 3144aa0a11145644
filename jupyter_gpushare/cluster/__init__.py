"""Kernels on other hosts: the node agent and the keeper on a node, and the engine and the provisioner on the server."""
