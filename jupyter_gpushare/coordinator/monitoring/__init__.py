"""Samples, totals, history and inspections of clients, processes and devices."""
