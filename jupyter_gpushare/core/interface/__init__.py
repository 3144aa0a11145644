"""Settings, events and commands: the interface of the core."""
