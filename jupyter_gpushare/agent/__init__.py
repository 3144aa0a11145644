"""Process of a client in Python: the compiled agent rule with an edge that does input and output."""
