"""Workloads: made, recorded or converted from a trace."""
