"""State, usage and audit records on disk."""
