"""State of one client outside the scheduler: its processes, their pages and counters, and its quotas."""
