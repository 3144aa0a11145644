"""Start, end and permits of turns."""
