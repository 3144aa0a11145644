"""Values that every other folder of the core uses."""
