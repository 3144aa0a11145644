"""State of one client beside the scheduler: its processes, pages and quotas."""
