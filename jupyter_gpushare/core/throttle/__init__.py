"""Limits on what clients launch while they share a device: budgets, and the rules that ask for them."""
