"""Queue of waiting clients, scheduling policies and eviction order."""
