"""Kernels on other hosts: the server's side, which starts node agents by an engine, and the folders of both sides."""
