"""Rules and trials of clients that run on one device at the same time."""
