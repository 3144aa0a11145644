"""State of one client outside the scheduler: its processes, pages and quotas."""
