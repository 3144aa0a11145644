"""Plan of the memory that stays on each device."""
