"""Settings in force and the checks of settings at run time."""
