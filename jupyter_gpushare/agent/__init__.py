"""A process with the shim, in Python: the compiled rule of turns, and the edge around it."""
