"""Experiments with the devices of a whole cluster."""
