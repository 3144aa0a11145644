"""Data model of the core: clients, processes, devices and grants."""
