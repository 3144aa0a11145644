"""Samples and totals of clients, processes and devices."""
