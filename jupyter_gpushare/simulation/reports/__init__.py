"""Results of a simulation, as figures, text and HTML."""
