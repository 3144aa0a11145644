"""Limits on the launches of clients that share a device: budgets, and the rules that set them."""
