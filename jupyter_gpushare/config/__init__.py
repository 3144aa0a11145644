"""Settings as traits and as options of commands."""
